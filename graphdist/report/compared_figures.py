"""Counts, sizes and times of two programs, compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from graphdist.report.amounts import count_text, size_text, time_text

_TEXTS: Mapping[str, Callable[[float], str]] = {
    "": "{:,}".format,
    "count": lambda number: count_text(number).rstrip(),
    "bytes": size_text,
    "seconds": time_text,
}


@dataclass(frozen=True)
class ComparedFigure:
    """A count, size or time of two programs.

    `unit` is "", "count" for large counts, "bytes" or "seconds".

    >>> print(ComparedFigure("peak", "bytes", 2048, 3072))
    2.00 KiB -> 3.00 KiB (+50.0%)
    """

    name: str
    unit: str
    before: float
    after: float

    @property
    def growth(self) -> float:
        """Return the relative growth: negative for a fall, infinite for growth from 0."""
        if self.before:
            return self.after / self.before - 1
        return inf if self.after else 0.0

    @property
    def growth_text(self) -> str:
        """Return the growth as a percentage: "new" if the figure was 0, "" if both are equal."""
        if self.before == self.after:
            return ""
        return "new" if self.growth == inf else f"{self.growth:+.1%}"

    @property
    def texts(self) -> tuple[str, str]:
        """Return the figure before and after, as text."""
        return _TEXTS[self.unit](self.before), _TEXTS[self.unit](self.after)

    def __str__(self) -> str:
        growth = f" ({self.growth_text})" if self.growth_text else ""
        return " -> ".join(self.texts) + growth
