"""A report as text: the verdict, then tables, for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from graphdist.report.amounts import (
    NO_BREAK,
    count_text,
    fitted_lines,
    indented_table,
    plural,
    size_text,
)
from graphdist.report.collective_uses import NOT_COMPILED, CollectiveUse
from graphdist.report.server_requests import request_lines
from graphdist.report.timeline_text import timeline_lines
from graphdist.runtime.compilation import HOW_TO_FIT

if TYPE_CHECKING:
    from graphdist.report.step_memory import StepMemory
    from graphdist.report.step_report import Report
    from graphdist.report.verdict import Sentence

MOST_COLLECTIVES = 24


def report_text(report: Report) -> str:
    """Return the report as text."""
    lines = [f"{report.name} on {report.target}, {plural(report.num_devices, 'device')}"]
    lines += [*sentence_table(report.verdict), "", *_memory(report), "", *_flops(report), ""]
    lines += _collectives(report)
    if report.timeline is not None:
        lines += ["", *timeline_lines(report.timeline, report.no_timeline)]
    lines += (f"warning: {constant}" for constant in report.constants)
    return "\n".join(fitted_lines(lines)).rstrip()


def sentence_table(verdict: Iterable[Sentence]) -> list[str]:
    """Return the lines of a verdict."""
    rows = [(each.title.replace(" ", NO_BREAK), str(each)) for each in verdict]
    return indented_table(rows, left=(0, 1))


def why_not(report: Report) -> Iterator[str]:
    """Yield a hint and the lines that hold most memory, for a step that does not fit."""
    if not report.fits:
        yield f"  hint: {HOW_TO_FIT}"
    if report.memory is not None:
        yield from _held(report.memory)


def _memory(report: Report) -> Iterator[str]:
    stored, parts = report.variables, report.parts
    reused = f"{size_text(report.alias_bytes)} of it reused for outputs" * bool(report.alias_bytes)
    rows = [
        ("arguments", report.argument_bytes, reused),
        ("outputs", report.output_bytes, ""),
        ("temporary", report.temp_bytes, ""),
        ("peak", report.needed_bytes, ""),
    ]
    if stored.sliced:
        sharded = f"{stored.sliced} of {stored.count} are stored sharded"
        rows.append(
            ("variables", stored.held_bytes, f"of {size_text(stored.full_bytes)}: {sharded}")
        )
    if parts is not None:
        named = {
            "variables": parts.variables,
            "gathered": parts.gathered,
            "stacked by loops": parts.stacked,
            "others": parts.others,
            "on the host": parts.host,
        }
        text = ", ".join(f"{name} {size_text(size)}" for name, size in named.items() if size)
        rows.append(("by its graph", parts.total, text))
    yield "Memory of a device"
    yield from indented_table([(name, size_text(n), text) for name, n, text in rows], left=(0, 2))
    yield from why_not(report)


def _held(memory: StepMemory) -> Iterator[str]:
    place = f", {memory.line} ({memory.phase})" if memory.line else ""
    yield f"Held at the peak{place}{', by the graph' if memory.is_counted else ''}"
    rows = []
    for held in memory.largest:
        several = f" x {held.count}" if held.count > 1 else ""
        rows.append((size_text(held.bytes), held.phase, f"{held.type}{several}", held.line))
    yield from indented_table(rows, left=(1, 2, 3))


def _flops(report: Report) -> Iterator[str]:
    yield f"Operations: {count_text(report.total_flops)}FLOP a device a step"
    rows = [(dtype, f"{count_text(count)}FLOP") for dtype, count in report.flops.items()]
    yield from indented_table(rows)


def _collectives(report: Report) -> Iterator[str]:
    if not report.collectives:
        yield from request_lines(report.servers) if report.servers else ["No collectives"]
        return
    total = size_text(sum(report.collective_bytes.values()))
    number = plural(len(report.collectives), "collective")
    yield f"{number}, {total} of operands on each device a step"
    rows = [*_equal_collectives(report.collectives)]
    yield from indented_table(
        [(size_text(size), text) for size, text in rows[:MOST_COLLECTIVES]], left=(1,)
    )
    rest = rows[MOST_COLLECTIVES:]
    if rest:
        yield f"  and {len(rest)} smaller ones, {size_text(sum(size for size, _ in rest))}"
    if report.is_compiled and not report.refusal:
        kinds = [f"{number} {kind} of {size_text(n)}" for kind, number, n in report.module_kinds]
        yield f"  compiled: {', '.join(kinds) or 'there are none'}"


def _equal_collectives(uses: Iterable[CollectiveUse]) -> Iterator[tuple[int, str]]:
    """Yield the bytes and the text of collectives, those that differ in nothing as one."""

    def described(use: CollectiveUse) -> tuple[int, str]:
        times = f" x {use.times}" if use.times > 1 else ""
        times += f" every {use.every} steps" if use.every > 1 else ""
        over = f", over {use.links}" if use.links else ""
        made = f"{use.pass_name or 'the program'}, {use.place}{over}"
        text = f"{use.title} {use.dtype}, {size_text(use.bytes)}{times}, by {made}"
        return -use.bytes_a_step, text

    for (size, text), group in groupby(sorted(uses, key=described), key=described):
        became = [use.became for use in group]
        several = f"{len(became)} of " if len(became) > 1 else ""
        compiled = "; ".join(dict.fromkeys(became))
        arrow = "" if compiled == NOT_COMPILED else f" -> {compiled}"
        yield -size * len(became), f"{several}{text}{arrow}"
