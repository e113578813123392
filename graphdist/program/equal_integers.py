"""Finds the integer means whose operand is the same on all replicas.

Such a mean stays an integer. On several replicas, the distributions prove that the operand is the
same. On one replica every value is trivially the same, but the mean must have the dtype that it has
on several replicas. So an operand counts as the same there only if it depends on nothing but
mirrored variables and constants. On several replicas, an argument might differ per replica, and so
might a value that is computed from the replica's number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from graphdist.ir.divergence import Sources
from graphdist.ir.errors import GraphdistError
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, GATHER, READ, REDUCE, REPLICA_ID
from graphdist.ir.types import MIRRORED
from graphdist.passes.infer_distribution import diverges, infer_distribution
from graphdist.tracing.integer_mean_marks import IntegerMeans, MeanNumber

_MIRRORED_RESULTS = (REDUCE, ALL_REDUCE, GATHER, ALL_GATHER)


def proven_equal(
    graph: Graph, means: IntegerMeans, on_read: Collection[str]
) -> frozenset[MeanNumber]:
    """Return the means in a logical graph whose integers are the same on all replicas.

    `on_read` names the variables that hold a different value on each replica.
    """
    is_same: Callable[[Value], bool]
    if graph.num_replicas > 1:
        is_same = _mirrored(graph).__contains__
    elif means.replica_was_asked:
        return frozenset()
    else:
        is_same = partial(_is_independent, graph, Sources(graph), on_read)

    def is_equal(operand: Operand | None) -> bool:
        return is_same(operand) if isinstance(operand, Value) else operand is not None

    return frozenset(number for number, of in means.operands.items() if all(map(is_equal, of)))


def _mirrored(graph: Graph) -> set[Value]:
    """Return the mirrored values of a graph, except inside nodes whose control flow diverges."""
    found: set[Value] = set()
    try:
        pending = [(graph, infer_distribution(graph))]
    except GraphdistError:  # the program is refused, when it is compiled
        return found
    while pending:
        given, inferred = pending.pop()
        pairs = list(zip(given.inputs, inferred.inputs, strict=True))
        for node, known in zip(given.nodes, inferred.nodes, strict=True):
            pairs += zip(node.results, known.results, strict=True)
            if not diverges(known):
                pending += zip(node.graphs, known.graphs, strict=True)
        found.update(value for value, known in pairs if known.type.distribution is MIRRORED)
    return found


def _is_independent(graph: Graph, sources: Sources, on_read: Collection[str], value: Value) -> bool:
    """Return whether a value depends on nothing that may differ between replicas."""
    pending, seen = list[Operand]([value]), set[Operand]()
    while pending:
        current = pending.pop()
        if not isinstance(current, Value) or current in seen:
            continue
        seen.add(current)
        node = sources.made_by.get(current)
        if current in graph.inputs or (node is not None and _is_own(node, on_read)):
            return False
        if node is None or node.op not in (READ, *_MIRRORED_RESULTS):
            pending += sources.of(current)
    return True


def _is_own(node: Node, on_read: Collection[str]) -> bool:
    """Return whether the result of a node could differ between several replicas."""
    if node.op is READ:
        variable = READ.of(node).variable
        return variable.is_local or variable.name in on_read
    exchanges = node.op.is_collective and node.op not in _MIRRORED_RESULTS
    return exchanges or node.op.varies or node.op is REPLICA_ID
