"""Graph-to-graph passes: a pass is a pure function, one file each.

`manager.py` has the contract of a pass, `pipelines.py` the table of all passes in their order.
"""

from __future__ import annotations

if __name__ != "graphdist.passes":
    raise ImportError("import graphdist.passes, not passes: the repository root is on sys.path")

from graphdist.passes.pipelines import Target, pipeline

__all__ = ["Target", "pipeline"]
