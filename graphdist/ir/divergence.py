"""Why a value differs between replicas, for errors about values that must not differ.

The search goes from the value to the values it is computed from, and follows per-replica values
alone. The search enters a nested graph through the outputs that become a result, leaves the graph
through the operands that become an input, and goes around a loop through its carry.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.ir.analyses import all_producers
from graphdist.ir.flow import computed_of
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.ops import ALL_TO_ALL, COLLECTIVE_PERMUTE, READ, REPLICA_ID, variable_named_by
from graphdist.ir.types import MIRRORED

_EXCHANGES = (COLLECTIVE_PERMUTE, ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class Cause:
    """The origin of a difference, in words ("" if not found), and the nodes on the way to it."""

    text: str
    nodes: tuple[Node, ...]


def cause(graph: Graph, operand: Operand) -> Cause:
    """Return what makes a value of the graph, or of one nested in it, differ between replicas."""
    made_by, sources = all_producers(graph), computed_of(graph)
    pending: list[tuple[Operand | Node, tuple[Node, ...]]] = [(operand, ())]
    seen = set()
    while pending:
        current, nodes = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        if not isinstance(current, Node):  # any node here assigns a mutable cell
            if isinstance(current, Literal) or current.type.layout is MIRRORED:
                continue
            node = made_by.get(current)
            if node is not None:
                nodes = (*nodes, node)
            if text := _origin(graph, current, node):
                return Cause(text, nodes)
        # Reversed, so that `pop` takes the first operand first.
        pending += [(source, nodes) for source in reversed(sources.get(current, ()))]
    return Cause("", ())


def _origin(graph: Graph, value: Value, node: Node | None) -> str:
    """Say why a value differs although its operands may be equal; "" if there is no such reason."""
    if node is None:
        return f"the per-replica input {value.hint!r}" if value in graph.inputs else ""
    if node.op is REPLICA_ID:
        return "the replica's number"
    if node.op in _EXCHANGES and node.operands[0].type.layout is MIRRORED:
        return f"{node.op.name}, which gives each replica another part"
    if node.op is READ and not variable_named_by(node).is_local:
        return f"the per-replica variable {variable_named_by(node).name!r}"
    return f"{node.op.name}, which each replica calls for itself" if node.op.varies else ""
