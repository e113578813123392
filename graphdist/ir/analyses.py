"""Analyses of a graph: users, producers, all its nodes, its collectives, its peak memory.

An analysis is a function of the graph alone. Its result is computed once and kept with the graph,
which is safe because graphs do not change. Callers must not change the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from typing import TypeVar, cast

from graphdist.ir.graph import Graph, Node, Operand, Value

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


@dataclass(frozen=True, slots=True)
class HeldValues:
    """The bytes of the values that are alive on one replica, node by node.

    `during` has the bytes while each node runs, and `peak` is the largest number of bytes.
    `position` is the index of the first node that reaches the peak, or -1 if the inputs alone reach
    it. `alive` has the values of the graph that are alive at that position.
    """

    during: tuple[int, ...]
    peak: int
    position: int
    alive: tuple[Value, ...]


@kept_analysis
def held_values(graph: Graph) -> HeldValues:
    """Return how many bytes of values are alive on one replica while each node runs.

    A value lives from the node that computes it to its last use, an input from the start, an output
    to the end. A nested graph adds the bytes it needs beyond its inputs. The bytes in the compiled
    program differ, since XLA fuses and reorders operations and reuses buffers.
    """
    born, last = dict.fromkeys(graph.inputs, -1), dict.fromkeys(graph.inputs, -1)
    for position, node in enumerate(graph.nodes):
        last.update((v, position) for v in node.operands if isinstance(v, Value))
        last.update(dict.fromkeys(node.results, position))
        born.update(dict.fromkeys(node.results, position))
    last.update((v, len(graph.nodes)) for v in graph.outputs if isinstance(v, Value))
    dying: Counter[int] = Counter()
    for value, position in last.items():
        dying[position] += value.type.bytes
    alive = peak = sum(value.type.bytes for value in graph.inputs)
    at = -1
    alive -= dying[-1]
    during = []
    for position, node in enumerate(graph.nodes):
        alive += sum(result.type.bytes for result in node.results)
        during.append(alive + max(map(bytes_inside, node.graphs), default=0))
        if during[-1] > peak:
            peak, at = during[-1], position
        alive -= dying[position]
    there = tuple(value for value in born if born[value] <= at <= last[value])
    return HeldValues(tuple(during), peak, at, there)


def peak_bytes(graph: Graph) -> int:
    """Return the largest number of bytes of values that are alive at one time on one replica."""
    return held_values(graph).peak


def bytes_inside(nested: Graph) -> int:
    """Return the bytes that a nested graph holds at its peak beyond its inputs."""
    return peak_bytes(nested) - sum(value.type.bytes for value in nested.inputs)
