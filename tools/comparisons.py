"""One step several times, side by side: a table of reports.

The step is compiled for several topologies, for more and more chips, or with several values of a
setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import prod
from typing import Any, TypeAlias  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.report.amounts import count_text, fitted_lines, record_table, size_text, time_text
from graphdist.report.report_text import why_not
from graphdist.report.step_report import Report
from graphdist.runtime.targets.chips import Chip
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tracing.user_lines import here

Reporter: TypeAlias = Callable[..., Report]


@dataclass(frozen=True)
class Survey:
    """Reports under names, as a table."""

    title: str
    reports: tuple[tuple[str, Report], ...]
    fits: bool
    verdict: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the survey as JSON."""
        return {
            "title": self.title,
            "fits": self.fits,
            "verdict": self.verdict,
            "reports": {name: report.to_json() for name, report in self.reports},
        }

    def __str__(self) -> str:
        rows = record_table([_row(name, report) for name, report in self.reports])
        is_compiled = all(report.is_compiled for _, report in self.reports)
        lines = [self.title, *(f"  {row}" for row in rows), _METHOD if is_compiled else _BY_GRAPHS]
        lines += [self.verdict] if self.verdict else []
        lines += [] if self.fits else why_not(self.reports[0][1])
        return "\n".join(fitted_lines(lines))


_METHOD = (
    "  `step` is PREDICTED from the schedules of the compiled modules, not measured; `compute` is "
    "its share that computes. A step that does not fit has none."
)
_BY_GRAPHS = (
    "  Nothing was compiled: memory and time are counted on the graphs. `step` is PREDICTED, not "
    "measured; `compute` is its share that computes."
)


def _row(name: str, report: Report) -> dict[str, str]:
    timeline = None if report.refusal else report.timeline
    share = report.needed_bytes / report.available_bytes if report.available_bytes else 0
    return {
        "": name,
        "devices": str(report.num_devices),
        "fits": f"{'yes' if report.fits else 'NO'} {share:.0%}",
        "peak": size_text(report.needed_bytes),
        "FLOP": count_text(report.total_flops).rstrip(),
        "carried": size_text(sum(report.collective_bytes.values())),
        "step": time_text(timeline.step) if timeline else "",
        "compute": f"{timeline.efficiency:.0%}" if timeline else "",
    }


def compare_topologies(title: str, topologies: Sequence[Topology], report: Reporter) -> Survey:
    """Return the step on several topologies; the survey fits if the step fits on any."""
    reports = tuple((str(topology), report(topology)) for topology in topologies)
    return Survey(title, reports, any(each.fits for _, each in reports))


_RANGE = re.compile(r"(\w+)=(\d{1,18})\.\.(\d{1,18})")


def find_largest(
    text: str, topology: Topology, report: Reporter, settings: Collection[str] = ()
) -> Survey:
    """Return a survey that finds the largest value of a setting with which the step fits.

    The search bisects: a step that fits with a value is assumed to fit with every smaller value.
    `settings` are the names of settings that have values already.
    """
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2]) > int(match[3]) or int(match[2]) < 1:
        form = f"{text!r} is not of the form name=low..high"
        raise ArgumentError(form, hint="such as batch=1..64")
    name, low, high = match[1], int(match[2]), int(match[3])
    if name in settings:
        raise ArgumentError(f"--fit and --set both give {name}: leave one of them out")
    tried: dict[int, Report] = {}

    def fits(value: int) -> bool:
        tried[value] = report(topology, **{name: value})
        return tried[value].fits

    any_fits = fits(low)
    if any_fits and high > low and fits(high):
        low = high
    while any_fits and high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    verdict = f"largest that fits: {name}={low}" if any_fits else f"not even {name}={low} fits"
    if not all(report.is_compiled for report in tried.values()):
        verdict += ", by its graph: nothing was compiled"
    reports = tuple((f"{name}={value}", tried[value]) for value in sorted(tried))
    return Survey(f"{name} on {topology}", reports, any_fits, verdict)


def topology_of(chip: Chip, size: str, num_slices: int = 1) -> Topology:
    """Return the topology of `size` chips whose sides differ least, in slices of equal size.

    >>> from graphdist.runtime.targets.chips import CHIPS
    >>> str(topology_of(CHIPS["v5e"], "128")), str(topology_of(CHIPS["v5p"], "128", 2))
    ('v5e:8x16', '2 slices of v5p:4x4x4')
    """
    if not size.isdecimal() or int(size) < 1:
        raise ArgumentError(f"{size!r} is no number of chips")
    count, rest = divmod(int(size), max(num_slices, 1))
    if rest:
        raise ArgumentError(
            f"--scale {size} does not divide by --num-slices {num_slices}: it says how many chips "
            f"all slices have together, so give multiples of {num_slices}"
        )
    if chip.platform == "gpu":
        hosts = max(count // chip.chips_per_host, 1)
        shapes: list[tuple[int, ...]] = [(hosts, count // hosts)] if count % hosts == 0 else []
    else:
        shapes = [shape for shape in _shapes(count, chip.dimensions) if _has_full_hosts(shape)]
    if not shapes:
        what = f"there is no shape of {count} chips of {chip.name}"
        raise ArgumentError(what, hint="give powers of 2")
    best = min(shapes, key=lambda shape: (max(shape) - min(shape), -min(*shape[:2], 2), shape))
    return find_topology(f"{chip.name}:{'x'.join(map(str, best))}", num_slices, at=here())


def _shapes(count: int, dimensions: int) -> list[tuple[int, ...]]:
    """Return the ways to write a number as a product of ascending sides, or of two sides and 1."""
    divisors = [side for side in range(1, count + 1) if count % side == 0]
    sides = combinations_with_replacement(divisors, dimensions)
    shapes = [shape for shape in sides if prod(shape) == count]
    return shapes + [(*flat, 1) for flat in _shapes(count, 2)] if dimensions == 3 else shapes


def _has_full_hosts(shape: tuple[int, ...]) -> bool:
    """Return whether a slice consists of full hosts, 2 x 2 chips, or is smaller than a host."""
    first, second, *_ = shape
    return prod(shape) <= 4 or (first % 2 == 0 and second % 2 == 0)
