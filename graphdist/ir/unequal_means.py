"""The search for means over replicas whose values come from unequal numbers of rows.

A mean over replicas gives each replica equal weight. If replicas have different numbers of rows,
this is not the mean over the rows. The search goes forward from inputs with unequal numbers of rows
to all values that are computed from them, through loops and branches. It ends at collectives, since
their results are computed from the rows of all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphdist.ir.analyses import walk
from graphdist.ir.flow import reachable, uses
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.ops import AGGREGATE, reducer_of


def from_unequal_rows(graph: Graph, inputs: Iterable[Value]) -> tuple[frozenset[Value], list[Node]]:
    """Return the values and the means that a logical graph computes from `inputs` of unequal rows.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 2 replicas, stage logical
    ... (%x: f32[3] per_replica) {
    ...   %y = jax.mul(%x, %x) : f32[3] per_replica
    ...   %z = reduce(%y) {reducer="mean", group_size=2} : f32[3] mirrored
    ...   return %z
    ... }''')
    >>> [node.op.name for node in from_unequal_rows(graph, graph.inputs)[1]]
    ['reduce']
    """
    combined = {value for node in walk(graph) if _combines(node) for value in node.results}
    found = reachable(uses(graph), inputs, without=combined)
    means = [node for node in walk(graph) if _is_mean(node) and node.operands[0] in found]
    values = frozenset(vertex for vertex in found if isinstance(vertex, Value))
    return values, means


def _is_mean(node: Node) -> bool:
    """Return whether a node computes a mean over replicas, or aggregates a variable by mean."""
    if node.op is AGGREGATE:
        params = AGGREGATE.of(node)
        return params.context == "replica" and params.variable.aggregation == "mean"
    return reducer_of(node) == "mean"


def _combines(node: Node) -> bool:
    """Return whether the results of a node are combined from the values of all replicas."""
    if node.op is not AGGREGATE:
        return node.op.is_collective
    params = AGGREGATE.of(node)
    return params.context == "replica" and params.variable.aggregation != "none"
