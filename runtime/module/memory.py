"""The memory of a compiled module: what XLA reports, and what each instruction holds.

The text of a module has no addresses. So buffers are followed from the instruction that makes them
to the last one that uses them:

* a view (a tuple, an element of a tuple, a bitcast, the end of an asynchronous operation) has the
  buffers of its operands;
* the state of a loop stays in its buffers; a new value needs another buffer while the old value is
  used;
* an update in place has its operand's buffer, and so has a result of which the instruction says
  so; another result may take the buffer of an operand of the same size that nothing uses later;
* arguments are held all the time; results that the module aliases to arguments are in the buffers
  of these arguments. Between the last use of such an argument and the result, its buffer may have
  other values, one at a time.

The compiler pads arrays, leaves gaps between buffers, and shares buffers by finer rules. So the
compiler's own peak, `Memory`, is the exact peak. This analysis finds when the peak is reached, and
with which buffers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain
from typing import Any  # Any: JAX's analysis has no public type

from jax.stages import Compiled

from graphdist.runtime.module.instructions import (
    Alias,
    CompiledModule,
    Instruction,
    ModuleArray,
)

_INDEX = re.compile(r"\bindex=(\d+)")
_PARTS = re.compile(r"[(){}\[,]")
_VIEWS = {"tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency"}
_UPDATES = ("dynamic-update-slice", "scatter")
_READS_AGAIN = {
    "dot", "convolution", "custom-call", "copy", "transpose", "reduce", "gather", "concatenate",
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "sort",
}  # fmt: skip
"""The operations whose results cannot share the buffer of an operand.

They read elements of the operand after they have written other elements of the result.
"""


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
        self.of = cache(self._of)

    @property
    def entry(self) -> Held:
        """Return the memory that a step holds."""
        return self.of(self._module.entry)

    def _of(self, computation: str) -> Held:
        """Return the memory that a computation holds; for a loop's body without its state."""
        is_entry = computation == self._module.entry
        aliased = self._module.aliases if is_entry else None
        body = self._module[computation]
        inside = [max((each.peak for each in self._bodies(run)), default=0) for run in body]
        return _Walk(body, self._updates, aliased).held(inside)

    def _bodies(self, instruction: Instruction) -> list[Held]:
        """Return the memory of each computation that an instruction runs."""
        return [self.of(name) for name in self._module.run_by(instruction)]

    def at_peak(self) -> tuple[Instruction, list[Buffer]]:
        """Return the instruction at the peak, and the buffers held there, the largest first.

        If a loop runs at the peak, the instruction is an instruction of the loop's body, and the
        buffers of the body are included.
        """
        held, buffers = self.entry, []
        while True:
            buffers += held.largest_at_peak()
            instruction = held.instructions[held.bytes.index(held.peak)]
            bodies = self._bodies(instruction)
            if not bodies:
                return instruction, sorted(buffers, key=lambda buffer: -buffer.bytes)
            held = max(bodies, key=lambda body: body.peak)

    def _updates(self, instruction: Instruction) -> bool:
        """Return whether an instruction changes an operand in place."""
        if instruction.opcode in _UPDATES:
            return True
        if instruction.opcode != "fusion" or not instruction.called:
            return False
        return any(each.opcode in _UPDATES for each in self._module[instruction.called[0]])


@dataclass(eq=False, slots=True)
class _DonatedBuffer:
    """The buffer of an argument that the step gives away, and when it has values."""

    bytes: int
    used: list[tuple[int, int]]

    def is_free_for(self, buffer: Buffer) -> bool:
        fits = buffer.bytes <= self.bytes
        return fits and all(buffer.last < first or buffer.first > last for first, last in self.used)


