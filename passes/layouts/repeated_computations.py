"""Large computations that every replica repeats on equal values.

A matrix product of mirrored operands gives the same on all replicas, and each of them computes it.
Typical are the iterations of an optimizer on whole matrices: Newton-Schulz (Muon), roots of
statistics (Shampoo), low-rank factors.

A repeated computation begins with products and decompositions of matrices that depend on each
other, and the nodes between them. Nodes in front of these, whose results nothing else uses, are
added as long as no more bytes then enter the computation: the norm of a
matrix is added, the sum of a momentum and a gradient is not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import kept_analysis, users
from graphdist.ir.cost import DECOMPOSITIONS, PRODUCT
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.types import MIRRORED
from graphdist.passes.layouts.elementwise_chains import only_operand

LARGE = frozenset({PRODUCT, *DECOMPOSITIONS})
"""The operations with which a repeated computation begins."""

_MOST_NODES = 1000
"""The most nodes of a computation. A whole model that every replica runs has more."""


@dataclass(frozen=True, slots=True)
class RepeatedComputation:
    """Nodes that every replica runs on equal values, in the order of the graph."""

    nodes: tuple[Node, ...]
    outside: tuple[Value, ...]
    """The values that the nodes use and do not make, in the order of their first use."""
    results: tuple[Value, ...]
    """The values that the nodes make and others use."""


def repeated_computations(graph: Graph) -> list[RepeatedComputation]:
    """Return the repeated computations of a graph; those of nested graphs are left out."""
    found = _by_computation(graph).values()
    return [_with_ends(graph, _trimmed(*each)) for each in found if len(each[0]) <= _MOST_NODES]


def _by_computation(graph: Graph) -> dict[int, tuple[list[Node], set[Node]]]:
    """Return the nodes of each computation, and those of them that cannot be left out."""
    numbers, behind = _numbered(graph)
    if not numbers:
        return {}
    used_by, outputs = users(graph), set(graph.outputs)
    core, before = dict[Node, int](), dict[Node, int]()
    for node in reversed(graph.nodes):
        if node in numbers:
            core[node] = numbers[node]
        elif node.results and _is_repeated(node):
            using = [user for result in node.results for user in used_by[result]]
            between = behind.get(node.results[0], frozenset()) & {
                core[user] for user in using if user in core
            }
            if between:
                (core[node],) = between
            elif using and outputs.isdisjoint(node.results):
                found = {core.get(user, before.get(user)) for user in using}
                number = found.pop()
                if number is not None and not found:
                    before[node] = number
    chosen = core | before
    computations = defaultdict[int, tuple[list[Node], set[Node]]](lambda: ([], set()))
    for node in graph.nodes:
        if node in chosen:
            nodes, kept = computations[chosen[node]]
            nodes.append(node)
            if node in core:
                kept.add(node)
    return computations


def _numbered(graph: Graph) -> tuple[dict[Node, int], dict[Operand, frozenset[int]]]:
    """Return the number of the computation of each large node, and of those before each value."""
    merged: list[int] = []
    numbers, behind = dict[Node, int](), dict[Operand, frozenset[int]]()
    for node in graph.nodes:
        if not _is_repeated(node):
            continue
        found = frozenset[int]().union(
            *(behind.get(operand, ()) for operand in node.operands if type(operand) is Value)
        )
        if _is_large(node):
            number = numbers[node] = len(merged)
            merged.append(number)
            for other in found:
                merged[_last(merged, other)] = number
            found = frozenset({number})
        if found:
            behind.update(dict.fromkeys(node.results, found))
    numbers = {node: _last(merged, number) for node, number in numbers.items()}
    return numbers, {
        value: frozenset(_last(merged, number) for number in found)
        for value, found in behind.items()
    }


def _last(merged: list[int], number: int) -> int:
    """Return the number of the computation into which a computation was merged."""
    while merged[number] != number:
        merged[number] = number = merged[merged[number]]
    return number


def _is_repeated(node: Node) -> bool:
    """Return whether each replica computes the same from the same, and nothing else happens."""
    is_mirrored = all(result.type.layout is MIRRORED for result in node.results)
    return is_mirrored and _has_own_value(node) and all(map(_have_own_values, node.graphs))


def _has_own_value(node: Node) -> bool:
    op = node.op
    return not (op.is_collective or op.has_effect or op.varies)


@kept_analysis
def _have_own_values(graph: Graph) -> bool:
    return all(
        _has_own_value(node) and all(map(_have_own_values, node.graphs)) for node in graph.nodes
    )


def _is_large(node: Node) -> bool:
    return node.op.name in LARGE or any(map(_holds_large, node.graphs))


@kept_analysis
def _holds_large(graph: Graph) -> bool:
    return any(map(_is_large, graph.nodes))


def _trimmed(nodes: Sequence[Node], kept: set[Node]) -> list[Node]:
    """Return the nodes without those at the beginning that are better computed outside.

    Nodes are left out from the front as long as no more bytes then enter; of the possible places
    for the cut the one is taken where the fewest bytes enter. Operations on one value are left out
    in any case.
    """
    uses = Counter(operand for node in nodes for operand in _values(node.operands))
    made = {result for node in nodes for result in node.results}
    bytes_now = sum(value.type.bytes for value in uses if value not in made)
    fewest, best, left = bytes_now, 0, list[Node]()
    for node in nodes:
        entering = _values(node.operands)
        if node in kept or not made.isdisjoint(entering):
            continue
        gone = sum(v.type.bytes for v in set(entering) if uses[v] == entering.count(v))
        more = sum(result.type.bytes for result in node.results if uses[result])
        if more > gone:
            continue
        left.append(node)
        uses.subtract(entering)
        made -= set(node.results)
        bytes_now += more - gone
        if bytes_now < fewest or (best == len(left) - 1 and only_operand(node) is not None):
            fewest, best = bytes_now, len(left)
    without = set(left[:best])
    return [node for node in nodes if node not in without]


def _values(operands: Iterable[Operand]) -> list[Value]:
    return [operand for operand in operands if type(operand) is Value]


def _with_ends(graph: Graph, nodes: Sequence[Node]) -> RepeatedComputation:
    chosen = set(nodes)
    made = dict.fromkeys(result for node in nodes for result in node.results)
    used = dict.fromkeys(value for node in nodes for value in _values(node.operands))
    used_by, outputs = users(graph), set(graph.outputs)
    return RepeatedComputation(
        tuple(nodes),
        tuple(value for value in used if value not in made),
        tuple(each for each in made if each in outputs or not chosen.issuperset(used_by[each])),
    )
