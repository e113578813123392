"""Profiles of `jax.profiler`: how long a step computes and communicates, and what nothing hides.

A profile has an event for each operation that a device ran. The events of CPUs and GPUs name
operation and module, the events of CPUs also the run of the program. TPUs have a line of events for
the modules. If no event tells the runs apart, a run begins with the operation that is run least
often.

Communication is exposed while the device runs a collective and computes nothing. A collective that
waits for another device counts as communication, as in the prediction. An event during which the
same line has events of other operations is a loop, a call or a branch; only these other operations
count. Each figure is a median over all complete runs on all devices, so the figures need not add
up.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeAlias  # Any: planes, lines and events of JAX's

import jax

from graphdist.errors import ArgumentError

ENDING = ".xplane.pb"
_COLLECTIVE = re.compile(
    r"(all[-_](reduce|gather|to[-_]all)|reduce[-_]scatter|collective[-_]|ragged[-_]all|psum|pmax"
    r"|pmin|pmean|ppermute)"
)
_OP = re.compile(r"%?([\w.-]+)")
_CONTROL_FLOW = re.compile(r"(while|cond|conditional|call|closed_call)(\.\d+)?$")
_LINES_OF_OPS = ("XLA Ops", "Async XLA Ops")
_LINE_OF_MODULES = "XLA Modules"

Interval: TypeAlias = tuple[float, float]


class Operation(NamedTuple):
    """A run of an operation on a device, in nanoseconds."""

    name: str
    start: float
    end: float
    is_collective: bool
    module: str
    program: object
    """The id of the program, which differs between programs whose modules have the same name."""
    run: object
    """The run of the program; None if the profile does not say."""
    device: tuple[str, str, int]
    line: str


@dataclass(frozen=True)
class MeasuredCollective:
    """A collective in a step: the number of its runs, and the seconds of all its runs together."""

    name: str
    runs: int
    seconds: float
    exposed: float


@dataclass(frozen=True)
class ProfiledStep:
    """The runs of a module in a profile: the median seconds of one run on one device.

    `compute` and `exposed` communication do not overlap in a run. `seconds` include the times in
    which the device waits for the host.
    """

    module: str
    devices: int
    runs: int
    seconds: float
    compute: float
    communication: float
    exposed: float
    collectives: tuple[MeasuredCollective, ...]


def is_profile(path: Path) -> bool:
    """Return whether a path names a folder, or the file of a profile."""
    return path.is_dir() or path.name.endswith(ENDING)


def profiled_step(
    path: Path, step: str | None = None, collectives: Iterable[str] = ()
) -> ProfiledStep:
    """Return the times of a step in a profile, the last profile below a folder or a single file.

    `step` is the name of the function, by default of the function that takes most time.
    `collectives` are names of further collectives, beside those with names of JAX or XLA. Raise
    `ArgumentError` if there is no profile, or no run of the step in the profile.
    """
    operations: list[Operation] = []
    for file in _files(path):
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        operations += profiled_operations(planes, file.name)
    programs = _grouped(operations, lambda each: (each.module, each.program))
    found = [each for each in programs if step is None or _is_of(each[0].module, step)]
    if not found:
        wanted = f"run of {step}" if step else "operation of a device"
        modules = ", ".join(sorted({each.module for each in operations})) or "nothing"
        raise ArgumentError(
            f"the profile in {path} has no {wanted}",
            hint=f"it has runs of {modules}: call the step inside `with "
            "jax.profiler.trace(folder)`, and wait for its result there",
        )
    longest = max(found, key=lambda program: sum(each.end - each.start for each in program))
    return times_of(longest, collectives)


def _files(path: Path) -> list[Path]:
    """Return the files of a profile, one file for each host."""
    files = [path] if path.is_file() else sorted(path.rglob(f"*{ENDING}"))
    if not files or not files[0].is_file():
        raise ArgumentError(
            f"there is no profile in {path}",
            hint="give the folder of `with jax.profiler.trace(folder)`",
        )
    return [file for file in files if file.parent == max(each.parent for each in files)]


def _is_of(module: str, step: str) -> bool:
    return module.removeprefix("jit_") == re.sub(r"\W", "_", step)


def profiled_operations(planes: Iterable[Any], host: str = "") -> Iterator[Operation]:
    """Yield the operations that devices of a host ran."""
    for plane in planes:
        lines = [(line.name, list(line.events)) for line in plane.lines]
        modules = [each for name, events in lines if name == _LINE_OF_MODULES for each in events]
        for name, events in lines:
            for event in events:
                stats = dict(event.stats)
                if "hlo_op" in stats and "hlo_module" in stats:
                    op, module = stats["hlo_op"], stats["hlo_module"]
                    program, run = stats.get("program_id"), stats.get("run_id")
                elif name in _LINES_OF_OPS and (match := _OP.match(event.name)):
                    op, (program, run) = match[1], _program_at(modules, event.start_ns)
                    module = program.partition("(")[0]
                else:
                    continue
                start, end = event.start_ns, event.start_ns + event.duration_ns
                is_collective = bool(_COLLECTIVE.match(op)) or event.name.startswith("nccl")
                device = host, plane.name, stats.get("device_ordinal", 0)
                yield Operation(op, start, end, is_collective, module, program, run, device, name)


def _program_at(modules: Sequence[Any], time: float) -> tuple[str, int | None]:
    """Return the program that a TPU runs at a point in time, and the number of the run."""
    for number, event in enumerate(modules):
        if event.start_ns <= time < event.start_ns + event.duration_ns:
            return event.name, number
    return "", None


def times_of(found: Sequence[Operation], collectives: Iterable[str] = ()) -> ProfiledStep:
    """Return the times of a module from the operations of all its runs."""
    known = frozenset(collectives)
    runs = [each for run in _runs(found) if (each := _leaves(run))]
    most = max(len({each.name for each in run}) for run in runs)
    complete = [run for run in runs if len({each.name for each in run}) == most]
    figures = [_Run(run, known) for run in complete]
    names = sorted({name for each in figures for name in each.apart})
    rows = [
        MeasuredCollective(
            name,
            round(median(len(each.apart.get(name, [])) for each in figures)),
            _median(length(each.of(name)) for each in figures),
            _median(length_outside(each.of(name), each.compute) for each in figures),
        )
        for name in names
    ]
    devices = {run[0].device for run in complete}
    return ProfiledStep(
        module=found[0].module,
        devices=len(devices),
        runs=len(complete) // len(devices),
        seconds=_median(each.end - each.start for each in figures),
        compute=_median(length(each.compute) for each in figures),
        communication=_median(length(each.communication) for each in figures),
        exposed=_median(length_outside(each.communication, each.compute) for each in figures),
        collectives=tuple(sorted(rows, key=lambda row: (-row.exposed, -row.seconds, row.name))),
    )


def _median(nanoseconds: Iterable[float]) -> float:
    return median(nanoseconds) / 1e9


def _runs(found: Sequence[Operation]) -> Iterator[list[Operation]]:
    """Yield the operations of each run on each device, in order of their starts."""
    in_order = sorted(found, key=lambda each: (each.start, -each.end))
    for on_device in _grouped(in_order, lambda each: each.device):
        yield from _runs_of_device(on_device)


def _grouped(
    operations: Iterable[Operation], key: Callable[[Operation], object]
) -> list[list[Operation]]:
    """Return the operations in groups with equal keys, in the order of their first operations."""
    groups: dict[object, list[Operation]] = defaultdict(list)
    for operation in operations:
        groups[key(operation)].append(operation)
    return list(groups.values())


def _runs_of_device(on_device: Sequence[Operation]) -> Iterator[list[Operation]]:
    if all(each.run is not None for each in on_device):
        yield from _grouped(on_device, lambda each: each.run)
        return
    counts = Counter(each.name for each in on_device)
    first = min(on_device, key=lambda each: counts[each.name]).name
    run: list[Operation] = []
    for operation in on_device:
        if operation.name == first and run:
            yield run
            run = []
        run.append(operation)
    yield run


def _leaves(run: Sequence[Operation]) -> list[Operation]:
    """Return the operations of a run, without loops, calls and branches around other operations."""
    around: dict[str, list[Operation]] = defaultdict(list)
    outer: set[int] = set()
    for operation in run:
        stack = around[operation.line]
        while stack and stack[-1].end < operation.end:
            stack.pop()
        outer.update(id(each) for each in stack)
        stack.append(operation)
    return [each for each in run if id(each) not in outer and not _CONTROL_FLOW.match(each.name)]


class _Run:
    """One run on one device: when the device computes, and when each collective runs."""

    def __init__(self, run: Sequence[Operation], collectives: Container[str]) -> None:
        self.start, self.end = run[0].start, max(each.end for each in run)
        self.apart: dict[str, list[Interval]] = defaultdict(list)
        compute: list[Interval] = []
        for each in run:
            is_collective = each.is_collective or each.name in collectives
            (self.apart[each.name] if is_collective else compute).append((each.start, each.end))
        self.compute = union(compute)
        self.communication = union(chain.from_iterable(self.apart.values()))

    def of(self, name: str) -> list[Interval]:
        """Return when a collective runs."""
        return union(self.apart.get(name, []))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the union of intervals as intervals that do not overlap, in order.

    >>> union([(5, 6), (0, 2), (1, 3)])
    [(0, 3), (5, 6)]
    """
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def length(intervals: Iterable[Interval]) -> float:
    """Return the length of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def length_outside(intervals: Iterable[Interval], others: Iterable[Interval]) -> float:
    """Return the length of the part of `intervals` that `others` do not cover.

    >>> length_outside([(0, 4), (6, 8)], [(1, 2), (3, 7)])
    3
    """
    first, second = union(intervals), union(others)
    return length(union([*first, *second])) - length(second)
