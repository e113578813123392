"""The nodes of a program as a trace, which chrome://tracing and ui.perfetto.dev open.

It is an estimate and not a measurement: the nodes run one after the other, each as long as a
roofline says (`graphdist.runtime.targets.roofline`), at least a nanosecond. Each replica has a chip
of the kind `CHIP`, or a topology is named. The memory traffic is counted by `graphdist.ir.cost`:
XLA fuses elementwise work. A loop takes the time of all its trips. Collectives have a separate
track; a counter shows memory.
"""

from __future__ import annotations

import json
from typing import Any  # Any: JSON

from graphdist.runtime.targets.chips import CHIPS
from graphdist.runtime.targets.roofline import Roofline
from graphdist.runtime.targets.topologies import Topology
from graphdist.viz.model import Model, Record, memory_timeline, model_of, node_estimate
from graphdist.viz.program import ShownProgram

CHIP = "v5e"
"""The chip whose published peaks are used if no topology is named."""
_COMPUTE, _COLLECTIVES = 1, 2


def render(program: ShownProgram, topology: Topology | None = None) -> str:
    """Return the schedule of the last graph as trace events in JSON."""
    model = model_of(program.graph)
    topology = (
        topology or program.topology or Topology(CHIPS[CHIP], (program.graph.num_replicas, 1))
    )
    events: list[dict[str, Any]] = [
        _name("process_name", f"{program.graph.name}, estimated for {topology}", 0),
        _name("thread_name", "compute", _COMPUTE),
        _name("thread_name", "collectives", _COLLECTIVES),
    ]
    now = 0
    for position, held in memory_timeline(model).steps:
        record = model.records[position]
        assert record.node is not None
        estimate = node_estimate(record.node, topology)
        duration = max(1, round(estimate.step * 1e9))
        events.append(
            {
                "name": f"{record.facts.op} {record.id}",
                "cat": "collective" if record.facts.is_collective else "compute",
                "ph": "X",
                "ts": now / 1000,
                "dur": duration / 1000,
                "pid": 1,
                "tid": _COLLECTIVES if record.facts.is_collective else _COMPUTE,
                "args": _arguments(model, record, estimate),
            }
        )
        held_now = {"bytes": held}
        events.append({"name": "memory", "ph": "C", "ts": now / 1000, "pid": 1, "args": held_now})
        now += duration
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    return json.dumps(trace, ensure_ascii=False, indent=1) + "\n"


def _name(kind: str, name: str, thread: int) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}


def _arguments(model: Model, record: Record, estimate: Roofline) -> dict[str, Any]:
    return {
        "text": model.text(record),
        "flops": record.facts.flops,
        "bytes": record.facts.bytes,
        "bound by": estimate.bottleneck,
        "source": record.facts.place,
        "pass": record.facts.origin,
    }
