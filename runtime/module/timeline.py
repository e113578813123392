"""The predicted timeline of a compiled module: its schedule laid out on lanes.

The instructions of a module for TPUs are in the order of the schedule. They are laid out on lanes,
each of which runs one instruction at a time:

* `compute`: an instruction takes the time of its operations, bytes or cycles
  (`predicted_seconds.py`). A collective that is one instruction holds this lane and a lane of
  links.
* `links` and `network`: a collective takes the time of the bytes that a chip sends. It overlaps
  with the instructions between its start and its end; the end waits for the rest of that time.
* `copies`: copies between the memories of a chip, in the order of their starts; copies to and from
  the host have lanes of their own. The end of a copy waits for the rest of its time, too.

So the time of a step is the sum of computation, exposed communication, and waits for copies. A loop
is laid out for one iteration, and counted for all. A branch that every H-th step takes counts 1/H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.predicted_seconds import ChipDurations, KernelFlops, durations_of
from graphdist.runtime.module.schedule import ScheduledStep, steps_of
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.topologies import Topology

COMPUTE, LINKS, NETWORK, COPIES = "compute", "links", "network", "copies"
TO_HOST, FROM_HOST = "to the host", "from the host"
LANES = (COMPUTE, LINKS, NETWORK, COPIES, TO_HOST, FROM_HOST)


@dataclass(slots=True)
class Event:
    """An instruction on the timeline: `start` and `seconds` within one run of its computation.

    `wait` are the seconds that the compute lane waits for the instruction. The `body` of a loop or
    a call is the computation that it runs, `times` times in one of `every` steps.
    """

    instruction: Instruction
    lane: str
    start: float
    seconds: float
    collective: str = ""
    wait: float = 0.0
    body: Turn | None = None
    times: int = 1
    every: int = 1


@dataclass(slots=True)
class Turn:
    """One run of a computation: its events, and its seconds of each kind.

    `exposed` is communication without overlapping computation, `idle` waits for copies; with
    `compute` they add up to `seconds`.
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
    return laid_out(module, durations_of(topology, timing, module, kernels))


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
        self._module, self._durations = module, durations
        self._turns: dict[str, Turn] = {}

    def turn(self, computation: str) -> Turn:
        if computation not in self._turns:
            lanes = _Lanes(self._durations, self._nested)
            for step in steps_of(self._module, computation):
                lanes.run(step)
            self._turns[computation] = lanes.turn
        return self._turns[computation]

    def _nested(self, instruction: Instruction) -> tuple[Turn, int] | None:
        """Return the run that an instruction starts, and its count; for branches the longest."""
        turns = [self.turn(name) for name in self._module.run_by(instruction)]
        if not turns:
            return None
        return max(turns, key=lambda turn: turn.seconds), self._module.trips(instruction)


class _Lanes:
    """The lanes of one run, on which `run` places one instruction after the other."""

    def __init__(
        self,
        durations: ChipDurations,
        nested: Callable[[Instruction], tuple[Turn, int] | None],
    ) -> None:
        self.turn = Turn()
        self._durations, self._nested = durations, nested
        self._free = dict.fromkeys(LANES, 0.0)
        self._started: dict[str, Event] = {}

    def run(self, step: ScheduledStep) -> None:
        """Put the next instruction of the schedule on its lane."""
        if step.end:
            self._end(step)
        elif step.collective and step.start:
            self._start(step, self._durations.collective(step))
        elif step.collective:
            self._wait_for(step)
        elif step.start:
            self._start(step, self._durations.copy(step.instruction))
        elif (nested := self._nested(step.instruction)) is not None:
            self._call(step.instruction, *nested)
        else:
            self._compute(step.instruction)

    def _compute(self, instruction: Instruction) -> None:
        seconds = self._durations.compute(instruction)
        if seconds:
            self.turn.events.append(Event(instruction, COMPUTE, self.turn.seconds, seconds))
            self.turn.compute += seconds

    def _call(self, instruction: Instruction, turn: Turn, times: int) -> None:
        every = instruction.every
        share = times / every
        event = Event(instruction, COMPUTE, self.turn.seconds, turn.seconds * share)
        event.body, event.times, event.every = turn, times, every
        self.turn.events.append(event)
        self.turn.compute += turn.compute * share
        self.turn.exposed += turn.exposed * share
        self.turn.idle += turn.idle * share

    def _start(self, step: ScheduledStep, seconds: float) -> Event:
        lane = _lane(step)
        start = max(self.turn.seconds, self._free[lane])
        event = Event(step.instruction, lane, start, seconds, step.collective)
        self._free[lane] = start + seconds
        self._started[step.start] = event
        self.turn.events.append(event)
        return event

    def _end(self, step: ScheduledStep) -> None:
        event = self._started.pop(step.end, None)
        if event is not None:
            self._hold(event)

    def _wait_for(self, step: ScheduledStep) -> None:
        self._hold(self._start(step, self._durations.collective(step)))
        self._started.pop(step.start)

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
