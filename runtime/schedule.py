"""The collectives inside loops of a compiled module, and what the schedule runs beside each.

The text of a module that is compiled for TPUs is in the order of the schedule. A collective is
asynchronous if its start and its end are two instructions. What stands between them runs meanwhile.
There are three ways to write that:

    %s = .. all-gather-start(%x)                 %d = .. all-gather-done(%s)
    %s = .. async-start(%x), calls=%wrapped      %d = .. async-done(%s)
    %s = .. fusion(%x), calls=%first             %d = .. fusion(%y), calls=%last

In the third, of v5e, the computations that are called hold the same collective with the same
`chain_id`; a fusion between them that holds it too is a matrix multiplication beside it.
A collective that is one instruction is synchronous: nothing runs beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphdist.runtime.hlo import CHAIN, KINDS, SCATTERING, WHILE, computations_of, executions_of

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = .*? (?P<opcode>[a-z][\w-]*)\(")
_OPERAND = re.compile(r" [a-z][\w-]*-done\((?:[^%]*?)%?([\w.-]+)\)")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.-]+)")
_BRANCHES = re.compile(r"(?:branch|called)_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_NO_WORK = re.compile(r'custom_call_target="(?:AllocateBuffer|Sharding|\w*Shape)"')
_COMPUTE = {
    "fusion", "dot", "convolution", "custom-call", "while", "conditional", "call", "reduce",
    "reduce-window", "select-and-scatter", "scatter", "gather", "sort", "cholesky", "fft",
    "triangular-solve",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoopCollective:
    """A collective in the body of a loop.

    `times` counts its runs in a step, `beside` the instructions that compute while it runs.
    `beside_cycles` is the compiler's estimate for them; it has none for kernels and loops.
    """

    name: str
    kind: str
    loop: str
    times: int
    is_async: bool
    beside: tuple[str, ...] = ()
    beside_cycles: int = 0

    @property
    def is_exposed(self) -> bool:
        """Return whether nothing computes while it runs."""
        return not self.beside


@dataclass(frozen=True, slots=True)
class _Step:
    """An instruction of a schedule: `start` and `end` name the collective they belong to."""

    name: str
    collective: str = ""
    start: str = ""
    end: str = ""
    computes: bool = False
    cycles: int = 0


def loop_collectives(text: str) -> tuple[LoopCollective, ...]:
    """Return the collectives in the bodies of a scheduled module's loops, in their order.

    >>> text = '''%body (x: f32[2]) -> f32[8] {
    ...   ROOT %g = f32[8]{0} all-gather(%x), replica_groups={{0,1,2,3}}
    ... }
    ... ENTRY %main (x: f32[2]) -> f32[8] {
    ...   ROOT %w = f32[8] while(%x), condition=%until, body=%body
    ... }'''
    >>> [(found.kind, found.is_exposed) for found in loop_collectives(text)]
    [('all_gather', True)]
    """
    computations = computations_of(text)
    times = executions_of(computations)
    found: list[LoopCollective] = []
    for loop in _bodies(computations):
        for name in _run_by(loop, computations):
            steps = [step for line in computations[name] if (step := _step(line, computations))]
            found += (replace(each, times=times[name]) for each in _collectives(steps, loop))
    return tuple(found)


def exposed_by_loop(text: str) -> dict[str, int]:
    """Return how many collectives of each loop's body nothing overlaps, by the body's name."""
    counts: dict[str, int] = {}
    for collective in loop_collectives(text):
        counts[collective.loop] = counts.get(collective.loop, 0) + collective.is_exposed
    return counts


def _bodies(computations: Mapping[str, Sequence[str]]) -> list[str]:
    loops = (WHILE.search(line) for lines in computations.values() for line in lines)
    return [loop[2] for loop in loops if loop and loop[2] in computations]


def _run_by(body: str, computations: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a body and the computations that its calls and branches run."""
    pending, seen = [body], {body}
    while pending:
        name = pending.pop()
        yield name
        for line in computations[name]:
            match = _INSTRUCTION.match(line)
            if match and match["opcode"] in ("call", "conditional"):
                called = set(_called(line)) & computations.keys()
                pending += called - seen
                seen |= called


def _called(line: str) -> list[str]:
    branches = _BRANCHES.search(line)
    listed = [name.strip(" %") for name in branches[1].split(",")] if branches else []
    return [*_CALLED.findall(line), *listed]


def _step(line: str, computations: Mapping[str, Sequence[str]]) -> _Step | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    name, opcode = match["name"], match["opcode"]
    base = opcode.removesuffix("-start").removesuffix("-done")
    if opcode.endswith("-done"):
        operand = _OPERAND.search(line)
        return _Step(name, end=operand[1] if operand else "")
    if base in KINDS and base != "send":
        return _Step(name, KINDS[base], start=name if opcode.endswith("-start") else "")
    if opcode == "send":
        return _Step(name, KINDS[opcode], start=name) if "megascale" in line else None
    inner = _inner_collective(line, computations) if opcode in ("fusion", "async-start") else None
    if inner is not None:
        return _of_wrapped(name, opcode, *inner, _cycles(line))
    computes = opcode in _COMPUTE and not _NO_WORK.search(line)
    return _Step(name, computes=computes, cycles=_cycles(line))


def _cycles(line: str) -> int:
    cycles = _CYCLES.search(line)
    return int(cycles[1]) if cycles else 0


def _inner_collective(
    line: str, computations: Mapping[str, Sequence[str]]
) -> tuple[str, str] | None:
    """Return the kind and the chain of the collective that a wrapping instruction calls."""
    for called in _called(line):
        for inner in computations.get(called, ()):
            match = _INSTRUCTION.match(inner)
            if match and match["opcode"] in KINDS:
                kind, chain = KINDS[match["opcode"]], CHAIN.search(inner)
                scatters = kind == "all_reduce" and SCATTERING in called
                return "reduce_scatter" if scatters else kind, chain[1] if chain else ""
    return None


def _of_wrapped(name: str, opcode: str, kind: str, chain: str, cycles: int) -> _Step:
    if opcode == "async-start":
        return _Step(name, kind, start=name)
    if not chain:
        return _Step(name, kind)
    if name.startswith("async-collective-start"):
        return _Step(name, kind, start=f"chain {chain}")
    if name.startswith("async-collective-done"):
        return _Step(name, end=f"chain {chain}")
    return _Step(name, computes=True, cycles=cycles)


def _collectives(steps: Sequence[_Step], loop: str) -> Iterator[LoopCollective]:
    for i, step in enumerate(steps):
        if not step.collective:
            continue
        beside: list[_Step] = []
        if step.start:
            later = range(i + 1, len(steps))
            end = next((j for j in later if steps[j].end == step.start), len(steps))
            beside = [other for other in steps[i + 1 : end] if other.computes]
        yield LoopCollective(
            step.name,
            step.collective,
            loop,
            1,
            is_async=bool(step.start),
            beside=tuple(other.name for other in beside),
            beside_cycles=sum(other.cycles for other in beside),
        )
