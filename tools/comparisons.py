"""One step on several topologies, or on more and more chips, side by side: a table of reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.report.amounts import count_text, size_text, table, time_text
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
        """Return the survey as JSON has it."""
        return {
            "title": self.title,
            "fits": self.fits,
            "verdict": self.verdict,
            "reports": {name: report.to_json() for name, report in self.reports},
        }

    def __str__(self) -> str:
        rows = [_row(name, report) for name, report in self.reports]
        lines = table([_HEADER, *rows])
        return "\n".join(
            [
                self.title,
                *lines,
                _METHOD if all(r.timeline for _, r in self.reports) else _FROM_PEAKS,
                *([self.verdict] if self.verdict else []),
                *([] if self.fits else why_not(self.reports[0][1])),
            ]
        )


_METHOD = "times and efficiency are PREDICTED from the compiled modules' schedules, not measured"
_FROM_PEAKS = (
    "times and efficiency are ESTIMATES, some from published peaks: "
    "step = max(compute, memory) + interconnect"
)
_HEADER = ["", "devices", "fits", "peak", "of memory", "FLOP", "collectives", "step", "most of it"]
_HEADER += ["efficiency"]


def _row(name: str, report: Report) -> list[str]:
    estimate = report.timeline or report.estimate
    share = report.needed_bytes / report.available_bytes if report.available_bytes else 0
    return [
        name,
        str(report.num_devices),
        "yes" if report.fits else "NO",
        size_text(report.needed_bytes),
        f"{share:.0%}",
        count_text(report.total_flops).rstrip(),
        size_text(sum(report.collective_bytes.values())),
        time_text(estimate.step) if estimate else "",
        estimate.bottleneck if estimate else "",
        f"{estimate.efficiency:.0%}" if estimate else "",
    ]


def compare_topologies(names: Sequence[str], num_slices: int, report: Reporter) -> Survey:
    """Return the step on several topologies; the survey fits if the step fits on any."""
    topologies = [find_topology(name, num_slices) for name in names]
    reports = tuple((str(topology), report(topology)) for topology in topologies)
    return Survey("one step on several topologies", reports, any(r.fits for _, r in reports))


def compare_sizes(chip: Chip, sizes: Sequence[str], num_slices: int, report: Reporter) -> Survey:
    """Return the step on several numbers of chips; the survey fits if the step fits on any."""
    topologies = [topology_of(chip, size, num_slices) for size in sizes]
    reports = tuple((str(topology), report(topology)) for topology in topologies)
    title = f"one step on more and more chips of {chip.name}"
    return Survey(title, reports, any(r.fits for _, r in reports))


def topology_of(chip: Chip, size: str, num_slices: int = 1) -> Topology:
    """Return the topology of that many chips whose sides differ least, in slices of equal size.

    >>> from graphdist.runtime.targets.chips import CHIPS
    >>> str(topology_of(CHIPS["v5e"], "128")), str(topology_of(CHIPS["v5p"], "128", 2))
    ('v5e:8x16', '2 slices of v5p:4x4x4')
    """
    if not size.isdecimal() or int(size) < 1:
        raise ArgumentError(f"{size!r} is no number of chips", source=here())
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
        raise ArgumentError(
            f"there is no shape of {count} chips of {chip.name}",
            source=here(),
            hint="give powers of 2",
        )
    best = min(shapes, key=lambda shape: (max(shape) - min(shape), -min(*shape[:2], 2), shape))
    return find_topology(f"{chip.name}:{'x'.join(map(str, best))}", num_slices, at=here())


def _shapes(count: int, dimensions: int) -> list[tuple[int, ...]]:
    """Return the ways to write a number as a product of ascending sides."""
    if dimensions == 1:
        return [(count,)]
    return [
        (side, *rest)
        for side in range(1, count + 1)
        if count % side == 0 and side**dimensions <= count
        for rest in _shapes(count // side, dimensions - 1)
        if rest[0] >= side
    ] + ([(*rest, 1) for rest in _shapes(count, 2)] if dimensions == 3 else [])


def _has_full_hosts(shape: tuple[int, ...]) -> bool:
    """Return whether a slice consists of full hosts, 2 x 2 chips, or is smaller than a host."""
    first, second, *_ = shape
    return prod(shape) <= 4 or (first % 2 == 0 and second % 2 == 0)
