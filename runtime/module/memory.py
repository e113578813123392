"""The memory of a compiled module: what XLA reports, and what each instruction holds.

The text of a module has no addresses. So `buffer_walk.py` follows its buffers, from the instruction
that makes each to the last one that uses it. This finds when the peak is reached, and with which
buffers. The compiler's own peak, `Memory`, is that of the same buffers, with what it pads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any  # Any: JAX's analysis has no public type

from jax.stages import Compiled

from graphdist.runtime.module.buffer_walk import UPDATES, Buffer, BufferWalk, EntryWalk, LoopWalk
from graphdist.runtime.module.instructions import CompiledModule, Instruction


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a step needs on each device, in bytes, as XLA reports it.

    `alias_bytes` is the part of the arguments that outputs reuse (donated variables). `peak_bytes`
    is the most memory that is in use at once.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int


def memory_of(compiled: Compiled, platform: str) -> Memory:
    """Return the memory that a program compiled by JAX for a platform needs on each device.

    The TPU compiler reports the peak. The peak that other compilers report leaves out some
    temporary memory, so for other platforms the peak is the sum of all memory.
    """
    analysis: Any = compiled.memory_analysis()
    arguments, outputs = analysis.argument_size_in_bytes, analysis.output_size_in_bytes
    alias, temporary = analysis.alias_size_in_bytes, analysis.temp_size_in_bytes
    reported = _reported_peak(compiled, analysis) if platform == "tpu" else 0
    peak = reported or arguments + outputs - alias + temporary
    return Memory(arguments, outputs, alias, temporary, peak)


def _reported_peak(compiled: Compiled, analysis: Any) -> int:
    """Return the peak of the device's memory that the TPU compiler reports, 0 if unknown.

    The compiler reports the peak of the memory that has the larger one: of the device, or of the
    host. The device's is then that of the module's buffers.
    """
    peak: int = getattr(analysis, "peak_memory_in_bytes", 0)
    on_host: int = getattr(analysis, "host_temp_size_in_bytes", 0)
    if not on_host or peak > 1.01 * (analysis.argument_size_in_bytes + on_host):
        return peak
    return ModuleMemory(CompiledModule(compiled.as_text() or "")).entry.peak


@dataclass(frozen=True)
class Held:
    """The bytes that a computation holds at each instruction, without the computation's inputs.

    `bytes` includes `inside`, the bytes that the loop, branch or call at an instruction holds.
    """

    instructions: Sequence[Instruction]
    bytes: Sequence[int]
    inside: Sequence[int]
    buffers: Sequence[Buffer] = field(repr=False)

    @property
    def peak(self) -> int:
        """Return the most bytes held at one instruction."""
        return max(self.bytes, default=0)

    def at_peak(self) -> list[Buffer]:
        """Return the buffers that are held at the peak."""
        at = self.bytes.index(self.peak) if self.bytes else 0
        return [each for each in self.buffers if each.first <= at <= each.last and each.bytes]


class ModuleMemory:
    """The memory that the computations of a module hold.

    >>> module = CompiledModule('''ENTRY %main (x: f32[8]) -> f32[] {
    ...   %x = f32[8]{0} parameter(0)
    ...   %y = f32[8]{0} negate(%x)
    ...   %z = f32[8]{0} exponential(%y)
    ...   ROOT %s = f32[] reduce(%z, %x)
    ... }''')
    >>> ModuleMemory(module).of("main").bytes
    [32, 64, 64, 68]
    """

    def __init__(self, module: CompiledModule) -> None:
        self._module = module
        self._held: dict[str, Held] = {}

    @cached_property
    def entry(self) -> Held:
        """Return the memory that a step holds."""
        name = self._module.entry
        return self._follow(name, EntryWalk(self._module[name], self._module.aliases))

    def of(self, computation: str) -> Held:
        """Return the memory of the step, of a loop's body without its state, or of a branch."""
        return self._held[computation] if self.entry.instructions else self.entry

    def _follow(self, computation: str, walk: BufferWalk) -> Held:
        buffers = walk.follow(self._updates)
        inside = [self._inside(instruction, walk) for instruction in walk.body]
        held = Held(walk.body, walk.totals(inside), inside, buffers)
        self._held[computation] = held
        return held

    def _inside(self, instruction: Instruction, walk: BufferWalk) -> int:
        """Return the most bytes that the computations of an instruction hold."""
        peak = 0
        for name in self._module.run_by(instruction):
            body = self._module[name]
            is_loop = instruction.opcode == "while"
            inner = LoopWalk(body, walk.state_of(instruction)) if is_loop else BufferWalk(body)
            peak = max(peak, self._follow(name, inner).peak)
        return peak

    def at_peak(self) -> tuple[Instruction, list[Buffer]]:
        """Return the instruction at the peak, and the buffers held there, the largest first.

        If a loop runs at the peak, the instruction is an instruction of the loop's body, and the
        buffers of the body are included.
        """
        held, buffers = self.entry, list[Buffer]()
        while True:
            buffers += held.at_peak()
            instruction = held.instructions[held.bytes.index(held.peak)]
            bodies = [self.of(name) for name in self._module.run_by(instruction)]
            if not bodies:
                return instruction, _without_gaps(buffers)
            held = max(bodies, key=lambda body: body.peak)

    def _updates(self, instruction: Instruction) -> bool:
        """Return whether an instruction changes an operand in place."""
        if instruction.opcode in UPDATES:
            return True
        if instruction.opcode != "fusion" or not instruction.called:
            return False
        return any(each.opcode in UPDATES for each in self._module[instruction.called[0]])


def _without_gaps(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers that have values, without those of a loop's state that have none."""
    gaps = Counter((each.maker, -each.bytes) for each in buffers if each.bytes < 0)
    found = list[Buffer]()
    for each in sorted(buffers, key=lambda buffer: -buffer.bytes):
        if gaps[each.maker, each.bytes]:
            gaps[each.maker, each.bytes] -= 1
        elif each.bytes > 0:
            found.append(each)
    return found
