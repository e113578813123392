"""Decides how often a function is traced for one call, and with which assumptions.

A function is traced again for two reasons.

* It needs the replica id as a Python value, or the replicas' axis name in the full trace.
* A mean of integers stays an integer if all replicas hold the same integer. In the first trace
  every mean is a float. A second trace follows if the first one proves that integers are equal on
  all replicas, or if it fails, since the float may be the cause. The second trace assumes that all
  integers are equal except those whose proof failed, because one mean that stays an integer may
  make others provable. Each assumption must be proven by the trace that makes it; others are
  dropped, and the function is traced again. If such a trace fails, or too many are needed, the
  result of the first trace is used.

On several replicas the layouts prove that the operand is equal.
On one replica every value is trivially equal, but the mean must have the dtype that it has on
several replicas. So on one replica an operand counts as equal only if it depends on mirrored
variables and constants alone: on several replicas an argument, or a value that is computed from the
replica id, might differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Generic, TypeVar

from graphdist.ir.divergence import Sources
from graphdist.ir.errors import GraphdistError
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, GATHER, READ, REDUCE, REPLICA_ID
from graphdist.ir.types import MIRRORED
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.logical.refused_per_replica_values import diverges
from graphdist.tracing.integer_mean_marks import IntegerMeans, MeanId
from graphdist.tracing.state import NeedsNameThroughout, NeedsReplicaId, Trace

Result = TypeVar("Result")

_MAX_TRACES = 4
"""The most traces of one program for its means of integers."""


class TraceAttempts(Generic[Result]):
    """The traces of one function for the arguments of one call; `run_trace` runs one trace."""

    def __init__(self, run_trace: Callable[[Trace], Result]) -> None:
        """Start without assumptions."""
        self._run_trace = run_trace
        self._by_replica_id: set[int] = set()
        self._axis: tuple[str, int] | None = None
        self._means = IntegerMeans()

    def run(self, is_first: bool) -> Result:
        """Return the result of the last trace; if `is_first`, the first may create variables."""
        try:
            result = self._as_needed(is_first, None)
        except Exception:
            kept = self._with_integers(frozenset()) if self._means.are_any else None
            if kept is None:
                raise
            return kept
        kept = self._with_integers(self._means.unproven) if self._means.equal else None
        return result if kept is None else kept

    def _as_needed(self, is_first: bool, unequal: Collection[MeanId] | None) -> Result:
        while True:
            self._means = IntegerMeans(unequal)
            try:
                return self._run_trace(
                    Trace(is_first, self._by_replica_id, self._axis, self._means)
                )
            except NeedsReplicaId as needs:
                self._by_replica_id.add(needs.run)
            except NeedsNameThroughout as needs:
                self._axis = needs.axis

    def _with_integers(self, unequal: frozenset[MeanId]) -> Result | None:
        """Return the result of a trace in which equal integers stay integers; None if it fails."""
        for _ in range(_MAX_TRACES):
            try:
                result = self._as_needed(False, unequal)
            except Exception:  # the program may use the mean as only a float allows
                return None
            if self._means.unproven <= unequal:
                return result
            unequal |= self._means.unproven
        return None


_MIRRORED_RESULTS = (REDUCE, ALL_REDUCE, GATHER, ALL_GATHER)


def proven_equal(graph: Graph, means: IntegerMeans, on_read: Collection[str]) -> frozenset[MeanId]:
    """Return the means in a logical graph whose integers are equal on all replicas.

    `on_read` has the names of variables with a value per replica.
    """
    is_same: Callable[[Value], bool]
    if graph.num_replicas > 1:
        is_same = _mirrored(graph).__contains__
    elif means.uses_replica_id:
        return frozenset()
    else:
        is_same = partial(_is_independent, graph, Sources(graph), on_read)

    def is_equal(operand: Operand | None) -> bool:
        return is_same(operand) if isinstance(operand, Value) else operand is not None

    return frozenset(i for i, operands in means.operands.items() if all(map(is_equal, operands)))


def _mirrored(graph: Graph) -> set[Value]:
    """Return the mirrored values of a graph, except inside nodes whose control flow diverges."""
    mirrored: set[Value] = set()
    try:
        pending = [(graph, infer_layouts(graph))]
    except GraphdistError:  # it is raised again when the program is compiled
        return mirrored
    while pending:
        traced, inferred = pending.pop()
        pairs = list(zip(traced.inputs, inferred.inputs, strict=True))
        for node, known in zip(traced.nodes, inferred.nodes, strict=True):
            pairs += zip(node.results, known.results, strict=True)
            if not diverges(known):
                pending += zip(node.graphs, known.graphs, strict=True)
        mirrored.update(value for value, known in pairs if known.type.layout is MIRRORED)
    return mirrored


def _is_independent(graph: Graph, sources: Sources, on_read: Collection[str], value: Value) -> bool:
    """Return whether a value depends on no value that may differ between replicas."""
    pending, seen = list[Operand]([value]), set[Operand]()
    while pending:
        current = pending.pop()
        if not isinstance(current, Value) or current in seen:
            continue
        seen.add(current)
        node = sources.made_by.get(current)
        if current in graph.inputs or (node is not None and _may_differ(node, on_read)):
            return False
        if node is None or node.op not in (READ, *_MIRRORED_RESULTS):
            pending += sources.of(current)
    return True


def _may_differ(node: Node, on_read: Collection[str]) -> bool:
    """Return whether the result of a node could differ between several replicas."""
    if node.op is READ:
        variable = READ.of(node).variable
        return variable.is_local or variable.name in on_read
    exchanges = node.op.is_collective and node.op not in _MIRRORED_RESULTS
    return exchanges or node.op.varies or node.op is REPLICA_ID
