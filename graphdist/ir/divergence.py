"""Why a value differs between replicas, for errors about values that must not differ.

The search goes from the value to the values it is computed from, and follows per-replica values
alone. It enters a nested graph by the outputs that become a result, leaves it by the operands that
become an input, and goes around a loop by its carry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import walk
from graphdist.ir.flow import choice_of, passed
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import (
    ALL_TO_ALL,
    ASSIGN,
    COLLECTIVE_PERMUTE,
    READ,
    REPLICA_ID,
    variable_named_by,
)
from graphdist.ir.types import MIRRORED

_EXCHANGES = (COLLECTIVE_PERMUTE, ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class Cause:
    """The origin of a difference, in words ("" if not found), and the nodes on the way to it."""

    text: str
    nodes: tuple[Node, ...]


def cause(graph: Graph, operand: Operand) -> Cause:
    """Return what makes a value of the graph, or of one nested in it, differ between replicas."""
    sources = Sources(graph)
    pending: list[tuple[Operand, tuple[Node, ...]]] = [(operand, ())]
    seen = set()
    while pending:
        current, nodes = pending.pop()
        if not isinstance(current, Value) or current in seen:
            continue
        if current.type.layout is MIRRORED:
            continue
        seen.add(current)
        node = sources.made_by.get(current)
        if node is not None:
            nodes = (*nodes, node)
        if text := _origin(graph, current, node):
            return Cause(text, nodes)
        # The last element is visited first, which is then the first operand.
        pending += [(source, nodes) for source in reversed(sources.of(current))]
    return Cause("", ())


def _origin(graph: Graph, value: Value, node: Node | None) -> str:
    """Describe a value that differs by itself, not because of its operands."""
    if node is None:
        return f"the per-replica input {value.hint!r}" if value in graph.inputs else ""
    if node.op is REPLICA_ID:
        return "the replica's number"
    if node.op in _EXCHANGES and node.operands[0].type.layout is MIRRORED:
        return f"{node.op.name}, which gives each replica another part"
    if node.op is READ and not variable_named_by(node).is_local:
        return f"the per-replica variable {variable_named_by(node).name!r}"
    return f"{node.op.name}, which each replica calls for itself" if node.op.varies else ""


class Sources:
    """The operands that each value of a graph, or of a nested one, is computed from."""

    def __init__(self, graph: Graph) -> None:
        self.made_by: dict[Value, Node] = {}
        self._stands_for: dict[Value, list[Operand]] = defaultdict(list)
        self._assigned: dict[str, list[Operand]] = defaultdict(list)
        for node in walk(graph):
            self.made_by.update(dict.fromkeys(node.results, node))
            if node.op is ASSIGN:
                self._assigned[variable_named_by(node).name] += node.operands
            for value, operand in links(node):
                self._stands_for[value].append(operand)

    def of(self, value: Value) -> Sequence[Operand]:
        """Return the operands that a value is computed from, nearest first."""
        linked = self._stands_for.get(value, [])
        node = self.made_by.get(value)
        if node is None or linked:
            return linked
        if node.op is READ:  # of a mutable cell that the program made
            return self._assigned[variable_named_by(node).name]
        return node.operands


def links(node: Node) -> Iterator[tuple[Value, Operand]]:
    """Yield pairs of a value of control flow and an operand that it depends on."""
    for operand, value in passed(node):
        yield value, operand
    choice = choice_of(node)
    if choice is not None:
        yield from ((result, choice) for result in node.results)
