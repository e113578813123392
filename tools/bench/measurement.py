"""The measurement of a program on several systems: in turns, in one run.

First every system compiles. Then all run the same first steps, whose losses must agree. Then they
are timed in rounds, in which each has a turn of some steps. A shared machine is slower for minutes
at a time, and not equally for each system. The turns of a round are close together in time, so two
systems are compared round by round, and the median of the ratios is reported.

The figures of the compiled module are: the collectives, as often as they run in a step; the bytes a
device sends for them around a ring (`graphdist.ir.collective_bytes`); and the most
memory that a device needs.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any  # Any: JSON

import jax

import graphdist as gd
from graphdist.runtime.module.collective_instructions import module_collectives
from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.memory import memory_of
from graphdist.tools.bench.process import Process, is_installed, packages_of, runs_on
from graphdist.tools.bench.programs import BenchProgram
from graphdist.tools.bench.systems import FLOOR, Running, systems_of

OURS = "graphdist"
FIRST_STEPS = 3
FEWEST_STEPS = 5
"""The least number of steps in a turn, however long they take."""
TOLERANCE, NARROW_TOLERANCE = 1e-4, 1e-2
"""The relative difference that losses may have, computed in float32 and in bfloat16: systems add up
in different orders."""


class DifferentProgramsError(RuntimeError):
    """Systems that should run the same program have different losses."""


@dataclass(frozen=True)
class Module:
    """The figures of a compiled module per device: bytes, and collectives of each kind."""

    collectives: Mapping[str, int]
    moved_bytes: int
    peak_bytes: int

    @property
    def num_collectives(self) -> int:
        """Return how many collectives run in a step."""
        return sum(self.collectives.values())


@dataclass(frozen=True)
class Measurement:
    """The measurement of a program on a system; figures that were not measured are None.

    `losses` are the first steps' losses, `results` the metrics after them. `turns` has the seconds
    of each step in each round.
    """

    program: str
    system: str
    losses: tuple[float, ...] = ()
    results: Mapping[str, float] = field(default_factory=dict)
    turns: tuple[tuple[float, ...], ...] = ()
    compile_seconds: float | None = None
    module: Module | None = None

    @property
    def step_seconds(self) -> float | None:
        """Return the time of a step: the median of all."""
        return statistics.median(chain(*self.turns)) if self.turns else None

    @property
    def quick_seconds(self) -> float | None:
        """Return the time of a step in the quickest tenth, which other load affects least."""
        seconds = sorted(chain(*self.turns))
        return seconds[len(seconds) // 10] if seconds else None

    def of(self, other: Measurement) -> float | None:
        """Return the ratio of its step time to another system's, compared round by round."""
        return ratio_by_round(self.turns, other.turns) if self.turns and other.turns else None

    def to_json(self) -> dict[str, Any]:
        """Return the measurement as JSON has it."""
        fields = asdict(self)
        module = fields.pop("module") or dict.fromkeys(("collectives", "moved_bytes", "peak_bytes"))
        count = self.module.num_collectives if self.module else None
        seconds = {"step_seconds": self.step_seconds, "quick_seconds": self.quick_seconds}
        return {**fields, **seconds, **module, "num_collectives": count}


def ratio_by_round(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the median over the rounds of our turn's median over theirs.

    >>> ratio_by_round([[1.0, 1.0, 9.0], [4.0]], [[2.0, 2.0, 2.0], [8.0]])
    0.5
    """
    medians = ([statistics.median(turn) for turn in turns] for turns in (ours, theirs))
    return statistics.median(mine / its for mine, its in zip(*medians, strict=True))


@dataclass(frozen=True)
class Effort:
    """How long to measure: turns of each system of some seconds, and its compilations."""

    rounds: int = 20
    turn_seconds: float = 0.15
    compilations: int = 3


def module_of(compiled: jax.stages.Compiled, num_devices: int, platform: str) -> Module:
    """Return the figures of a module that JAX compiled."""
    kinds: Counter[str] = Counter()
    moved = 0.0
    for collective in module_collectives(CompiledModule(str(compiled.as_text())), num_devices):
        kinds[collective.kind] += collective.times
        moved += collective.times * collective.bytes_sent
    peak = memory_of(compiled, platform).peak_bytes
    return Module(dict(sorted(kinds.items())), round(moved), peak)


def seconds_of(running: Running, steps: int) -> list[float]:
    """Run steps and return the seconds of each."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        running.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def compiled_on(
    program: BenchProgram, strategy: gd.Strategy, systems: Sequence[str], compilations: int = 1
) -> tuple[dict[str, Running], dict[str, Measurement]]:
    """Return the program on each system of this process, and the figures of its compilation."""
    starts = systems_of(program)
    running = {name: starts[name](program, strategy) for name in systems if name in starts}
    seconds: dict[str, list[float]] = {name: [] for name in running}
    modules: dict[str, Module] = {}
    for _ in range(compilations):
        for name, system in running.items():
            jax.clear_caches()
            start = time.perf_counter()
            compiled = system.compile()
            seconds[name].append(time.perf_counter() - start)
            devices = strategy.devices
            modules[name] = module_of(compiled, len(devices), devices.platform)
    return running, {
        name: Measurement(
            program.name,
            name,
            compile_seconds=statistics.median(seconds[name]),
            module=modules[name],
        )
        for name in running
    }


