"""The plans that a search compared: memory against time, kept in the file of the one it found.

They are for readers: nothing is chosen by them. The figures are the predictions of the search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: JSON

from graphdist.ir.errors import PlanError

FOUND, OWN = "the plan", "the program's own"


@dataclass(frozen=True)
class ComparedPlan:
    """A plan that was compared: seconds of a step, peak of a device in bytes, by the compiled step.

    If it was not compiled, they are counted on its graph. `name` is `FOUND`, `OWN` or "".
    """

    seconds: float
    peak_bytes: int
    is_compiled: bool = False
    name: str = ""


@dataclass(frozen=True)
class ComparedPlans:
    """The plans that were compared for a device with `memory_bytes`.

    `frontier` has the peaks and seconds, by their graphs, of the plans than which no other is
    faster with less memory, the smallest first.

    >>> plans = ComparedPlans(2**30, (ComparedPlan(0.5, 2**29, name=FOUND),), ((2**29, 0.5),))
    >>> ComparedPlans.from_items(plans.to_items()) == plans
    True
    """

    memory_bytes: int
    plans: tuple[ComparedPlan, ...] = ()
    frontier: tuple[tuple[int, float], ...] = ()

    def to_items(self) -> dict[str, Any]:
        """Return the plans as JSON objects."""
        return {
            "memory_bytes": self.memory_bytes,
            "plans": [[p.seconds, p.peak_bytes, p.is_compiled, p.name] for p in self.plans],
            "frontier": list(map(list, self.frontier)),
        }

    @staticmethod
    def from_items(items: Any) -> ComparedPlans:
        """Return the plans of JSON objects; raises `PlanError` for others."""
        try:
            memory_bytes, plans, frontier = (
                items[name] for name in ("memory_bytes", "plans", "frontier")
            )
            return ComparedPlans(
                _bytes(memory_bytes),
                tuple(_plan(*each) for each in plans),
                tuple((_bytes(peak), _seconds(seconds)) for peak, seconds in frontier),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise PlanError(
                "the plan's `compared` is not what a search for a plan writes",
                hint="remove it: nothing is chosen by it",
            ) from error


def _plan(seconds: Any, peak: Any, is_compiled: Any, name: Any) -> ComparedPlan:
    if not isinstance(is_compiled, bool) or name not in ("", FOUND, OWN):
        raise ValueError(name)
    return ComparedPlan(_seconds(seconds), _bytes(peak), is_compiled, name)


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(value)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(value)
    return value
