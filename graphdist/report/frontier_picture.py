"""The picture of a search for a plan: memory against time of the choices that were counted.

A dot is a choice, by its graph; a filled one was compiled, and stands where the compiled step does.
The line joins the choices than which no other is faster with less memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10

from graphdist.passes.compared_plans import FOUND, ComparedPlan, ComparedPlans
from graphdist.report.amounts import size_text, time_text
from graphdist.report.svg_document import svg_document

_WIDTH, _HEIGHT = 640, 320
_LEFT, _TOP, _RIGHT, _BOTTOM = 76, 62, 20, 44
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c2430}.page{fill:#fff}"
    ".title{font-size:16px;font-weight:600}.note{fill:#5a6675}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.axis{stroke:#b9c2cd}.limit{stroke:#c2502e;stroke-dasharray:4 4}"
    ".frontier{fill:none;stroke:#86a8e0;stroke-width:2}"
    ".counted{fill:#fff;stroke:#7d97bd}.compiled{fill:#4a6fa5}.best{fill:#0b6e4f}"
    "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.page{fill:#12161c}.note{fill:#9aa7b8}"
    ".axis{stroke:#45505e}.counted{fill:#12161c}.compiled{fill:#86a8e0}.best{fill:#3ddc97}"
    ".limit{stroke:#f07a55}}"
)


def frontier_picture(compared: ComparedPlans, title: str) -> str:
    """Return the plans of a search as SVG."""
    return _Picture(compared, title).drawn()


class _Picture:
    def __init__(self, compared: ComparedPlans, title: str) -> None:
        self._compared, self._title = compared, title
        peaks = [each.peak_bytes for each in compared.plans]
        peaks += [peak for peak, _ in compared.frontier]
        times = [each.seconds for each in compared.plans]
        times += [seconds for _, seconds in compared.frontier]
        self._peaks = _widened(0, max([*peaks, compared.memory_bytes]))
        self._times = _widened(min(times, default=0.0), max(times, default=1.0))

    def drawn(self) -> str:
        note = "a dot is a choice, counted on its graph; a filled one was compiled"
        return svg_document(
            f"Memory and time of {self._title}",
            (_WIDTH, _HEIGHT),
            _STYLE,
            [
                f'<text class="title" x="16" y="26">{escape(self._title)}</text>',
                f'<text class="note" x="16" y="46">{note}</text>',
                *self._axes(),
                *self._limit(),
                *self._frontier(),
                *map(self._dot, sorted(self._compared.plans, key=_is_found)),
                *self._names(),
            ],
        )

    def _x(self, peak: float) -> float:
        low, high = self._peaks
        return _LEFT + (peak - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, seconds: float) -> float:
        low, high = self._times
        return _HEIGHT - _BOTTOM - (seconds - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def _axes(self) -> Iterator[str]:
        bottom = _HEIGHT - _BOTTOM
        yield f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none"/>'
        for peak in _ticks(self._peaks, 2**30):
            at = f'x="{self._x(peak):.1f}" y="{bottom + 16}"'
            yield f'<text class="note middle" {at}>{peak / 2**30:g} GiB</text>'
        for seconds in _ticks(self._times):
            y = self._y(seconds) + 4
            yield f'<text class="note end" x="{_LEFT - 6}" y="{y:.1f}">{time_text(seconds)}</text>'
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield f'<text class="note middle" x="{middle}" y="{_HEIGHT - 8}">peak of a device</text>'

    def _limit(self) -> Iterator[str]:
        x = self._x(self._compared.memory_bytes)
        yield f'<path class="limit" d="M{x:.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        room = size_text(self._compared.memory_bytes)
        yield f'<text class="note end" x="{x - 6:.1f}" y="{_TOP + 4}">room: {room}</text>'

    def _frontier(self) -> Iterator[str]:
        """Yield the line: with more memory the time stays until the next choice fits."""
        points = [(self._x(peak), self._y(seconds)) for peak, seconds in self._compared.frontier]
        steps = "".join(f"H{x:.1f}V{y:.1f}" for _, (x, y) in pairwise(points))
        if points:
            yield f'<path class="frontier" d="M{points[0][0]:.1f} {points[0][1]:.1f}{steps}"/>'

    def _dot(self, each: ComparedPlan) -> str:
        kind = "compiled" if each.is_compiled else "counted"
        kind = "best" if _is_found(each) else kind
        said = f"{time_text(each.seconds)}, {size_text(each.peak_bytes)}, {kind}"
        at = f'cx="{self._x(each.peak_bytes):.1f}" cy="{self._y(each.seconds):.1f}"'
        radius = 4 if kind == "counted" else 5
        return f'<circle class="{kind}" {at} r="{radius}"><title>{said}</title></circle>'

    def _names(self) -> Iterator[str]:
        for each in self._compared.plans:
            if each.name:
                x, y = self._x(each.peak_bytes), self._y(each.seconds) - 9
                yield f'<text class="middle" x="{x:.1f}" y="{y:.1f}">{each.name}</text>'


def _is_found(each: ComparedPlan) -> bool:
    return each.name == FOUND


def _widened(low: float, high: float) -> tuple[float, float]:
    """Return bounds with a margin, which differ."""
    margin = 0.08 * (high - low) or 0.08 * high or 1.0
    return (low - margin if low else 0.0), high + margin


def _ticks(bounds: tuple[float, float], unit: float = 1.0) -> Sequence[float]:
    """Return round numbers of a unit between bounds, three to eight.

    >>> _ticks((0.9, 3.2))
    [1.0, 1.5, 2.0, 2.5, 3.0]
    """
    low, high = (bound / unit for bound in bounds)
    step = 10.0 ** floor(log10((high - low) / 3))
    step *= next((factor for factor in (5, 2) if (high - low) / (factor * step) >= 3), 1)
    first = -int(-low // step)
    return [round(k * step, 12) * unit for k in range(first, int(high / step) + 1)]
