"""The predicted timeline of a step: its time, in total and by the user's lines.

`graphdist.runtime.module.timeline` predicts the events of a compiled module, and
`graphdist.runtime.timing.graph_timeline` those of a graph that is not compiled. This module adds up
the times of events by the user's lines, which emission has written into the names of a module's
operations as `forward(train.py:41)`. The total time is compared with the operations that the model
needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, NamedTuple  # Any: an instruction or a node

from graphdist.ir.cost import executions, node_cost
from graphdist.ir.graph import Graph, Node
from graphdist.report.json_records import NOT_IN_JSON
from graphdist.report.memory_by_line import HeldParts, held_by_graph
from graphdist.report.timeline_text import timeline_lines
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.line_labels import Labels, places_of
from graphdist.runtime.module.predicted_seconds import kernels_of
from graphdist.runtime.module.timeline import predicted_turn
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.routes import route_of
from graphdist.runtime.targets.topologies import Topology
from graphdist.runtime.timing.graph_timeline import turn_of_graph
from graphdist.runtime.timing.lanes import COMPUTE, NETWORK, Turn, all_events

OF_COMPILED = 0.15
"""The share by which a graph's prediction may differ from that of its module. It holds all rows of
the table in `docs/estimates.md` but one, whose compiled step lacks memory."""


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

    The part is "forward", "backward", "recomputed", or "step" for the rest.
    """

    line: str
    phase: str
    seconds: float


class WorkFacts(NamedTuple):
    """What a timeline says of an instruction or a node: its name, phase, line and type.

    `cycles` are the cycles that the compiler expects; None if it expects none.
    """

    name: str
    phase: str
    line: str
    type: str
    cycles: int | None = None


@dataclass(frozen=True)
class TimelineEvents:
    """The events of a step, the facts of their work, and the bytes held by line during an event.

    The work is of instructions of a compiled module, or of nodes of a graph.
    """

    turn: Turn[Any]
    facts: Callable[[Any], WorkFacts]
    held: Mapping[Any, HeldParts]


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
    repeated: float = 0.0
    """The seconds of computation that the compiler repeats, since it lacks memory."""
    is_compiled: bool = True
    """Whether the timeline is of the compiled module, not of the graph."""
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

    def __str__(self) -> str:
        return "\n".join(timeline_lines(self))

    __repr__ = __str__  # in a REPL and in a notebook


def timeline_of(
    module: CompiledModule, graph: Graph, topology: Topology, held: Mapping[Instruction, HeldParts]
) -> StepTimeline | str:
    """Return the timeline of a module, or the reason why there is none.

    `held` has the bytes that are held during each instruction, by line.
    """
    if not module[module.entry]:
        return "the text of the compiled module cannot be read"
    has_cycles = any(each.cycles for each in module.instructions.values())
    if topology.chip.platform == "tpu" and not has_cycles:
        return "the compiled module does not say how many cycles its instructions take"
    turn = predicted_turn(module, ChipRates.of(topology), kernels_of(graph))
    labels = Labels(module)

    def facts(instruction: Instruction) -> WorkFacts:
        place = labels.of(instruction)
        return WorkFacts(instruction.name, *place, instruction.type, instruction.cycles)

    return _timeline(TimelineEvents(turn, facts, held), graph, topology)


def timeline_of_graph(graph: Graph, topology: Topology) -> StepTimeline:
    """Return the timeline of a graph that is not compiled."""
    places = places_of(graph)

    def facts(node: Node) -> WorkFacts:
        name = (node.origin or "the program") if node.op.is_collective else node.op.name
        types = ", ".join(str(result.type) for result in node.results)
        return WorkFacts(name, *places[node], types)

    turn = turn_of_graph(graph, ChipRates.of(topology))
    events = TimelineEvents(turn, facts, held_by_graph(graph))
    found = _timeline(events, graph, topology)
    low, high = found.low * (1 - OF_COMPILED), found.high * (1 + OF_COMPILED)
    return replace(found, low=low, high=high, is_compiled=False)


def _timeline(events: TimelineEvents, graph: Graph, topology: Topology) -> StepTimeline:
    chip, timing, turn = topology.chip, TIMINGS[topology.chip.name], events.turn
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
        collectives=_collectives(events, topology),
        lines=_lines(events),
        repeated=_repeated(events),
        fitted=timing.source,
        events=events,
    )


def _repeated(events: TimelineEvents) -> float:
    """Return the seconds of what XLA's rematerialization has added, which it names `.remat`."""
    return sum(
        event.seconds * times
        for event, times in all_events(events.turn)
        if event.body is None and event.lane == COMPUTE
        if ".remat" in events.facts(event.work).name
    )


def _model_flops(graph: Graph) -> int:
    """Return the operations of a step, without recomputation."""
    return sum(
        round(count * times / every)
        for node, times, every in executions(graph)
        if not node.graphs and "rematted_computation" not in node.source.scope
        for count in node_cost(node).flops.values()
    )


def _collectives(events: TimelineEvents, topology: Topology) -> tuple[CollectiveTime, ...]:
    found = []
    for event, times in all_events(events.turn):
        if event.collective:
            facts = events.facts(event.work)
            used = CollectiveTime(
                name=facts.name,
                kind=event.collective,
                line=facts.line,
                runs=ceil(times),
                seconds=event.seconds * times,
                exposed=event.wait * times,
                # What is sent over the network uses no links of a slice.
                links=NETWORK if event.lane == NETWORK else str(route_of(topology, event.members)),
            )
            found.append(used)
    return tuple(sorted(found, key=lambda each: (-each.exposed, -each.seconds)))


def _lines(events: TimelineEvents) -> tuple[LineTime, ...]:
    seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event, times in all_events(events.turn):
        if event.lane == COMPUTE and event.body is None:
            facts = events.facts(event.work)
            seconds[facts.line, facts.phase] += event.seconds * times
    found = [LineTime(line, phase, spent) for (line, phase), spent in seconds.items()]
    return tuple(sorted(found, key=lambda each: -each.seconds))