class _Walk:
    """Follows the buffers of a computation from instruction to instruction."""

    def __init__(
        self,
        body: Sequence[Instruction],
        updates: Callable[[Instruction], bool],
        aliased: Sequence[Alias] | None,
    ) -> None:
        """Start the walk.

        `aliased` are the step's results that are in arguments' buffers; None for a computation
        that is not the entry.
        """
        self._body, self._updates, self._aliased = body, updates, aliased
        self._by_name = {each.name: each for each in body}
        self._leaves: dict[str, list[Buffer]] = {}
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
        arguments = [each for each in self._buffers if each.maker.opcode == "parameter"]
        donated = self._place(arguments, results, end)
        self._share(arguments)
        self._fill(donated, arguments)
        return Held(self._body, self._totals(inside), inside, self._buffers)

    def _made(
        self, number: int, instruction: Instruction, operands: list[list[Buffer]]
    ) -> list[Buffer]:
        """Return the buffers of an instruction's results."""
        opcode, given = instruction.opcode, list(chain(*operands))
        arrays = instruction.arrays

        def new(array: ModuleArray) -> Buffer:
            size = array.bytes if array.memory_space == 0 else 0
            text = f"{array.dtype}[{','.join(map(str, array.dimensions))}]"
            self._buffers.append(Buffer(size, text, instruction, number, number))
            return self._buffers[-1]

        if opcode == "get-tuple-element":
            return self._element(instruction, given)
        if opcode in _VIEWS or opcode == "while":
            return given
        if opcode.endswith("-done"):
            return self._ended(instruction, given)
        if opcode == "copy-start":
            return [*map(new, arrays[:1]), *given, *map(new, arrays[2:])]
        if opcode.endswith("-start"):
            return [*given, *map(new, arrays[len(given) :])]
        if instruction.aliases:
            shared = {
                each.result: leaf
                for each in instruction.aliases
                for leaf in operands[each.operand][each.element : each.element + 1]
            }
            return [shared.get(i) or new(array) for i, array in enumerate(arrays)]
        if self._updates(instruction):
            return [_of_size(array.bytes, given) or new(array) for array in arrays]
        made = list(map(new, arrays))
        if opcode not in _READS_AGAIN:
            self._sharing += ((buffer, given) for buffer in made)
        return made

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

    def _share(self, arguments: Sequence[Buffer]) -> None:
        """Let results take the buffers of operands of the same size that are not used later."""
        pinned = set(arguments)
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

    def _place(
        self, arguments: Sequence[Buffer], results: list[Buffer], end: int
    ) -> list[_DonatedBuffer]:
        """Place the arguments, and results that are stored in the buffers of arguments.

        Return the buffers of arguments that are free for a time.
        """
        given = set(arguments)
        if self._aliased is None:
            for argument, result in zip(arguments, results, strict=False):
                if result not in given and argument.last <= result.first:
                    result.bytes = 0
            for argument in arguments:
                argument.bytes = 0
            return []
        stored: dict[Buffer, Buffer] = {
            self._leaf(alias, arguments): results[alias.result] for alias in self._aliased
        }
        donated = list[_DonatedBuffer]()
        for argument in arguments:
            own = stored.get(argument)
            if own is not None and own not in given:
                own.bytes = 0
                if argument.last < own.first:
                    used = [(0, argument.last), (own.first, end)]
                    donated.append(_DonatedBuffer(argument.bytes, used))
            argument.first, argument.last = 0, end
        return donated

    def _leaf(self, alias: Alias, arguments: Sequence[Buffer]) -> Buffer:
        """Return the argument in whose buffer a result of the step is stored."""
        of_parameter = [each for each in arguments if each.maker.parameter == alias.operand]
        return of_parameter[alias.element]

    def _fill(self, donated: list[_DonatedBuffer], arguments: Sequence[Buffer]) -> None:
        """Place values in the buffers of donated arguments, the largest values first."""
        donated.sort(key=lambda each: each.bytes)
        pinned = set(arguments)
        for buffer in sorted(self._buffers, key=lambda each: -each.bytes):
            if buffer.bytes and buffer not in pinned:
                place = next((each for each in donated if each.is_free_for(buffer)), None)
                if place is not None:
                    place.used.append((buffer.first, buffer.last))
                    buffer.bytes = 0

    def _totals(self, inside: Sequence[int]) -> list[int]:
        changes = [0] * (len(self._body) + 1)
        for buffer in self._buffers:
            changes[buffer.first] += buffer.bytes
            changes[buffer.last + 1] -= buffer.bytes
        return [total + more for total, more in zip(accumulate(changes), inside, strict=False)]


def _of_size(size: int, buffers: Sequence[Buffer]) -> Buffer | None:
    """Return the first buffer of a size, which an update in place writes; None without one."""
    return next((each for each in buffers if each.bytes == size), None)


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
