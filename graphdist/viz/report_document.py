"""A report as JSON for the page: whether the step fits, its collectives, its predicted time.

Seconds and bytes are numbers, which the page writes as text. Lists have the largest entries only.
`lanes` are the slices of the predicted timeline, as `graphdist.report.timeline_trace` makes them
for Perfetto. A slice has a track, start and length in microseconds, a title, a line, a part of the
step, and the seconds of communication that no computation hides. `memory_by_line` has the bytes
held at moments of the step: the microseconds, and the bytes of each line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any  # Any: JSON

from graphdist.report.step_memory import UNSEEN, StepMemory
from graphdist.report.step_report import Report
from graphdist.report.step_timeline import StepTimeline
from graphdist.report.timeline_trace import trace_of
from graphdist.report.trace_events import BY_LINE
from graphdist.viz.model import rounded_seconds

MOST_COLLECTIVES = 300
MOST_LINES = 60
MOST_SLICES = 6000
MOST_MOMENTS = 1200


def report_document(report: Report) -> dict[str, Any]:
    """Return a report as JSON for the page. A report without a compiled module has no timeline."""
    timeline = report.timeline
    return {
        "target": report.target,
        "fits": report.fits,
        "memory": {
            "available": report.available_bytes,
            "peak": report.needed_bytes,
            "arguments": report.argument_bytes,
            "outputs": report.output_bytes,
            "reused": report.alias_bytes,
            "temporary": report.temp_bytes,
        },
        "flops": report.total_flops,
        "compiled": list(map(list, report.module_kinds)),
        "collectives": _collectives(report),
        "warnings": [str(constant) for constant in report.constants],
        "time": _time(report),
        **(_held(report.memory) if report.memory else {}),
        **(_timeline(timeline, report.name) if timeline else {}),
    }


def _held(memory: StepMemory) -> dict[str, Any]:
    rows = [list(astuple(held)) for held in memory.largest]
    held = {"line": memory.line, "phase": memory.phase, "largest": rows}
    return {"held": {**held, "is_counted": memory.is_counted}}


def _collectives(report: Report) -> list[dict[str, Any]]:
    largest = sorted(report.collectives, key=lambda use: (-use.seconds, -use.bytes_a_step))
    return [
        {
            "kind": use.title,
            "bytes": use.bytes_a_step,
            "times": use.times / use.every if use.every > 1 else use.times,
            "seconds": rounded_seconds(use.seconds),
            "origin": use.pass_name,
            "line": use.place if ":" in use.place else "",  # the place may be unknown
            "became": use.became,
        }
        for use in largest[:MOST_COLLECTIVES]
    ]


def _time(report: Report) -> dict[str, Any] | None:
    """Return the predicted time of a step; None without a topology."""
    timeline = report.timeline
    if timeline is None:
        return None
    reach = f"the model's own operations reach {timeline.utilization:.1%} of the peak"
    parts = [
        ["compute", timeline.compute, reach],
        ["repeated", timeline.repeated, "of it the compiler repeats, since it lacks memory"],
        ["exposed", timeline.exposed, "communication that nothing hides"],
        ["copies", timeline.idle, "waits for copies between memories"],
    ]
    of_graph = "" if timeline.is_compiled else f"; by the graph, since {report.no_timeline}"
    return {
        "step": timeline.seconds,
        "low": timeline.low,
        "high": timeline.high,
        "by": timeline.fitted + of_graph,
        "parts": [part for part in parts if part[1]],
    }


def _timeline(timeline: StepTimeline, name: str) -> dict[str, Any]:
    trace = trace_of(timeline, name, MOST_SLICES)["traceEvents"]
    return {
        "lines": [
            [each.line, each.phase, rounded_seconds(each.seconds)]
            for each in timeline.lines[:MOST_LINES]
        ],
        "tracks": [
            event["args"]["name"].removesuffix(" (predicted)")
            for event in trace
            if event["name"] == "thread_name"
        ],
        "lanes": [_slice(event) for event in trace if event["ph"] == "X"],
        "memory_by_line": _memory_by_line(trace),
    }


def _memory_by_line(trace: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the bytes held over the step: of several moments in a row the one that holds most."""
    counters = [event for event in trace if event["name"] == BY_LINE]
    most: Counter[str] = Counter()
    for event in counters:
        most |= Counter(event["args"])
    lines = [*(line for line, _ in most.most_common() if line != UNSEEN), UNSEEN]
    size = -(-len(counters) // MOST_MOMENTS)
    moments = []
    for number in range(0, len(counters), max(size, 1)):
        several = counters[number : number + size]
        largest = max(several, key=lambda event: sum(event["args"].values()))["args"]
        parts = [round(largest.get(line, 0) * 2**20) for line in lines]
        moments.append([several[0]["ts"], *parts])
    return {"lines": lines, "moments": moments}


def _slice(event: dict[str, Any]) -> list[Any]:
    facts, placed = event["args"], (event["tid"], event["ts"], event["dur"])
    texts = event["name"], facts.get("line", ""), facts.get("phase", "")
    return [*placed, *texts, rounded_seconds(facts.get("exposed seconds", 0.0))]
