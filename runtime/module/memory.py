"""The memory of a compiled module: what XLA reports, and what each instruction holds.

The text of a module has no addresses. So buffers are followed from the instruction that makes them
to the last one that uses them:

* a view (a tuple, an element of a tuple, a bitcast, the end of an asynchronous operation) has the
  buffers of its operands;
* a loop's state stays in its buffers; a new value needs another buffer while the old one is used;
* an update in place has its operand's buffer, and a result may take the buffer of an operand of the
  same size that nothing uses later;
* arguments are held all the time; results that the module aliases to arguments are in their
  buffers.

The compiler pads arrays and leaves gaps between buffers, and it shares buffers by finer rules. So
its own peak, `Memory`, is the exact one; this analysis finds when, and with which buffers, the peak
is reached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain
from typing import Any  # Any: JAX's analysis has no public type

from jax.stages import Compiled

from graphdist.runtime.module.instructions import CompiledModule, Instruction, ModuleArray

_INDEX = re.compile(r"\bindex=(\d+)")
_PARTS = re.compile(r"[(){}\[,]")
_VIEWS = {"tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency"}
_UPDATES = ("dynamic-update-slice", "scatter")
_READS_AGAIN = {
    "dot", "convolution", "custom-call", "copy", "transpose", "reduce", "gather", "concatenate",
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "sort",
}  # fmt: skip
"""Operations that still read elements of an operand after they have written others of the result:
their results cannot share the operand's buffer."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that a step needs on each device, in bytes, as XLA reports it.

    `alias_bytes` is the part of the arguments that outputs reuse (donated variables).
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    peak_bytes: int

    def needed_bytes(self, platform: str) -> int:
        """Return the peak memory.

        The TPU compiler reports the peak. The peak that other compilers report leaves out some
        temporary memory, so for other platforms the sum of all memory is returned.
        """
        if platform == "tpu" and self.peak_bytes:
            return self.peak_bytes
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes


def memory_of(compiled: Compiled) -> Memory:
    """Return the memory that a program compiled by JAX needs on each device."""
    analysis: Any = compiled.memory_analysis()
    return Memory(
        analysis.argument_size_in_bytes,
        analysis.output_size_in_bytes,
        analysis.alias_size_in_bytes,
        analysis.temp_size_in_bytes,
        getattr(analysis, "peak_memory_in_bytes", 0),
    )


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory with its maker, and the indices of the instructions that hold it."""

    bytes: int
    type: str
    maker: Instruction
    first: int
    last: int


@dataclass(frozen=True)
class Held:
    """The bytes that a computation holds at each of its instructions, without its inputs.

    `inside` are the bytes among them that a loop, branch or call holds while it runs.
    """

    instructions: Sequence[Instruction]
    bytes: Sequence[int]
    inside: Sequence[int]
    buffers: Sequence[Buffer] = field(repr=False)

    @property
    def peak(self) -> int:
        """Return the most bytes held at one instruction."""
        return max(self.bytes, default=0)

    def largest_at_peak(self) -> list[Buffer]:
        """Return the buffers that are held at the peak, the largest first."""
        at = self.bytes.index(self.peak) if self.bytes else 0
        live = [each for each in self.buffers if each.first <= at <= each.last and each.bytes]
        return sorted(live, key=lambda each: -each.bytes)


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
        self._found: dict[str, Held] = {}

    @cached_property
    def entry(self) -> Held:
        """Return the memory that a step holds."""
        return self.of(self._module.entry)

    def of(self, computation: str) -> Held:
        """Return the memory that a computation holds. For a loop's body, the state is left out."""
        if computation not in self._found:
            is_entry = computation == self._module.entry
            aliased = self._module.aliased_results if is_entry else None
            body = self._module[computation]
            walk = _Walk(body, self._updates, aliased)
            self._found[computation] = walk.held([self._nested(each) for each in body])
        return self._found[computation]

    def held_at(self) -> dict[Instruction, int]:
        """Return the bytes that the chip holds while each instruction of the schedule runs."""
        found: dict[Instruction, int] = {}
        self._add(self._module.entry, 0, found)
        return found

    def _add(self, computation: str, base: int, found: dict[Instruction, int]) -> None:
        held = self.of(computation)
        for instruction, total, inside in zip(
            held.instructions, held.bytes, held.inside, strict=True
        ):
            found[instruction] = max(found.get(instruction, 0), base + total)
            for name in self._module.run_by(instruction):
                self._add(name, base + total - inside, found)

    def at_peak(self) -> tuple[Instruction, list[Buffer]]:
        """Return the instruction at the peak, and the buffers held there, the largest first.

        If a loop runs at the peak, the instruction is one of the loop's body, and the buffers of
        the body are included.
        """
        held, buffers = self.entry, []
        while True:
            buffers += held.largest_at_peak()
            instruction = held.instructions[held.bytes.index(held.peak)]
            bodies = [self.of(name) for name in self._module.run_by(instruction)]
            if not bodies:
                return instruction, sorted(buffers, key=lambda buffer: -buffer.bytes)
            held = max(bodies, key=lambda body: body.peak)

    def _nested(self, instruction: Instruction) -> int:
        """Return the largest peak of the computations that an instruction runs."""
        return max((self.of(name).peak for name in self._module.run_by(instruction)), default=0)

    def _updates(self, instruction: Instruction) -> bool:
        """Return whether an instruction changes an operand in place."""
        if instruction.opcode in _UPDATES:
            return True
        if instruction.opcode != "fusion" or not instruction.called:
            return False
        return any(each.opcode in _UPDATES for each in self._module[instruction.called[0]])


