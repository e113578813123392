"""The search for means over replicas whose values come from unequal numbers of rows.

A mean over replicas gives each replica equal weight. If replicas have different numbers of rows, it
is not the mean over the rows. The search goes forward from inputs with unequal numbers of rows to
all values that are computed from them, through loops and branches. It ends where replicas are
combined: the result of a collective belongs to no replica's rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from graphdist.ir.analyses import walk
from graphdist.ir.divergence import links
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import AGGREGATE, ASSIGN, READ, reducer_of, variable_named_by


@dataclass(frozen=True, slots=True)
class FromUnequalRows:
    """The values computed from inputs of unequal rows, and the means of them over replicas."""

    values: frozenset[Operand]
    means: tuple[Node, ...]


def from_unequal_rows(graph: Graph, inputs: Iterable[Value]) -> FromUnequalRows:
    """Return the values and means that a logical graph computes from `inputs` of unequal rows.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 2 replicas, stage logical
    ... (%x: f32[3] per_replica) {
    ...   %y = jax.mul(%x, %x) : f32[3] per_replica
    ...   %z = reduce(%y) {reducer="mean", group_size=2} : f32[3] mirrored
    ...   return %z
    ... }''')
    >>> [node.op.name for node in from_unequal_rows(graph, graph.inputs).means]
    ['reduce']
    """
    leads_to = _leads_to(graph)
    found: set[Operand] = set()
    pending: list[Operand] = list(inputs)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += leads_to.get(value, ())
    means = (node for node in walk(graph) if _is_mean(node) and node.operands[0] in found)
    return FromUnequalRows(frozenset(found), tuple(means))


def _leads_to(graph: Graph) -> dict[Operand, list[Value]]:
    """Return the values that one node computes from each value, without combining replicas."""
    found: dict[Operand, list[Value]] = defaultdict(list)
    cells: dict[str, list[Value]] = defaultdict(list)
    for node in walk(graph):
        if node.op is READ and variable_named_by(node).is_local:
            cells[variable_named_by(node).name] += node.results
    for node in walk(graph):
        if node.op is ASSIGN:
            for operand in node.operands:
                found[operand] += cells[variable_named_by(node).name]
        elif node.graphs:
            for value, operand in links(node):
                found[operand].append(value)
        elif not node.op.is_collective and not _is_combined(node):
            for operand in node.operands:
                found[operand] += node.results
    return found


def _is_mean(node: Node) -> bool:
    """Return whether a node is a mean over replicas, or writes a variable that is read as one."""
    if node.op is AGGREGATE:
        params = AGGREGATE.of(node)
        return params.context == "replica" and params.variable.aggregation == "mean"
    return reducer_of(node) == "mean"


def _is_combined(node: Node) -> bool:
    if node.op is not AGGREGATE or AGGREGATE.of(node).context != "replica":
        return False
    return variable_named_by(node).aggregation != "none"
