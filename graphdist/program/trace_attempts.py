"""How often a function is traced for one call, and what each trace is told.

A function is traced again for two reasons.

* It turns out to need the replica's number as a Python value, or the axis name of the replicas
  throughout the trace.
* A mean of integers should stay an integer where all replicas hold the same integer. The first
  trace makes every mean a float. A second trace follows if the first one proves integers to be the
  same on all replicas, or if it fails, since the float may be the cause. The second trace takes all
  integers for the same except those that are known not to be, because one mean that stays an
  integer may make others provable. Each assumption of a trace must be proven from that trace;
  assumptions that fail are dropped, and the function is traced again. If such a trace fails, or
  too many are needed, the result of the first trace stands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from graphdist.tracing.integer_mean_marks import IntegerMeans, MeanNumber
from graphdist.tracing.state import NeedsNameThroughout, NeedsReplicaNumber, Trace

Result = TypeVar("Result")

_MOST = 4
"""The most traces of one program for its means of integers."""


class TraceAttempts(Generic[Result]):
    """The traces of one function for the arguments of one call; `run_trace` runs one trace."""

    def __init__(self, run_trace: Callable[[Trace], Result]) -> None:
        """Start without knowing what the function needs."""
        self._run_trace = run_trace
        self._by_number: set[int] = set()
        self._axis: tuple[str, int] | None = None
        self._means = IntegerMeans()

    def run(self, is_first: bool) -> Result:
        """Return the result of the last trace; if `is_first`, the first may make variables."""
        try:
            result = self._as_needed(is_first, None)
        except Exception:
            kept = self._with_integers(frozenset()) if self._means.are_any else None
            if kept is None:
                raise
            return kept
        kept = self._with_integers(self._means.unproven) if self._means.equal else None
        return result if kept is None else kept

    def _as_needed(self, is_first: bool, unlike: Collection[MeanNumber] | None) -> Result:
        while True:
            self._means = IntegerMeans(unlike)
            try:
                return self._run_trace(Trace(is_first, self._by_number, self._axis, self._means))
            except NeedsReplicaNumber as needs:
                self._by_number.add(needs.run)
            except NeedsNameThroughout as needs:
                self._axis = needs.axis

    def _with_integers(self, unlike: frozenset[MeanNumber]) -> Result | None:
        """Return the result of a trace in which equal integers stay integers; None if it fails."""
        for _ in range(_MOST):
            try:
                result = self._as_needed(False, unlike)
            except Exception:  # the program may do with the mean what no integer allows
                return None
            if self._means.unproven <= unlike:
                return result
            unlike |= self._means.unproven
        return None
