"""A report as text: one page for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from graphdist.report.amounts import count_text, size_text, time_text
from graphdist.report.server_requests import request_lines
from graphdist.report.step_memory import UNSEEN
from graphdist.runtime.compilation import HOW_TO_FIT

if TYPE_CHECKING:
    from graphdist.report.collective_uses import CollectiveUse
    from graphdist.report.step_memory import StepMemory
    from graphdist.report.step_report import Report
    from graphdist.report.step_timeline import StepTimeline

LINES_OF_COLLECTIVES = 24
LINES_OF_EXPOSED = 5
LINES_OF_COMPUTE = 20
LINES_OF_MEMORY = 5


def report_text(report: Report) -> str:
    """Return the report as text."""
    flops = ", ".join(f"{count_text(n)}FLOP {dtype}" for dtype, n in report.flops.items())
    lines = [f"{report.name} on {report.target}: {report.num_devices} devices", ""]
    lines += [*_memory(report), ""]
    lines += [f"{count_text(report.total_flops)}FLOP a device a step ({flops})", ""]
    lines += [*_collectives(report), "", *_time(report)]
    lines += (f"warning: {constant}" for constant in report.constants)
    return "\n".join(lines).rstrip()


def verdict(report: Report) -> str:
    """Describe whether the step fits into memory, and by how many bytes."""
    needed, available = report.needed_bytes, report.available_bytes
    if not available:
        counted = "" if report.is_compiled else "NOT COMPILED: by its graph it "
        return f"{counted}needs {size_text(needed)} a device" if report.fits else report.refusal
    share = f"{size_text(needed)} a device, {needed / available:.1%} of {size_text(available)}"
    if not (report.is_compiled or report.refusal):
        return f"NOT COMPILED: by its graph it needs {share}"
    if report.fits:
        return f"FITS: {share}"
    return f"DOES NOT FIT: {share}, {size_text(needed - available)} too much"


def why_not(report: Report) -> Iterator[str]:
    """Yield a hint and the lines that hold most memory, for a step that does not fit."""
    if not report.fits:
        yield f"  hint: {HOW_TO_FIT}"
    if report.memory is not None:
        yield from _most_memory(report.memory)


def _most_memory(memory: StepMemory) -> Iterator[str]:
    counted = ", counted on the graph" if memory.is_counted else ""
    yield f"most memory is held at {memory.line or 'no line'} ({memory.phase}){counted}, of it"
    arrays = [held for held in memory.largest if held.type != UNSEEN]
    for held in arrays[:LINES_OF_MEMORY]:
        several = f" x {held.count}" if held.count > 1 else ""
        line = f"  {size_text(held.bytes):>10}  {held.phase:<8}  {held.type}{several}  {held.line}"
        yield line.rstrip()
    rest = sum(held.bytes for held in arrays[LINES_OF_MEMORY:])
    if rest:
        yield f"  {size_text(rest):>10}  all others"
    for held in memory.largest[len(arrays) :]:
        yield f"  {size_text(held.bytes):>10}  {held.type}"


def _memory(report: Report) -> Iterator[str]:
    yield verdict(report)
    reused = f"{size_text(report.alias_bytes)} of it reused for outputs"
    yield f"  arguments {size_text(report.argument_bytes):>12}   {reused}"
    yield f"  outputs   {size_text(report.output_bytes):>12}"
    yield f"  temporary {size_text(report.temp_bytes):>12}"
    yield f"  peak      {size_text(report.needed_bytes):>12}"
    stored, parts = report.variables, report.parts
    if stored.sliced:
        yield (
            f"  variables {size_text(stored.held_bytes):>12}   of {size_text(stored.full_bytes)}: "
            f"{stored.sliced} of {stored.count} are stored sharded"
        )
    if parts is not None:
        yield (
            f"  counted   {size_text(parts.total):>12}   variables {size_text(parts.variables)}, "
            f"gathered {size_text(parts.gathered)}, stacked by loops {size_text(parts.stacked)}, "
            f"others {size_text(parts.others)}; on the host {size_text(parts.host)}"
        )
    yield from why_not(report)


def _collectives(report: Report) -> list[str]:
    largest = sorted(report.collectives, key=lambda use: -use.bytes_a_step)
    if not largest:
        return list(request_lines(report.servers)) or ["no collectives"]
    total = size_text(sum(report.collective_bytes.values()))
    lines = [
        f"{len(largest)} collective{'s' * (len(largest) > 1)} of {total} on each device a step",
        f"compiled: {_module(report)}",
        *map(_collective, largest[:LINES_OF_COLLECTIVES]),
    ]
    left = largest[LINES_OF_COLLECTIVES:]
    if left:
        size = size_text(sum(use.bytes_a_step for use in left))
        lines.append(f"  and {len(left)} smaller ones, {size}")
    return lines


def _module(report: Report) -> str:
    if report.refusal:
        return "there is none, since it was refused"
    if not report.is_compiled:
        return "nothing"
    kinds = report.module_kinds
    texts = [f"{count} {kind} of {size_text(size)}" for kind, count, size in kinds]
    return ", ".join(texts) or "there are none"


def _collective(use: CollectiveUse) -> str:
    times = f" x {use.times}" if use.times > 1 else ""
    times += f" every {use.every} steps" if use.every > 1 else ""
    over = f", over {use.links}" if use.links else ""
    return (
        f"  {use.title:<16} {use.dtype:<5}{size_text(use.bytes):>11}{times}  "
        f"{use.pass_name or 'the program'}, {use.place}  -> {use.became}{over}"
    )


def _time(report: Report) -> Iterator[str]:
    """Yield the timeline of the step, if it is on a topology."""
    if report.timeline is not None:
        yield from timeline_lines(report.timeline, report.no_timeline)


def _part(name: str, seconds: float, what: str) -> str:
    return f"  {name:<12} {time_text(seconds):>10}   {what}"


def timeline_lines(timeline: StepTimeline, why: str = "") -> Iterator[str]:
    """Yield the lines of a timeline. `why` is the reason why it is the graph's."""
    step, low, high = map(time_text, (timeline.seconds, timeline.low, timeline.high))
    counted = "; counted on the graph" * (not timeline.is_compiled) + f", since {why}" * bool(why)
    yield f"PREDICTED, no measurement: {step} a step, {low} to {high} ({timeline.fitted}{counted})"
    reach = f"the model's own operations reach {timeline.utilization:.1%} of the peak"
    yield _part("compute", timeline.compute, reach)
    yield _part("exposed", timeline.exposed, "communication that nothing hides")
    yield _part("waits", timeline.idle, "for copies between memories")
    exposed = [each for each in timeline.collectives if each.exposed]
    for each in exposed[:LINES_OF_EXPOSED]:
        runs = f" x {each.runs}" if each.runs > 1 else ""
        share = f"{time_text(each.exposed):>10} of {time_text(each.seconds):>10} exposed"
        over = f" over {each.links}" if each.links else ""
        yield f"  {share}  {each.kind}{runs}{over}, {each.name}  {each.line}".rstrip()
    yield "lines that compute longest"
    for spent in timeline.lines[:LINES_OF_COMPUTE]:
        yield f"  {time_text(spent.seconds):>10}  {spent.phase:<8}  {spent.line or 'no line'}"
