"""Events of a trace in the format that Chrome's trace viewer and ui.perfetto.dev open.

A trace has counters, and tracks with slices, which are intervals. The functions take seconds; the
format has microseconds.
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
    title: str, track: int, start: float, length: float, facts: Mapping[str, Any] | None = None
) -> TraceEvent:
    """Return a slice of a track. The viewer shows `facts` when the user selects the slice."""
    placed = {"pid": 1, "tid": track, "ts": _microseconds(start), "dur": _microseconds(length)}
    return {"ph": "X", "name": title, **placed, "args": dict(facts or {})}


BY_LINE = "memory by line"


def memory_counters(start: float, parts: Mapping[str, int]) -> list[TraceEvent]:
    """Return counters of the MiB held from the time `start` on: in all, and by parts."""
    sizes = {name: size / 2**20 for name, size in parts.items()}
    total = {"MiB": sum(parts.values()) / 2**20}
    placed = {"ph": "C", "pid": 1, "ts": _microseconds(start)}
    return [
        {**placed, "name": name, "args": args}
        for name, args in (("memory", total), (BY_LINE, sizes))
    ]


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _named(kind: str, name: str, track: int) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": 1, "tid": track, "args": {"name": name}}
