"""The predicted timeline of a compiled module: its schedule laid out on lanes.

The instructions of a module for TPUs are in the order of the schedule. An instruction takes the
time of its operations, bytes or cycles (`predicted_seconds.py`) on the lane of computation. A
collective or a copy whose start and end are two instructions overlaps with the instructions
between; a collective that is one instruction overlaps with nothing (`lanes.py`).
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

from graphdist.runtime.module.collective_instructions import sends_back
from graphdist.runtime.module.instructions import CompiledModule, Instruction
from graphdist.runtime.module.predicted_seconds import (
    ChipDurations,
    GpuDurations,
    KernelFlops,
    TpuDurations,
)
from graphdist.runtime.module.schedule import ScheduledStep, steps_of
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.timing.lanes import (
    COPIES,
    FROM_HOST,
    LINKS,
    LINKS_BACK,
    NETWORK,
    TO_HOST,
    Event,
    Lanes,
    Turn,
)

ModuleTurn: TypeAlias = Turn[Instruction]


def predicted_turn(module: CompiledModule, rates: ChipRates, kernels: KernelFlops) -> ModuleTurn:
    """Return the timeline of a step. `kernels` has the operations of the module's kernels."""
    durations = TpuDurations if rates.topology.chip.platform == "tpu" else GpuDurations
    return laid_out(module, durations(rates, module, kernels))


def laid_out(module: CompiledModule, durations: ChipDurations) -> ModuleTurn:
    """Return the timeline of a step."""
    return _Layout(module, durations).turn(module.entry)


class _Layout:
    """Lays out each computation once."""

    def __init__(self, module: CompiledModule, durations: ChipDurations) -> None:
        self.module, self.durations = module, durations
        self.turn = cache(self._turn)

    def _turn(self, computation: str) -> ModuleTurn:
        schedule = _Schedule(self)
        for step in steps_of(self.module, computation):
            schedule.run(step)
        return schedule.lanes.turn


class _Schedule:
    """The instructions of one run of a computation on its lanes."""

    def __init__(self, layout: _Layout) -> None:
        self.lanes: Lanes[Instruction] = Lanes()
        self._layout, self._durations = layout, layout.durations
        self._started: dict[str, Event[Instruction]] = {}

    def run(self, step: ScheduledStep) -> None:
        """Put the next instruction of the schedule on its lane."""
        module, instruction = self._layout.module, step.instruction
        if step.end:
            if (event := self._started.pop(step.end, None)) is not None:
                self.lanes.hold(event)
        elif step.collective or step.start:
            self._start(step)
        elif nested := module.run_by(instruction):
            longest = max(map(self._layout.turn, nested), key=lambda turn: turn.seconds)
            self.lanes.call(instruction, longest, module.trips(instruction), instruction.every)
        elif seconds := self._durations.compute(instruction):
            self.lanes.compute(instruction, seconds)

    def _start(self, step: ScheduledStep) -> None:
        """Start a collective or a copy, and wait for the end of a synchronous collective."""
        event = self._collective(step) if step.collective else self._copy(step.instruction)
        if step.start:
            self._started[step.start] = event
        else:
            self.lanes.hold(event)

    def _collective(self, step: ScheduledStep) -> Event[Instruction]:
        assert step.inner is not None, "a step of a collective has the collective's instruction"
        exchange = self._durations.exchange(step.inner, step.collective)
        lane = LINKS_BACK if sends_back(step.inner) else LINKS
        lane = NETWORK if step.collective == "network_send" else lane
        seconds = self._durations.collective(exchange)
        return self.lanes.start(step.instruction, lane, seconds, step.collective, exchange.members)

    def _copy(self, instruction: Instruction) -> Event[Instruction]:
        lane = COPIES
        if instruction.uses_host_memory:
            lane = TO_HOST if instruction.writes_host_memory else FROM_HOST
        return self.lanes.start(instruction, lane, self._durations.copy(instruction))
