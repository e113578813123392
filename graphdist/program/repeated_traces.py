"""How often a function is traced for one call, and what each trace is told.

It is traced again

* with the replica's number as a Python value, or the replicas' name bound throughout, where it
  turns out to need them;
* with means of integers that stay integers. The first trace has floats in their place. Another one
  follows if it proves integers to be the same on all replicas, or if it fails, since a float may be
  what does not fit. There all are taken for equal but those that were seen not to be, since more
  follow from an integer that stays one. What a trace takes for equal must be proven of that very
  trace. A program that cannot be traced like that, or not twice, keeps what the first trace gave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from graphdist.tracing.integer_means import IntegerMeans, MeanNumber
from graphdist.tracing.state import NeedsNameThroughout, NeedsReplicaNumber, Trace

Result = TypeVar("Result")

_MOST = 4
"""How often a program is traced again for its integers."""


class RepeatedTraces(Generic[Result]):
    """The traces of one function for the arguments of one call; `run_trace` makes one of them."""

    def __init__(self, run_trace: Callable[[Trace], Result]) -> None:
        """Know nothing of what the function needs."""
        self._run_trace = run_trace
        self._by_number: set[int] = set()
        self._axis: tuple[str, int] | None = None
        self._means = IntegerMeans()

    def run(self, is_first: bool) -> Result:
        """Return what the last trace gave; the first alone may make variables, if it `is_first`."""
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
        """Return what a trace gives in which equal integers stay such, or None."""
        for _ in range(_MOST):
            try:
                result = self._as_needed(False, unlike)
            except Exception:  # whatever the program does with an integer that it cannot do
                return None
            if self._means.unproven <= unlike:
                return result
            unlike |= self._means.unproven
        return None