def measured(
    program: BenchProgram,
    strategy: gd.Strategy,
    systems: Sequence[str],
    effort: Effort,
    *,
    is_tiny: bool = False,
) -> list[Measurement]:
    """Return the measurements of a program on each system, in the order of the systems.

    Raises `DifferentProgramsError` where their losses differ.
    """
    running, results = compiled_on(program, strategy, systems, effort.compilations)
    timed: dict[str, Callable[[int], list[float]]] = {
        name: partial(seconds_of, system) for name, system in running.items()
    }
    for name, system in running.items():
        results[name] = with_first_steps(results[name], system)
    replicas = strategy.num_replicas_in_sync
    platform, packages = strategy.devices.platform, packages_of(program)
    elsewhere = [
        name
        for name in systems
        if name in packages and is_installed(name) and runs_on(name, platform)
    ]
    processes = []
    try:
        for name in elsewhere:
            process = Process(name, program.name, replicas, platform, is_tiny=is_tiny)
            processes.append(process)
            timed[name] = process.seconds
            results[name] = Measurement(program.name, name, **process.start(FIRST_STEPS))
        check_agreement(list(results.values()), tolerance_of(program, platform))
        seconds = seconds_in_turns(timed, effort)
    finally:
        for process in processes:
            process.close()
    return [
        replace(results[name], turns=tuple(map(tuple, seconds[name])))
        for name in systems
        if name in results
    ]


def with_first_steps(measurement: Measurement, running: Running) -> Measurement:
    """Run the first steps and return the measurement with their losses and the metrics."""
    losses = tuple(running.step() for _ in range(FIRST_STEPS))
    return replace(measurement, losses=losses, results=running.results())


def seconds_in_turns(
    timed: Mapping[str, Callable[[int], list[float]]], effort: Effort
) -> dict[str, list[list[float]]]:
    """Return the seconds of the steps of each turn; every round begins with another system.

    The first step of a turn does not count: the caches hold another system's data.
    """
    seconds: dict[str, list[list[float]]] = {name: [] for name in timed}
    names = list(timed)
    steps = {name: _steps_of(timed[name](2)[1], effort.turn_seconds) for name in names}
    for turn in range(effort.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(timed[name](1 + steps[name])[1:])
    return seconds


def _steps_of(seconds: float, turn_seconds: float) -> int:
    """Return how many steps a turn has, from the seconds of one step."""
    return min(max(round(turn_seconds / seconds), FEWEST_STEPS), 50)


def tolerance_of(program: BenchProgram, platform: str = "cpu") -> float:
    """Return the relative difference that the losses of a program's systems may have.

    Accelerators multiply float32 in fewer bits.
    """
    is_narrow = getattr(program.model, "dtype", "") == "bfloat16" or platform != "cpu"
    return NARROW_TOLERANCE if is_narrow else TOLERANCE


def check_agreement(measurements: Sequence[Measurement], tolerance: float = TOLERANCE) -> None:
    """Raise `DifferentProgramsError` unless losses and metrics agree with the first system's.

    The floor runs another program, and is left out.
    """
    first, *others = [
        measurement for measurement in measurements if measurement.system != FLOOR
    ] or measurements
    for other in others:
        pairs = [*zip(first.losses, other.losses, strict=True)]
        pairs += [(first.results[name], other.results[name]) for name in first.results]
        for value, its in pairs:
            if not abs(value - its) <= tolerance * max(abs(value), abs(its)):
                raise DifferentProgramsError(
                    f"{first.program}: {first.system} has the losses {_listed(first)}, "
                    f"{other.system} {_listed(other)}: they do not run the same program"
                )


def _listed(measurement: Measurement) -> str:
    values = [*measurement.losses, *measurement.results.values()]
    return ", ".join(f"{value:.6g}" for value in values)
