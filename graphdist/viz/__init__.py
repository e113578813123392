"""Programs made visible: their graphs, the changes of each pass, and where variables are stored."""

from graphdist.program.stages import set_viewer
from graphdist.viz import display
from graphdist.viz.formats import FORMATS, render
from graphdist.viz.graph_diff import Diff, diff
from graphdist.viz.placement_table import placement

set_viewer(display)  # stages may not import this package: they call `display` through this hook

__all__ = ["FORMATS", "Diff", "diff", "placement", "render"]
