"""Analyses of a graph: users, producers, all its nodes, its collectives.

An analysis is a function of the graph alone. Its result is computed once and kept with the graph,
which is safe because graphs do not change. Callers must not change the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from itertools import chain
from typing import TypeVar, cast

from graphdist.ir.graph import Graph, Node, Operand, Value, is_zero

T = TypeVar("T")


def kept_analysis(analysis: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """Return an analysis that calls `analysis` once for each graph and keeps the result."""

    @wraps(analysis)
    def kept(graph: Graph) -> T:
        cache = graph._cache
        if analysis not in cache:
            cache[analysis] = analysis(graph)
        return cast(T, cache[analysis])

    return kept


@kept_analysis
def users(graph: Graph) -> Mapping[Operand, tuple[Node, ...]]:
    """Return the nodes that use each value of the graph, in order and once each.

    Values of nested graphs are left out. To be an output of the graph does not count as a use.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> [len(nodes) for nodes in users(graph).values()]
    [1, 0]
    """
    found: dict[Operand, list[Node]] = {value: [] for value in graph.inputs}
    for node in graph.nodes:
        for operand in node.operands:
            # Literals are slow to hash.
            if type(operand) is Value and node not in found[operand][-1:]:
                found[operand].append(node)
        for result in node.results:
            found[result] = []
    return {value: tuple(nodes) for value, nodes in found.items()}


@kept_analysis
def use_counts(graph: Graph) -> Mapping[Operand, int]:
    """Return how often each value of the graph is an operand or an output.

    A value that one node uses twice counts twice. Unused values and the values of nested graphs
    are left out.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.mul(%x, %x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> list(use_counts(graph).values())
    [2, 1]
    """
    operands = (node.operands for node in graph.nodes)
    used = chain(chain.from_iterable(operands), graph.outputs)
    # Literals are slow to hash.
    return Counter[Operand](operand for operand in used if type(operand) is Value)


@kept_analysis
def places(graph: Graph) -> Mapping[Node, int]:
    """Return the place of each node of the graph in its order."""
    return {node: place for place, node in enumerate(graph.nodes)}


@kept_analysis
def producers(graph: Graph) -> dict[Value, Node]:
    """Return the node that computes each value of the graph. Inputs are left out.

    >>> from graphdist.ir.graph import Stage
    >>> producers(Graph("f", Stage.SPMD, 1, (), (), ()))
    {}
    """
    return {result: node for node in graph.nodes for result in node.results}


def producer_of(operand: Operand, graph: Graph) -> Node | None:
    """Return the node of the graph that computes an operand; None for an input or a literal."""
    return producers(graph).get(operand) if type(operand) is Value else None


def has_zeros(operand: Operand, graph: Graph) -> bool:
    """Return whether an operand is zero, or zeros that a graph makes of one."""
    made = producer_of(operand, graph)
    if made is not None and made.op.name == "jax.broadcast_in_dim":
        operand = made.operands[0]
    return is_zero(operand)


def values_behind(graph: Graph, values: Iterable[Operand]) -> set[Value]:
    """Return `values`, and all values of the graph from which `values` are computed."""
    made_by = producers(graph)
    pending, found = list(values), set[Value]()
    while pending:
        value = pending.pop()
        if isinstance(value, Value) and value not in found:
            found.add(value)
            if value in made_by:
                pending += made_by[value].operands
    return found


@kept_analysis
def all_producers(graph: Graph) -> dict[Value, Node]:
    """Return the node that computes each value of the graph and of its nested graphs."""
    return {result: node for node in walk(graph) for result in node.results}


@kept_analysis
def operations(graph: Graph) -> frozenset[str]:
    """Return the names of the operations of all nodes, nested graphs included."""
    nested = [operations(inner) for node in graph.nodes for inner in node.graphs]
    return frozenset({node.op.name for node in graph.nodes}).union(*nested)


def has_effect(node: Node) -> bool:
    """Return whether a node, or a node of its nested graphs, has an effect."""
    return node.op.has_effect or any(map(_has_effects, node.graphs))


@kept_analysis
def _has_effects(graph: Graph) -> bool:
    return any(map(has_effect, graph.nodes))


@kept_analysis
def walk(graph: Graph) -> tuple[Node, ...]:
    """Return all nodes, the nodes of a nested graph right after the node that has the graph."""
    found: list[Node] = []
    for node in graph.nodes:
        found.append(node)
        for nested in node.graphs:
            found += walk(nested)
    return tuple(found)


@kept_analysis
def collectives(graph: Graph) -> tuple[Node, ...]:
    """Return the collectives in the order in which every replica reaches them.

    A collective in a loop is listed once, and so is each collective in the branches of a `cond`.
    """
    return tuple(node for node in walk(graph) if node.op.is_collective)
