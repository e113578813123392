"""Events of a trace in the format that Chrome's trace viewer and ui.perfetto.dev open.

A trace has counters, and tracks with slices, which are intervals. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias  # Any: JSON

TraceEvent: TypeAlias = dict[str, Any]


def trace_document(
    name: str, tracks: Mapping[int, str], events: Iterable[TraceEvent], unit: str = "ms"
) -> dict[str, Any]:
    """Return the trace of a process as a JSON object; `tracks` has names by id.

    `unit` is the unit in which the viewer writes times: "ms" or "ns".
    """
    names = [_named("process_name", name, 0)]
    names += [_named("thread_name", track, number) for number, track in tracks.items()]
    return {"traceEvents": [*names, *events], "displayTimeUnit": unit}


def trace_slice(
    title: str, track: int, start: float, length: float, facts: Mapping[str, Any]
) -> TraceEvent:
    """Return a slice of a track; the viewer shows `facts` when the user selects it."""
    placed = {"pid": 1, "tid": track, "ts": start, "dur": length}
    return {"ph": "X", "name": title, **placed, "args": dict(facts)}


def trace_counter(name: str, start: float, values: Mapping[str, float]) -> TraceEvent:
    """Return the values of a counter from the time `start` on."""
    return {"ph": "C", "name": name, "pid": 1, "ts": start, "args": dict(values)}


def _named(kind: str, name: str, track: int) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}
