"""The timeline of a program's report as trace events of Chrome and Perfetto.

chrome://tracing and ui.perfetto.dev open the file. Nothing is measured. Without a report the
timeline is predicted from the last graph, and if the user names no topology, each replica has one
chip of the kind `CHIP`.
"""

from __future__ import annotations

import json

from graphdist.report.step_timeline import timeline_of_graph
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.targets.chips import CHIPS
from graphdist.runtime.targets.topologies import Topology
from graphdist.viz.program import ShownProgram

CHIP = "v5e"
"""The chip whose published peaks are used if no topology is named."""


def render(program: ShownProgram) -> str:
    """Return the timeline of a program as trace events in JSON."""
    topology = program.topology or Topology(CHIPS[CHIP], (program.graph.num_replicas, 1))
    known = program.report.timeline if program.report else None
    timeline = known or timeline_of_graph(program.graph, topology)
    trace = trace_of(timeline, f"{program.graph.name}, predicted for {topology}")
    return json.dumps(trace, ensure_ascii=False, indent=1) + "\n"
