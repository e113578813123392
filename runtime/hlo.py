"""The collectives of a compiled module, read from its text.

XLA combines, splits, fuses and moves collectives; only its optimised module shows the result. The
text of a module has one instruction a line:

    %all-reduce.1 = (f32[8]{0}, f32[]) all-reduce(%a, %b), replica_groups={{0,1}}, ...

in computations that begin `%name (..) -> .. {`. The body of a `while` runs once a turn. Some
platforms write the number of turns in the instruction, on others it is a constant of the condition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "collective-permute": "collective_permute",
    "collective-broadcast": "collective_broadcast",
    "send": "network_send",
}
_OPCODES = "|".join(KINDS)
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.*?) (?P<opcode>{_OPCODES})(?P<start>-start)?\("
)
SCATTERING = "all-reduce-scatter"
"""Part of a computation's name if the TPU compiler runs its all-reduce as a reduce-scatter."""
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
_SHAPE = re.compile(r"\b(pred|bf16|[fsuc]\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
CHAIN = re.compile(r'chain_id="(\d+)"')
WHILE = re.compile(r" while\(.*condition=%?([\w.-]+), body=%?([\w.-]+)")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"n":"(\d+)"')
_CALLED = re.compile(
    r"(?:calls|to_apply|called_computations|branch_computations|true_computation|false_computation)"
    r"=(?:\{([^}]*)\}|%?([\w.-]+))"
)
_CONTEXT = ("u32", 1)
_CONSTANT = re.compile(r" = [su]32\[\]\S* constant\((\d+)\)")


@dataclass(frozen=True, slots=True)
class ModuleCollective:
    """One collective of a compiled module.

    `shapes` are dtype and number of elements of each value that a replica puts in, `bytes` the
    bytes of all of them, `times` the number of runs in a step.
    """

    name: str
    kind: str
    shapes: tuple[tuple[str, int], ...]
    bytes: int
    group_size: int
    times: int
    is_async: bool
    is_fused: bool
    every: int = 1
    """Every how many steps one runs it: more than one in the branch of local steps."""

    @property
    def bytes_a_step(self) -> int:
        """Return the bytes that a replica puts in in a step, on average."""
        return round(self.bytes * self.times / self.every)


def module_collectives(text: str, num_devices: int) -> tuple[ModuleCollective, ...]:
    """Return the collectives of an optimised HLO module.

    >>> text = '''ENTRY %main (a: f32[8]) -> f32[8] {
    ...   ROOT %r = f32[8]{0} all-reduce(%a), replica_groups={{0,1}}, to_apply=%sum
    ... }'''
    >>> module_collectives(text, 2)[0].bytes
    32
    """
    computations = computations_of(text)
    times, branches = executions_of(computations), branches_of(computations)
    found = []
    chains: set[tuple[str, str, object]] = set()
    for computation, lines in computations.items():
        for line in lines:
            match = _INSTRUCTION.match(line)
            if not match or _is_local(match, line):
                continue
            collective = _collective(
                match, line, computation, times.get(computation, 1), num_devices
            )
            collective = replace(collective, every=branches.get(computation, 1))
            # On TPU an asynchronous collective is written three times: start, continuation, end.
            chain = CHAIN.search(line)
            key = (chain[1], collective.kind, collective.shapes) if chain else None
            if key not in chains:
                found.append(collective)
            if key is not None:
                chains.add(key)
    return tuple(found)


def collective_of(line: str, kind: str, num_devices: int) -> ModuleCollective:
    """Return the collective of an instruction, as one of this kind."""
    match = _INSTRUCTION.match(line)
    assert match is not None, line
    return replace(_collective(match, line, "", 1, num_devices), kind=kind)


def _is_local(match: re.Match[str], line: str) -> bool:
    return match["opcode"] == "send" and "megascale" not in line


def computations_of(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation of a module, by its name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            lines = found[header["name"]] = []
        else:
            lines.append(line)
    return found


def every_scope(every: int) -> str:
    """Return the scope in a module of a branch that every so-many-th step takes."""
    return f"every_{every}_steps"


_EVERY = re.compile(r" conditional\(.*every_(\d+)_steps")


def every_of(line: str) -> int:
    """Return every how many steps one takes the branch of an instruction; 1 for any other."""
    found = _EVERY.search(line)
    return int(found[1]) if found else 1


def branches_of(computations: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the computations that not every step runs, and every how many one does."""
    pending = [(line, every_of(line)) for lines in computations.values() for line in lines]
    pending = [(line, every) for line, every in pending if every > 1]
    found: dict[str, int] = {}
    while pending:
        line, every = pending.pop()
        for name in _called(line):
            if name in computations and name not in found:
                found[name] = every
                pending += [(inner, every) for inner in computations[name]]
    return found


def _called(line: str) -> list[str]:
    """Return the computations that an instruction runs, but for the body of a loop."""
    found = [
        name for several, alone in _CALLED.findall(line) for name in (*several.split(","), alone)
    ]
    return [name.strip().lstrip("%") for name in found if name.strip()]


def executions_of(computations: Mapping[str, list[str]]) -> dict[str, int]:
    """Return the number of runs of each computation: more than one inside loops."""
    inside: dict[str, list[tuple[str, int]]] = {}
    for name, lines in computations.items():
        for line in lines:
            loop = WHILE.search(line)
            if loop:
                count = trips_of(line, computations)
                inside.setdefault(name, []).append((loop[2], count))
            inside.setdefault(name, []).extend((other, 1) for other in _called(line))
    times = dict.fromkeys(computations, 1)
    called = {name for names in inside.values() for name, _ in names}
    pending = [name for name in computations if name not in called]
    while pending:
        name = pending.pop()
        for other, count in inside.get(name, ()):
            if other in computations:
                times[other] = max(times[other], times[name] * count)
                pending.append(other)
    return times


def trips_of(line: str, computations: Mapping[str, list[str]]) -> int:
    """Return how often the body of a `while` runs, 1 if the module does not say."""
    trips, loop = _TRIPS.search(line), WHILE.search(line)
    if trips:
        return int(trips[1])
    return _trips(computations.get(loop[1], [])) if loop else 1


def _trips(condition: list[str]) -> int:
    """Return the bound in a loop's condition; 1 if it does not have a single constant."""
    bounds = {int(match[1]) for line in condition if (match := _CONSTANT.search(line))}
    return bounds.pop() if len(bounds) == 1 else 1


def _collective(
    match: re.Match[str], line: str, computation: str, times: int, num_devices: int
) -> ModuleCollective:
    group = _group_size(line, num_devices)
    kind = KINDS[match["opcode"]]
    shapes = [
        (dtype, prod(map(int, dimensions.split(","))) if dimensions else 1)
        for dtype, dimensions in _SHAPE.findall(match["type"])
    ]
    if kind == "network_send":
        shapes = shapes[:1]  # the others are a handle
    elif match["start"] and kind == "collective_permute":
        shapes = [shape for shape in shapes if shape != _CONTEXT]
        shapes = shapes[: max(len(shapes) // 2, 1)]  # operands, then results, then handles
    elif match["start"] and kind in ("all_gather", "reduce_scatter"):
        shapes = shapes[: max(len(shapes) // 2, 1)]  # operands, then results
    elif kind == "all_gather":
        shapes = [(dtype, size // group) for dtype, size in shapes]
    elif kind == "reduce_scatter":
        shapes = [(dtype, size * group) for dtype, size in shapes]
    elif kind == "all_to_all" and len(shapes) == group:  # on CPU it has a value for each replica
        shapes = [(shapes[0][0], sum(size for _, size in shapes))]
    if kind == "all_reduce" and SCATTERING in computation:
        kind = "reduce_scatter"
    in_async = (
        "async" in computation
        or 'is_sync":false' in line
        or "async_collective" in line
        or "chain_id" in line
    )
    return ModuleCollective(
        match["name"],
        kind,
        tuple(shapes),
        sum(size * bytes_of_element(dtype) for dtype, size in shapes),
        group,
        times,
        is_async=(bool(match["start"]) and 'is_sync":true' not in line) or in_async,
        is_fused="fus" in computation,
    )


def _group_size(line: str, num_devices: int) -> int:
    iota = _IOTA.search(line)
    if iota:
        return int(iota[2])
    groups = _GROUPS.search(line)
    return groups[1].count(",") + 1 if groups and groups[1] else num_devices


def bytes_of_element(dtype: str) -> int:
    """Return the bytes of an element of an HLO dtype; at least 1.

    >>> bytes_of_element("bf16"), bytes_of_element("pred"), bytes_of_element("f8e4m3fn")
    (2, 1, 1)
    """
    if dtype == "pred":
        return 1
    bits = re.match(r"\D+(\d+)", dtype)
    return max(int(bits[1]) // 8, 1) if bits else 1
