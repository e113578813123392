"""The predicted timeline of a compiled step: its time, in total and by the user's lines.

`graphdist.runtime.module.timeline` predicts the events of the module. This module adds up the times
of events by the user's lines, which emission has written into the names of operations as
`forward(train.py:41)`. The total time is compared with the operations that the model needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from graphdist.ir.cost import executions, node_cost
from graphdist.ir.graph import Graph
from graphdist.report.json_records import NOT_IN_JSON
from graphdist.report.step_memory import StepMemory, memory_of_step
from graphdist.runtime.lanes import COMPUTE, all_events
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.line_labels import Labels
from graphdist.runtime.module.memory import ModuleMemory
from graphdist.runtime.module.predicted_seconds import kernels_of
from graphdist.runtime.module.timeline import ModuleTurn, predicted_turn
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.routes import route_of
from graphdist.runtime.targets.topologies import Topology


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """A collective of the module: the seconds of its runs in a step, and how many are exposed.

    `links` says over which links and networks the replicas of a group exchange (`routes.py`).
    """

    name: str
    kind: str
    line: str
    runs: int
    seconds: float
    exposed: float
    links: str = ""


@dataclass(frozen=True, slots=True)
class LineTime:
    """The seconds of computation of one of the user's lines, in one part of a step.

    The part is "forward", "backward", "again" for recomputed values, or "step" for the rest.
    """

    line: str
    phase: str
    seconds: float


@dataclass(frozen=True)
class TimelineEvents:
    """The module's events, their lines, and the bytes that are held during each instruction."""

    turn: ModuleTurn
    labels: Labels
    held: Mapping[Instruction, int]


@dataclass(frozen=True)
class StepTimeline:
    """A predicted step: `compute`, `exposed` communication and `idle` add up to `seconds`.

    `low` and `high` bound the expected seconds of the step, from the errors of predictions of
    published runs (`docs/estimates.md`). `model_flops` are the operations per device without
    recomputation, `utilization` is the share of the peak that these operations reach. A timeline
    from JSON has no events.
    """

    seconds: float
    low: float
    high: float
    compute: float
    exposed: float
    idle: float
    utilization: float
    model_flops: int
    collectives: tuple[CollectiveTime, ...]
    lines: tuple[LineTime, ...]
    fitted: str
    memory: StepMemory
    events: TimelineEvents | None = field(default=None, repr=False, metadata=NOT_IN_JSON)

    @property
    def step(self) -> float:
        """Return the seconds of the step."""
        return self.seconds

    @property
    def bottleneck(self) -> str:
        """Return the longest part: "compute", "exposed" (communication) or "idle" (waits)."""
        return max("compute", "exposed", "idle", key=lambda part: getattr(self, part))

    @property
    def efficiency(self) -> float:
        """Return the share of the step that is computation."""
        return self.compute / self.seconds if self.seconds else 1.0


def timeline_of(module: CompiledModule, graph: Graph, topology: Topology) -> StepTimeline | str:
    """Return the timeline of a module, or the reason why there is none."""
    chip, timing = topology.chip, TIMINGS[topology.chip.name]
    if not module[module.entry]:
        return "the text of the compiled module cannot be read"
    if chip.platform == "tpu" and not any(each.cycles for each in module.instructions.values()):
        return "the compiled module does not say how many cycles its instructions take"
    turn = predicted_turn(module, ChipRates.of(topology), kernels_of(graph))
    labels, memory = Labels(module), ModuleMemory(module)
    model_flops = _model_flops(graph) * chip.devices
    possible = chip.peak("bf16") * turn.seconds
    return StepTimeline(
        seconds=turn.seconds,
        low=turn.seconds * timing.low,
        high=turn.seconds * timing.high,
        compute=turn.compute,
        exposed=turn.exposed,
        idle=turn.idle,
        utilization=model_flops / possible if possible else 0.0,
        model_flops=model_flops,
        collectives=_collectives(turn, labels, topology),
        lines=_lines(turn, labels),
        fitted=timing.source,
        memory=memory_of_step(memory, labels),
        events=TimelineEvents(turn, labels, memory.held_at()),
    )


def _model_flops(graph: Graph) -> int:
    """Return the operations of a step, without recomputation."""
    return sum(
        round(count * times / every)
        for node, times, every in executions(graph)
        if not node.graphs and "rematted_computation" not in node.source.scope
        for count in node_cost(node).flops.values()
    )


def _collectives(
    turn: ModuleTurn, labels: Labels, topology: Topology
) -> tuple[CollectiveTime, ...]:
    found = [
        CollectiveTime(
            name=event.work.name,
            kind=event.collective,
            line=labels.of(event.work)[1],
            runs=ceil(times),
            seconds=event.seconds * times,
            exposed=event.wait * times,
            links=str(route_of(topology, event.members)),
        )
        for event, times in all_events(turn)
        if event.collective
    ]
    return tuple(sorted(found, key=lambda each: (-each.exposed, -each.seconds)))


def _lines(turn: ModuleTurn, labels: Labels) -> tuple[LineTime, ...]:
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event, times in all_events(turn):
        if event.lane == COMPUTE and event.body is None:
            seconds[labels.of(event.work)] += event.seconds * times
    found = [LineTime(line, phase, spent) for (phase, line), spent in seconds.items()]
    return tuple(sorted(found, key=lambda each: -each.seconds))
