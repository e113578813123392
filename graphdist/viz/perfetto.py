"""The schedule as a trace: chrome://tracing and ui.perfetto.dev open it.

It shows the order of the nodes and is not a measurement: a node takes a microsecond for each KiB
that it reads and writes, at least one. Collectives have a separate track; a counter shows memory.
"""

from __future__ import annotations

import json
from typing import Any  # Any: JSON

from graphdist.ir.cost import bytes_touched
from graphdist.viz.memory import timeline
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram

__all__ = ["render"]

_COMPUTE, _COLLECTIVES = 1, 2


def render(program: ShownProgram) -> str:
    """Return the schedule of the last graph as trace events in JSON."""
    model = model_of(program.graph)
    events: list[dict[str, Any]] = [
        _name("process_name", program.graph.name, 0),
        _name("thread_name", "compute", _COMPUTE),
        _name("thread_name", "collectives", _COLLECTIVES),
    ]
    now = 0
    for position, held in timeline(model).steps:
        record = model.records[position]
        assert record.node is not None
        duration = max(1, round(bytes_touched(record.node) / 1024))
        events.append(
            {
                "name": f"{record.facts.op} {record.id}",
                "cat": "collective" if record.facts.is_collective else "compute",
                "ph": "X",
                "ts": now,
                "dur": duration,
                "pid": 1,
                "tid": _COLLECTIVES if record.facts.is_collective else _COMPUTE,
                "args": _arguments(model, record),
            }
        )
        held_now = {"bytes": held}
        events.append({"name": "memory", "ph": "C", "ts": now, "pid": 1, "args": held_now})
        now += duration
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    return json.dumps(trace, ensure_ascii=False, indent=1) + "\n"


def _name(kind: str, name: str, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _arguments(model: Model, record: Record) -> dict[str, Any]:
    return {
        "text": model.text(record),
        "flops": record.facts.flops,
        "bytes": record.facts.bytes,
        "source": record.facts.place,
        "pass": record.facts.origin,
    }
