"""The predicted timeline of a compiled module: its schedule laid out on lanes.

The instructions of a module for TPUs are in the order of the schedule. The instructions are laid
out on lanes, each of which runs one instruction at a time:

* `compute`: an instruction takes the time of its operations, bytes or cycles
  (`predicted_seconds.py`). A collective that is one instruction holds this lane and a lane of
  links.
* `links` and `network`: a collective takes the time of the bytes that a chip sends. It overlaps
  with the instructions between its start and its end; the end waits for the rest of that time.
* `copies`: copies between the memories of a chip, in the order of their starts; copies to and from
  the host have lanes of their own. The end of a copy waits for the rest of the copy's time, too.

So the time of a step is the sum of computation, exposed communication, and waits for copies. A loop
is laid out for one iteration, and counted for all. A branch that every H-th step takes counts 1/H.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.predicted_seconds import (
    ChipDurations,
    GpuDurations,
    KernelFlops,
    TpuDurations,
)
from graphdist.runtime.module.schedule import ScheduledStep, steps_of
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.topologies import Topology

COMPUTE, LINKS, NETWORK, COPIES = "compute", "links", "network", "copies"
TO_HOST, FROM_HOST = "to the host", "from the host"
LANES = (COMPUTE, LINKS, NETWORK, COPIES, TO_HOST, FROM_HOST)


@dataclass(slots=True)
class Event:
    """An instruction on the timeline: `start` and `seconds` within one run of its computation.

    `wait` are the seconds that the compute lane waits for the instruction. `members` are the
    replicas of one group of a collective. `body` is the run of the computation that a loop or a
    call runs, `times` times in every `every`-th step.
    """

    instruction: Instruction
    lane: str
    start: float
    seconds: float
    collective: str = ""
    members: Sequence[int] = ()
    wait: float = 0.0
    body: Turn | None = None
    times: int = 1
    every: int = 1


@dataclass(slots=True)
class Turn:
    """One run of a computation: its events, and its seconds of each kind.

    `exposed` are the seconds of communication that overlap with no computation, `idle` the seconds
    of waits for copies. `compute`, `exposed` and `idle` add up to `seconds`.
    """

    events: list[Event] = field(default_factory=list)
    compute: float = 0.0
    exposed: float = 0.0
    idle: float = 0.0

    @property
    def seconds(self) -> float:
        """Return the seconds of the run."""
        return self.compute + self.exposed + self.idle


def predicted_turn(
    module: CompiledModule, topology: Topology, timing: ChipTiming, kernels: KernelFlops
) -> Turn:
    """Return the timeline of a step on a topology. `kernels` has the operations of its kernels."""
    durations = TpuDurations if topology.chip.platform == "tpu" else GpuDurations
    return laid_out(module, durations(topology, timing, module, kernels))


def laid_out(module: CompiledModule, durations: ChipDurations) -> Turn:
    """Return the timeline of a step."""
    return _Layout(module, durations).turn(module.entry)


def all_events(turn: Turn, times: float = 1) -> Iterator[tuple[Event, float]]:
    """Yield the events of a run and of nested runs, each with its number of times per step."""
    for event in turn.events:
        yield event, times
        if event.body is not None:
            yield from all_events(event.body, times * event.times / event.every)


class _Layout:
    """Lays out each computation once."""

    def __init__(self, module: CompiledModule, durations: ChipDurations) -> None:
        self.module, self.durations = module, durations
        self.turn = cache(self._turn)

    def _turn(self, computation: str) -> Turn:
        lanes = _Lanes(self)
        for step in steps_of(self.module, computation):
            lanes.run(step)
        return lanes.turn


class _Lanes:
    """The lanes of one run of a computation. `run` places instructions on the lanes in order."""

    def __init__(self, layout: _Layout) -> None:
        self.turn = Turn()
        self._layout, self._durations = layout, layout.durations
        self._free = dict.fromkeys(LANES, 0.0)
        self._started: dict[str, Event] = {}

    def run(self, step: ScheduledStep) -> None:
        """Put the next instruction of the schedule on its lane."""
        if step.end:
            if (event := self._started.pop(step.end, None)) is not None:
                self._hold(event)
        elif step.collective or step.start:
            self._start(step)
        elif nested := self._layout.module.run_by(step.instruction):
            turns = map(self._layout.turn, nested)
            self._call(step.instruction, max(turns, key=lambda turn: turn.seconds))
        elif seconds := self._durations.compute(step.instruction):
            event = Event(step.instruction, COMPUTE, self.turn.seconds, seconds)
            self.turn.events.append(event)
            self.turn.compute += seconds

    def _call(self, instruction: Instruction, turn: Turn) -> None:
        """Add the run of a loop's body, of a called computation, or of the longest branch."""
        times, every = self._layout.module.trips(instruction), instruction.every
        share = times / every
        event = Event(instruction, COMPUTE, self.turn.seconds, turn.seconds * share)
        event.body, event.times, event.every = turn, times, every
        self.turn.events.append(event)
        self.turn.compute += turn.compute * share
        self.turn.exposed += turn.exposed * share
        self.turn.idle += turn.idle * share

    def _start(self, step: ScheduledStep) -> None:
        """Start a collective or a copy, and wait for the end of a synchronous collective."""
        lane = _lane(step)
        members: Sequence[int] = ()
        if step.inner is None:
            seconds = self._durations.copy(step.instruction)
        else:
            exchange = self._durations.exchange(step.inner, step.collective)
            seconds, members = self._durations.collective(exchange), exchange.members
        start = max(self.turn.seconds, self._free[lane])
        event = Event(step.instruction, lane, start, seconds, step.collective, members)
        self._free[lane] = start + seconds
        self.turn.events.append(event)
        if step.start:
            self._started[step.start] = event
        else:
            self._hold(event)

    def _hold(self, event: Event) -> None:
        """Let the compute lane wait until an event has ended."""
        event.wait = max(event.start + event.seconds - self.turn.seconds, 0.0)
        if event.collective:
            self.turn.exposed += event.wait
        else:
            self.turn.idle += event.wait


def _lane(step: ScheduledStep) -> str:
    if step.collective:
        return NETWORK if step.collective == "network_send" else LINKS
    if not step.instruction.uses_host_memory:
        return COPIES
    return TO_HOST if step.instruction.writes_host_memory else FROM_HOST
