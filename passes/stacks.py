"""Values that nothing but loops uses, slice by slice."""

from __future__ import annotations

from graphdist.ir.analyses import use_counts, users
from graphdist.ir.graph import Graph, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import SCAN


def is_only_scanned(value: Value, graph: Graph) -> bool:
    """Return whether nothing but loops uses a value, and these scan it."""
    loops = [Scan(node) for node in users(graph).get(value, ()) if node.op is SCAN]
    count = sum(taken.operand is value for loop in loops for taken in loop.scanned)
    return 0 < count == use_counts(graph)[value]
