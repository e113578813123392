"""Programs made visible: their graphs, what each pass did, and where variables live."""

from graphdist.viz.diff import Diff, diff
from graphdist.viz.formats import FORMATS, render
from graphdist.viz.placement import placement

__all__ = ["FORMATS", "Diff", "diff", "placement", "render"]
