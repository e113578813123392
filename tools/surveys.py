"""Many compilations of one step: the largest batch that fits, topologies or sizes side by side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.program.amounts import count_text, size_text, time_text
from graphdist.program.report import Report
from graphdist.runtime.targets.chips import CHIPS, Chip
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tracing.user_lines import here

Reporter: TypeAlias = Callable[..., Report]

_RANGE = re.compile(r"(\w+)=(\d+)\.\.(\d+)")


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
                "times and efficiency are ESTIMATES from published peaks: "
                "step = max(compute, memory) + interconnect",
                *([self.verdict] if self.verdict else []),
            ]
        )


_HEADER = ["", "devices", "fits", "peak", "of memory", "FLOP", "collectives", "step", "most of it"]
_HEADER += ["efficiency"]


def _row(name: str, report: Report) -> list[str]:
    estimate = report.estimate
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


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def compare_topologies(names: Sequence[str], num_slices: int, report: Reporter) -> Survey:
    """Return the step on several topologies; the survey fits if the step fits on any."""
    topologies = [find_topology(name, num_slices) for name in names]
    reports = tuple((str(topology), report(topology)) for topology in topologies)
    return Survey("one step on several topologies", reports, any(r.fits for _, r in reports))


def compare_sizes(chip: Chip, sizes: Sequence[str], report: Reporter) -> Survey:
    """Return the step on several numbers of chips; the survey fits if the step fits on any."""
    topologies = [topology_of(chip, size) for size in sizes]
    reports = tuple((str(topology), report(topology)) for topology in topologies)
    title = f"one step on more and more chips of {chip.name}"
    return Survey(title, reports, any(r.fits for _, r in reports))


def topology_of(chip: Chip, size: str) -> Topology:
    """Return the topology of that many chips whose sides differ least.

    >>> str(topology_of(CHIPS["v5e"], "128")), str(topology_of(CHIPS["v5p"], "128"))
    ('v5e:8x16', 'v5p:4x4x8')
    """
    if not size.isdigit() or int(size) < 1:
        raise ArgumentError(f"{size!r} is no number of chips", source=here())
    count = int(size)
    if chip.platform == "gpu":
        hosts = max(count // chip.chips_per_host, 1)
        shapes: list[tuple[int, ...]] = [(hosts, count // hosts)] if count % hosts == 0 else []
    else:
        shapes = [shape for shape in _shapes(count, chip.dimensions) if _has_full_hosts(shape)]
    if not shapes:
        raise ArgumentError(
            f"there is no topology of {count} chips of {chip.name}",
            source=here(),
            hint="give powers of 2",
        )
    best = min(shapes, key=lambda shape: (max(shape) - min(shape), -min(*shape[:2], 2), shape))
    return find_topology(f"{chip.name}:{'x'.join(map(str, best))}", at=here())


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


def find_largest(text: str, topology: Topology, report: Reporter) -> Survey:
    """Return the survey of the largest value of a setting with which the step fits, by bisection.

    A step that fits with a value is assumed to fit with every smaller one.
    """
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2]) > int(match[3]) or int(match[2]) < 1:
        raise ArgumentError(
            f"{text!r} is not of the form name=low..high", source=here(), hint="such as batch=1..64"
        )
    name, low, high = match[1], int(match[2]), int(match[3])
    tried: dict[int, Report] = {}

    def fits(value: int) -> bool:
        tried[value] = report(topology, **{name: value})
        return tried[value].fits

    best = 0
    if fits(low):
        best = low
        if high > low and fits(high):
            best = low = high
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                best = low = middle
            else:
                high = middle
    verdict = f"largest that fits: {name}={best}" if best else f"not even {name}={low} fits"
    reports = tuple((f"{name}={value}", tried[value]) for value in sorted(tried))
    return Survey(f"{name} on {topology}", reports, bool(best), verdict)


def topology_table(*, as_json: bool) -> str:
    """Return the table of chips and topologies, with the sources of its figures."""
    if as_json:
        return json.dumps({chip.name: _figures(chip) for chip in CHIPS.values()}, indent=1)
    header = [
        "chip",
        "devices",
        "most chips",
        "memory",
        "memory/s",
        "bf16 FLOP/s",
        "link/s",
        "net/s",
    ]
    rows = [
        [
            chip.name,
            str(chip.devices),
            str(chip.largest),
            size_text(chip.memory_bytes),
            f"{chip.memory_bandwidth / 1e9:.0f} GB",
            count_text(chip.peak("bf16")),
            f"{chip.interconnect_bandwidth / 1e9:.0f} GB",
            f"{chip.network_bandwidth / 1e9:.1f} GB",
        ]
        for chip in CHIPS.values()
    ]
    notes = [
        f"{chip.name:<6} {', '.join(chip.examples)}\n       {chip.source}"
        for chip in CHIPS.values()
    ]
    return "\n".join(
        [
            *table([header, *rows]),
            "",
            "Figures are of a chip; links and network in one direction. TPU topologies are",
            "chips in a torus, GPU topologies hosts x GPUs, in any shape of whole hosts.",
            "",
            *notes,
        ]
    )


def _figures(chip: Chip) -> dict[str, Any]:
    return {
        "devices": chip.devices,
        "largest": chip.largest,
        "memory_bytes": chip.memory_bytes,
        "memory_bandwidth": chip.memory_bandwidth,
        "peak_flops": chip.peak_flops,
        "interconnect_bandwidth": chip.interconnect_bandwidth,
        "network_bandwidth": chip.network_bandwidth,
        "examples": list(chip.examples),
        "source": chip.source,
    }
