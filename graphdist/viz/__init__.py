"""Programs made visible: their graphs, what each pass did, and where variables live."""

from graphdist.program.stages import set_viewer
from graphdist.viz import show
from graphdist.viz.diff import Diff, diff
from graphdist.viz.formats import FORMATS, render
from graphdist.viz.placement import placement

set_viewer(show)  # whose functions stages call

__all__ = ["FORMATS", "Diff", "diff", "placement", "render"]
