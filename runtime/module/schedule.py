"""The collectives in loops of a compiled module, and the instructions that overlap with each.

The text of a module that is compiled for TPUs is in the order of the schedule. A collective is
asynchronous if its start and its end are two instructions: the instructions between them run
meanwhile. There are three ways to write that:

    %s = .. all-gather-start(%x)                 %d = .. all-gather-done(%s)
    %s = .. async-start(%x), calls=%wrapped      %d = .. async-done(%s)
    %s = .. fusion(%x), calls=%first             %d = .. fusion(%y), calls=%last

In the third way, on v5e, both called computations contain the same collective with the same
`chain_id`. A fusion between the two that also contains the collective is a matrix multiplication
that overlaps with the collective. A collective that is one instruction is synchronous: nothing
overlaps with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphdist.runtime.module.collective_instructions import chain_of, is_local, kind_of
from graphdist.runtime.module.instructions import CompiledModule, Instruction

_NO_WORK = {"AllocateBuffer", "Sharding", "ConcatBitcast", "AsyncCollectiveDone"}
_COMPUTE = {
    "fusion", "dot", "convolution", "custom-call", "while", "conditional", "call", "reduce",
    "reduce-window", "select-and-scatter", "scatter", "gather", "sort", "cholesky", "fft",
    "triangular-solve",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoopCollective:
    """A collective in the body of a loop.

    The collective runs `times` times per step. `beside` has the names of the instructions that
    compute while the collective runs. `beside_cycles` is the compiler's estimate for these
    instructions; the compiler has no estimate for kernels and loops.
    """

    name: str
    kind: str
    loop: str
    times: int
    beside: tuple[str, ...] = ()
    beside_cycles: int = 0

    @property
    def is_exposed(self) -> bool:
        """Return whether nothing computes while the collective runs."""
        return not self.beside


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """An instruction, and what the instruction does in the schedule.

    `collective` is the kind of the collective that the instruction runs or starts. `inner` is the
    instruction of that collective, which may be inside a fusion. `start` names the asynchronous
    operation that the instruction starts, `end` the operation for whose end it waits.
    """

    instruction: Instruction
    collective: str = ""
    inner: Instruction | None = None
    start: str = ""
    end: str = ""
    computes: bool = False


def loop_collectives(module: CompiledModule) -> tuple[LoopCollective, ...]:
    """Return the collectives in the bodies of a scheduled module's loops, in their order.

    >>> module = CompiledModule('''%body (x: f32[2]) -> f32[8] {
    ...   ROOT %g = f32[8]{0} all-gather(%x), replica_groups={{0,1,2,3}}
    ... }
    ... ENTRY %main (x: f32[2]) -> f32[8] {
    ...   ROOT %w = f32[8] while(%x), condition=%until, body=%body
    ... }''')
    >>> [(found.kind, found.is_exposed) for found in loop_collectives(module)]
    [('all_gather', True)]
    """
    loops = (each for name in module for each in module[name] if each.opcode == "while")
    return tuple(
        collective
        for loop in loops
        for body in module.run_by(loop)
        for name in _run_by(body, module)
        for collective in _collectives(steps_of(module, name), body, module.executions[name])
    )


def exposed_by_loop(module: CompiledModule) -> dict[str, int]:
    """Return the number of exposed collectives in each loop's body, by the body's name."""
    counts: dict[str, int] = {}
    for collective in loop_collectives(module):
        counts[collective.loop] = counts.get(collective.loop, 0) + collective.is_exposed
    return counts


def _run_by(body: str, module: CompiledModule) -> Iterator[str]:
    """Yield a body and the computations that its calls and branches run."""
    pending, seen = [body], {body}
    while pending:
        name = pending.pop()
        yield name
        for instruction in module[name]:
            if instruction.opcode != "while":
                called = {*module.run_by(instruction)}
                pending += called - seen
                seen |= called


def steps_of(module: CompiledModule, computation: str) -> list[ScheduledStep]:
    """Return the instructions of a computation, in order, with their roles in the schedule."""
    return [_step(instruction, module) for instruction in module[computation]]


def _step(instruction: Instruction, module: CompiledModule) -> ScheduledStep:
    opcode, target = instruction.opcode, instruction.target
    if opcode.endswith("-done"):
        return ScheduledStep(instruction, end=next(iter(instruction.operands), ""))
    start = instruction.name if opcode.endswith("-start") or opcode == "send" else ""
    if is_local(instruction):
        return ScheduledStep(instruction)
    if kind := kind_of(instruction):
        return ScheduledStep(instruction, kind, instruction, start)
    if opcode in ("fusion", "async-start", "call-start"):
        inner = _inner_collective(instruction, module)
        if inner is not None:
            return _of_wrapped(instruction, inner)
    computes = opcode in _COMPUTE and not (target in _NO_WORK or target.endswith("Shape"))
    return ScheduledStep(instruction, start=start, computes=computes)


def _inner_collective(instruction: Instruction, module: CompiledModule) -> Instruction | None:
    """Return the collective in the computation that an instruction calls, if there is one."""
    inner = (each for called in instruction.called for each in module[called])
    wrapped = (each for each in inner if kind_of(each) and not each.opcode.endswith("-start"))
    return next(wrapped, None)


def _of_wrapped(instruction: Instruction, inner: Instruction) -> ScheduledStep:
    """Return the step of a fusion or of a start that calls a computation with a collective."""
    name, chain = instruction.name, chain_of(inner)
    kind = kind_of(inner, " ".join(instruction.called)) or ""
    if instruction.opcode != "fusion":
        return ScheduledStep(instruction, kind, inner, start=name)
    if not chain:
        return ScheduledStep(instruction, kind, inner)
    if name.startswith("async-collective-start"):
        return ScheduledStep(instruction, kind, inner, start=f"chain {chain}")
    if name.startswith("async-collective-done"):
        return ScheduledStep(instruction, end=f"chain {chain}")
    return ScheduledStep(instruction, computes=True)


def _collectives(steps: Sequence[ScheduledStep], loop: str, times: int) -> Iterator[LoopCollective]:
    for i, step in enumerate(steps):
        if not step.collective:
            continue
        ends = (j for j in range(i + 1, len(steps)) if steps[j].end == step.start)
        end = next(ends, len(steps)) if step.start else i
        beside = [other.instruction for other in steps[i + 1 : end] if other.computes]
        names = tuple(each.name for each in beside)
        cycles = sum(each.cycles or 0 for each in beside)
        yield LoopCollective(step.instruction.name, step.collective, loop, times, names, cycles)
