"""A report as text: one page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphdist.report.amounts import count_text, size_text, time_text
from graphdist.runtime.compilation import HOW_TO_FIT

if TYPE_CHECKING:
    from graphdist.report.collective_uses import CollectiveUse
    from graphdist.report.step_memory import StepMemory
    from graphdist.report.step_report import Report

LINES_OF_COLLECTIVES = 24
LINES_OF_EXPOSED = 5
LINES_OF_COMPUTE = 20
LINES_OF_MEMORY = 5


def report_text(report: Report) -> str:
    """Return the report as text."""
    return "\n".join(
        [
            f"{report.name} on {report.target}: {report.num_devices} devices",
            "",
            *_memory(report),
            "",
            f"{count_text(report.total_flops)}FLOP a device a step"
            f" ({', '.join(f'{count_text(n)}FLOP {dtype}' for dtype, n in report.flops.items())})",
            "",
            *_collectives(report),
            *_timeline(report),
            *_estimate(report),
            *(f"warning: {constant}" for constant in report.constants),
        ]
    ).rstrip()


def verdict(report: Report) -> str:
    """Describe whether the step fits into memory, and by how many bytes."""
    needed, available = report.needed_bytes, report.available_bytes
    if not available:
        return f"needs {size_text(needed)} a device" if report.fits else report.refusal
    share = f"{needed / available:.1%} of {size_text(available)}"
    if report.fits:
        return f"FITS: {size_text(needed)} a device, {share}"
    return (
        f"DOES NOT FIT: {size_text(needed)} a device, {share}, "
        f"{size_text(needed - available)} too much"
    )


def why_not(report: Report) -> Iterator[str]:
    """Yield a hint for a step that does not fit, and the lines that hold most memory in it."""
    if not report.fits:
        yield f"  hint: {HOW_TO_FIT}"
        if report.memory is not None:
            yield from _most_memory(report.memory, ", counted on the graph")


def _most_memory(memory: StepMemory, counted: str = "") -> Iterator[str]:
    yield f"most memory is held at {memory.line or 'no line'} ({memory.phase}){counted}, of it"
    for held in memory.largest[:LINES_OF_MEMORY]:
        several = f" x {held.count}" if held.count > 1 else ""
        line = f"  {size_text(held.bytes):>10}  {held.phase:<8}  {held.type}{several}  {held.line}"
        yield line.rstrip()


def _memory(report: Report) -> Iterator[str]:
    yield verdict(report)
    reused = f"{size_text(report.alias_bytes)} of it reused for outputs"
    yield f"  arguments {size_text(report.argument_bytes):>12}   {reused}"
    yield f"  outputs   {size_text(report.output_bytes):>12}"
    yield f"  temporary {size_text(report.temp_bytes):>12}"
    yield f"  peak      {size_text(report.needed_bytes):>12}"
    stored = report.variables
    if stored.sliced:
        yield (
            f"  variables {size_text(stored.held_bytes):>12}   of {size_text(stored.full_bytes)}: "
            f"{stored.sliced} of {stored.count} are stored sharded"
        )
    if report.parts is not None:
        parts = report.parts
        yield (
            f"  counted   {size_text(parts.total):>12}   variables {size_text(parts.variables)}, "
            f"slices of gradients {size_text(parts.gradients)}, saved for the way back "
            f"{size_text(parts.saved)}, unsharded {size_text(parts.full)}"
        )
    yield from why_not(report)


def _collectives(report: Report) -> Iterator[str]:
    if not report.collectives:
        yield "no collectives"
        yield ""
        return
    total = sum(report.collective_bytes.values())
    yield (
        f"{len(report.collectives)} collective{'s' * (len(report.collectives) > 1)}, "
        f"{size_text(total)} from each device a step"
    )
    yield f"compiled: {_module(report)}"
    largest = sorted(report.collectives, key=lambda use: -use.bytes_a_step)
    for use in largest[:LINES_OF_COLLECTIVES]:
        yield _collective(use)
    left = largest[LINES_OF_COLLECTIVES:]
    if left:
        yield f"  and {len(left)} smaller ones, {size_text(sum(u.bytes_a_step for u in left))}"
    yield ""


def _module(report: Report) -> str:
    if report.refusal:
        return "there is none, since it was refused"
    by_kind = report.module_bytes
    kinds = [found.kind for found in report.module_collectives]
    return (
        ", ".join(
            f"{kinds.count(kind)} {kind} of {size_text(size)}" for kind, size in by_kind.items()
        )
        or "there are none"
    )


def _collective(use: CollectiveUse) -> str:
    times = f" x {use.times}" if use.times > 1 else ""
    times += f" every {use.every} steps" if use.every > 1 else ""
    kind = f"{use.kind} {use.reducer}".strip()
    made_by = use.pass_name or "the program"
    return (
        f"  {kind:<16} {use.dtype:<5}{size_text(use.bytes):>11}{times}  {made_by}, "
        f"{_short(use.source)}  -> {use.became}"
    )


def _short(source: str) -> str:
    return source.rpartition("/")[2]


def _estimate(report: Report) -> Iterator[str]:
    estimate = report.estimate
    if estimate is None or report.timeline is not None:
        return
    yield (
        f"ESTIMATE, no measurement: {time_text(estimate.step)} a step, most of it "
        f"{estimate.bottleneck}"
    )
    yield f"  compute      {time_text(estimate.compute):>10}   FLOPs / peak FLOP/s"
    yield f"  memory       {time_text(estimate.memory):>10}   bytes moved / memory bandwidth"
    yield f"  interconnect {time_text(estimate.interconnect):>10}   bytes a ring sends / bandwidth"
    yield "  step = max(compute, memory) + interconnect, at the vendor's published peaks"
    if report.no_timeline:
        yield f"  there is no timeline: {report.no_timeline}"


def _timeline(report: Report) -> Iterator[str]:
    timeline = report.timeline
    if timeline is None:
        return
    yield (
        f"PREDICTED, no measurement: {time_text(timeline.seconds)} a step, "
        f"{time_text(timeline.low)} to {time_text(timeline.high)} ({timeline.fitted})"
    )
    yield (
        f"  compute      {time_text(timeline.compute):>10}   the model's own operations reach "
        f"{timeline.utilization:.1%} of the peak"
    )
    yield f"  exposed      {time_text(timeline.exposed):>10}   communication that nothing hides"
    yield f"  waits        {time_text(timeline.idle):>10}   for copies between memories"
    exposed = [each for each in timeline.collectives if each.exposed]
    for collective in exposed[:LINES_OF_EXPOSED]:
        runs = f" x {collective.runs}" if collective.runs > 1 else ""
        exposed_text, of_text = time_text(collective.exposed), time_text(collective.seconds)
        yield (
            f"  {exposed_text:>10} of {of_text:>10} exposed  "
            f"{collective.kind}{runs}, {collective.name}  {collective.line}".rstrip()
        )
    yield from _most_memory(timeline.memory)
    yield "lines that compute longest"
    for spent in timeline.lines[:LINES_OF_COMPUTE]:
        yield f"  {time_text(spent.seconds):>10}  {spent.phase:<8}  {spent.line or 'no line'}"
