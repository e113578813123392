"""An estimated schedule of a program's nodes, as trace events of Chrome and Perfetto.

chrome://tracing and ui.perfetto.dev open the file. Nothing is measured. In the schedule the nodes
run one after the other. A node takes the time that it would take alone
(`graphdist.runtime.timing.graph_timeline`), at least a nanosecond. A loop takes the time of all its
iterations. If the user names no topology, each replica has one chip of the kind `CHIP`. The memory
traffic is counted by `graphdist.ir.cost`. Elementwise operations have no traffic, because XLA fuses
them. Collectives have a track of their own, and a counter shows the bytes held.
"""

from __future__ import annotations

import json

from graphdist.report.trace_events import TraceEvent, memory_counter, trace_document, trace_slice
from graphdist.runtime.targets.chips import CHIPS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import Topology
from graphdist.runtime.timing.graph_timeline import seconds_alone
from graphdist.viz.model import memory_timeline, model_of
from graphdist.viz.program import ShownProgram

CHIP = "v5e"
"""The chip whose published peaks are used if no topology is named."""
_COMPUTE, _COLLECTIVES = 1, 2


def render(program: ShownProgram) -> str:
    """Return the schedule of the last graph as trace events in JSON."""
    model = model_of(program.graph)
    topology = program.topology or Topology(CHIPS[CHIP], (program.graph.num_replicas, 1))
    rates = ChipRates.of(topology)
    tracks = {_COMPUTE: "compute", _COLLECTIVES: "collectives"}
    events: list[TraceEvent] = []
    now = 0
    for position, held in memory_timeline(model).steps:
        record = model.records[position]
        assert record.node is not None
        duration = max(1, round(seconds_alone(record.node, rates) * 1e9))
        is_collective = record.facts.collective is not None
        kind, track = ("collective", _COLLECTIVES) if is_collective else ("compute", _COMPUTE)
        title = f"{record.facts.op} {record.id}"
        placed = trace_slice(title, track, now / 1e9, duration / 1e9, model.described(record))
        events += [{**placed, "cat": kind}, memory_counter(now / 1e9, {"bytes": held})]
        now += duration
    name = f"{program.graph.name}, estimated for {topology}"
    schedule = trace_document(name, tracks, events, unit="ns")
    return json.dumps(schedule, ensure_ascii=False, indent=1) + "\n"
