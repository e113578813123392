"""Turn operations of cross-replica code into collectives in which every device takes part.

`reduce` and `gather` make a single value from the replicas' values. On devices that is an
`all_reduce` or `all_gather`, after which each replica holds the value. `to_replicas` gives a single
value to every replica; each holds it already, so nothing is left to do.

Before:  %l = reduce(%x) {reducer="mean", group_size=2}       %y = to_replicas(%w) ..
After:   %l = all_reduce(%x) {reducer="mean", group_size=2}   %y is %w
"""

from __future__ import annotations

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Op, Operands, Stage
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, CROSS_REPLICA, GATHER, REDUCE
from graphdist.ir.rewrite import Answer, restage, rewrite

NAME = "lower_cross_replica"

_COLLECTIVE: dict[Op, Op] = {REDUCE: ALL_REDUCE, GATHER: ALL_GATHER}
_LOWERED = frozenset(op.name for op in CROSS_REPLICA)


def lower_cross_replica(graph: Graph) -> Graph:
    """Return the SPMD graph of a PLACED one."""
    return restage(rewrite(graph, _lower, NAME, _LOWERED), Stage.SPMD)


def _lower(node: Node, operands: Operands, builder: Builder) -> Answer:
    collective = _COLLECTIVE.get(node.op)
    if collective is None:
        return operands
    return builder.add(collective, operands, node.params, at=node)