class _Walk:
    """Follows the buffers of a computation from instruction to instruction."""

    def __init__(
        self,
        body: Sequence[Instruction],
        updates: Callable[[Instruction], bool],
        aliased: Collection[int] | None,
    ) -> None:
        """Start the walk.

        `aliased` are the indices of the step's results that are in arguments' buffers. It is None
        for a computation that is not the entry.
        """
        self._body, self._updates, self._aliased = body, updates, aliased
        self._by_name = {each.name: each for each in body}
        self._leaves: dict[str, list[Buffer]] = {}
        self._given: list[Buffer] = []
        self._buffers: list[Buffer] = []
        self._sharing: list[tuple[Buffer, list[Buffer]]] = []
        self._owners: dict[Buffer, Buffer] = {}

    def held(self, inside: Sequence[int]) -> Held:
        """Return the memory that the computation holds.

        `inside` are the bytes that each instruction's loop or branch holds.
        """
        for number, instruction in enumerate(self._body):
            operands = [self._leaves.get(name, []) for name in instruction.operands]
            if instruction.opcode not in _VIEWS:
                for buffer in chain(*operands):
                    buffer.last = number
            self._leaves[instruction.name] = self._made(number, instruction, operands)
        end = len(self._body) - 1
        results = self._leaves[self._body[-1].name] if self._body else []
        for buffer in results:
            buffer.last = end
        self._share()
        self._place(results, end)
        return Held(self._body, self._totals(inside), inside, self._buffers)

    def _made(
        self, number: int, instruction: Instruction, operands: list[list[Buffer]]
    ) -> list[Buffer]:
        """Return the buffers of an instruction's results."""
        opcode, given = instruction.opcode, list(chain(*operands))
        arrays = instruction.arrays
        if opcode == "parameter":
            arguments = self._new(number, instruction, arrays)
            self._given += arguments
            return arguments
        if opcode == "get-tuple-element":
            return self._element(instruction, given)
        if opcode in _VIEWS or opcode == "while":
            return given
        if opcode.endswith("-done"):
            return self._ended(instruction, given)
        if opcode == "copy-start":
            copied = self._new(number, instruction, arrays[:1])
            return [*copied, *given, *self._new(number, instruction, arrays[2:])]
        if opcode.endswith("-start"):
            return [*given, *self._new(number, instruction, arrays[len(given) :])]
        if self._updates(instruction):
            return [self._updated(number, instruction, array, given) for array in arrays]
        made = self._new(number, instruction, arrays)
        if opcode not in _READS_AGAIN:
            self._sharing += ((buffer, given) for buffer in made)
        return made

    def _new(
        self, number: int, instruction: Instruction, arrays: Sequence[ModuleArray]
    ) -> list[Buffer]:
        made = [
            Buffer(
                array.bytes if array.memory_space == 0 else 0,
                f"{array.dtype}[{','.join(map(str, array.dimensions))}]",
                instruction,
                number,
                number,
            )
            for array in arrays
        ]
        self._buffers += made
        return made

    def _updated(
        self, number: int, instruction: Instruction, array: ModuleArray, given: list[Buffer]
    ) -> Buffer:
        """Return the operand's buffer that an update in place writes."""
        fitting = (each for each in given if each.bytes == array.bytes)
        return next(fitting, None) or self._new(number, instruction, [array])[0]

    def _element(self, instruction: Instruction, given: list[Buffer]) -> list[Buffer]:
        index = _INDEX.search(instruction.line)
        of = self._by_name.get(instruction.operands[0])
        if index is None or of is None:
            return []
        counts = list(_arrays_of_elements(of.type))
        start = sum(counts[: int(index[1])])
        return given[start : start + len(instruction.arrays)]

    def _ended(self, instruction: Instruction, given: list[Buffer]) -> list[Buffer]:
        """Return the buffers of the results of an asynchronous operation, which this ends."""
        start = self._by_name.get(instruction.operands[0]) if instruction.operands else None
        if start is None or start.opcode == "copy-start":
            return given[:1]
        before = sum(len(self._leaves.get(name, [])) for name in start.operands)
        return given[before : before + len(instruction.arrays)]

    def _share(self) -> None:
        """Let results take the buffers of operands of the same size that are not used later."""
        pinned = set(self._given)
        for buffer, given in self._sharing:
            for operand in given:
                owner = self._owner(operand)
                fits = owner.bytes == buffer.bytes > 0 and owner.last <= buffer.first
                if fits and owner not in pinned:
                    owner.last, buffer.bytes = buffer.last, 0
                    self._owners[buffer] = owner
                    break

    def _owner(self, buffer: Buffer) -> Buffer:
        while buffer in self._owners:
            buffer = self._owners[buffer]
        return buffer

    def _place(self, results: list[Buffer], end: int) -> None:
        """Place the arguments, and results that are stored in the buffers of arguments."""
        arguments = set(self._given)
        if self._aliased is None:
            for given, result in zip(self._given, results, strict=False):
                owner = self._owner(result)
                if owner not in arguments and given.last <= owner.first:
                    owner.bytes = 0
            for given in self._given:
                given.bytes = 0
            return
        for index, result in enumerate(results):
            owner = self._owner(result)
            if index in self._aliased and owner not in arguments:
                owner.bytes = 0
        for buffer in self._buffers:
            if buffer.maker.opcode == "parameter":
                buffer.first, buffer.last = 0, end

    def _totals(self, inside: Sequence[int]) -> list[int]:
        changes = [0] * (len(self._body) + 1)
        for buffer in self._buffers:
            changes[buffer.first] += buffer.bytes
            changes[buffer.last + 1] -= buffer.bytes
        return [total + more for total, more in zip(accumulate(changes), inside, strict=False)]


def _arrays_of_elements(type_text: str) -> Iterator[int]:
    """Yield the number of arrays in each element of a tuple type.

    >>> list(_arrays_of_elements("(f32[8]{0:T(8)}, (s32[], f32[2,3]{1,0}), u8[])"))
    [1, 2, 1]
    """
    depth, count, pending = 0, 0, False
    for found in _PARTS.finditer(type_text):
        part = found[0]
        if part[0] in "({":
            depth += 1
        elif part[0] in ")}":
            depth -= 1
        elif part == "[":
            count, pending = count + 1, True
        if pending and ((part == "," and depth == 1) or (part == ")" and depth == 0)):
            yield count
            count, pending = 0, False
