"""The dataflow between values, through loops and branches.

A vertex is a value, or a node that assigns a variable. An edge goes from a value to a vertex that
is computed from it. Nested graphs are linked to the operands and results of their node: the carry
of a loop leads back to the start of its body, and a predicate or an index leads to all values that
depend on the choice. If the program itself made a mutable cell, its assignments lead to its reads.
A variable of the user has no such edges, so paths begin at its reads and end at its assignments.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, TypeVar

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.definitions import inputs_of_nested, results_of
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.loops import While
from graphdist.ir.ops import ASSIGN, COND, READ, SCAN, WHILE, variable_named_by
from graphdist.ir.types import MIRRORED

Vertex: TypeAlias = Value | Node
V = TypeVar("V", bound=Hashable)
Edges: TypeAlias = Mapping[Vertex, Sequence[Vertex]]


@kept_analysis
def uses(graph: Graph) -> Edges:
    """Return the vertices that are computed from each vertex.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> [value.hint for value in uses(graph)[graph.inputs[0]]]
    ['y', 'y']
    """
    return _grouped(_edges(graph))


@kept_analysis
def computed_of(graph: Graph) -> Edges:
    """Return the vertices from which each vertex is computed, in the order of the operands."""
    return _grouped((end, start) for start, end in _edges(graph))


def _grouped(pairs: Iterable[tuple[V, V]]) -> dict[V, list[V]]:
    """Return the second vertices of pairs by the first."""
    found: dict[V, list[V]] = {}
    for first, second in pairs:
        found.setdefault(first, []).append(second)
    return found


def reachable(
    edges: Mapping[V, Iterable[V]], starts: Iterable[V], without: Collection[V] = ()
) -> set[V]:
    """Return the vertices that paths from `starts` reach, `starts` included.

    No path goes through a vertex in `without`.
    """
    pending = list(starts)
    found = set(pending)
    while pending:
        for end in edges.get(pending.pop(), ()):
            if end not in found and end not in without:
                found.add(end)
                pending.append(end)
    return found


def _edges(graph: Graph) -> Iterator[tuple[Vertex, Vertex]]:
    for start, end in chain(_edges_of_nodes(graph), _edges_of_cells(graph)):
        if not isinstance(start, Literal):
            yield start, end


def _edges_of_nodes(graph: Graph) -> Iterator[tuple[Operand, Vertex]]:
    for node in walk(graph):
        if node.op in (SCAN, WHILE, COND):
            for _, value, parents in (*inputs_of_nested(node), *results_of(node)):
                yield from ((parent, value) for parent in parents)
            if (choice := choice_of(node)) is not None:
                yield from _choosing(choice, node)
            continue
        ends: Sequence[Vertex] = (node,) if node.op is ASSIGN else node.results
        yield from ((operand, end) for operand in node.operands for end in ends)


def _edges_of_cells(graph: Graph) -> Iterator[tuple[Node, Vertex]]:
    nodes = [node for node in walk(graph) if node.op in (READ, ASSIGN)]
    reads: dict[str, list[Value]] = {}
    for node in nodes:
        if node.op is READ and variable_named_by(node).is_local:
            reads.setdefault(variable_named_by(node).name, []).extend(node.results)
    for node in nodes:
        if node.op is ASSIGN and variable_named_by(node).is_local:
            yield from ((node, value) for value in reads.get(variable_named_by(node).name, ()))


def choice_of(node: Node) -> Operand | None:
    """Return the predicate of a `while` or the index of a `cond`; None for any other node."""
    if node.op is WHILE:
        return While(node).predicate
    return node.operands[0] if node.op is COND else None


def diverges(node: Node) -> bool:
    """Return whether replicas may take different branches, or different numbers of iterations."""
    choice = choice_of(node)
    return choice is not None and choice.type.layout is not MIRRORED


def _choosing(choice: Operand, node: Node) -> Iterator[tuple[Operand, Vertex]]:
    """Yield the edges from a predicate or an index to the vertices that depend on it."""
    for result in node.results:
        yield choice, result
    for graph in node.graphs:
        for inner in walk(graph):
            if inner.op is ASSIGN:
                yield choice, inner
