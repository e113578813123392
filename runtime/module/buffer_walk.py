"""The buffers of a computation of a compiled module, each from its maker to its last use.

* A view (a tuple, an element of a tuple, a bitcast, the end of an asynchronous operation) has the
  buffers of its operands.
* The state of a loop stays in its buffers. A new value needs another buffer while the old value is
  used; between the last use of the old value and the new value the memory is free.
* An update in place has its operand's buffer, and so has a result of which the instruction says so.
  Another result may take the buffer of an operand of the same size that nothing uses later.
* Arguments of the step are held all the time. Results that the module stores in arguments are in
  the buffers of these arguments. Between the last use of such an argument and the result, its
  buffer may have other values, one at a time.

These are the rules of XLA's buffer assignment (`buffer_assignment.cc`), but for the order in which
values take the buffers of arguments. The peaks of modules for TPUs come out alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

from graphdist.runtime.module.instructions import Alias, Instruction, ModuleArray

_INDEX = re.compile(r"\bindex=(\d+)")
_PARTS = re.compile(r"[(){}\[,]")
_VIEWS = {"tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency"}
UPDATES = ("dynamic-update-slice", "scatter")
_READS_AGAIN = {
    "dot", "convolution", "custom-call", "copy", "transpose", "reduce", "gather", "concatenate",
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", "sort",
}  # fmt: skip
"""The operations whose results cannot share the buffer of an operand.

They read elements of the operand after they have written other elements of the result.
"""


@dataclass(eq=False, slots=True)
class Buffer:
    """A piece of memory with its maker, and the indices of the instructions that hold it.

    Where a loop's body does not need a buffer of the loop's state, `bytes` are negative.
    """

    bytes: int
    type: str
    maker: Instruction
    first: int
    last: int


class BufferWalk:
    """Follows the buffers of a branch from instruction to instruction.

    The arguments and the results are in buffers of the computation that runs it.
    """

    def __init__(self, body: Sequence[Instruction]) -> None:
        self.body = body
        self._by_name = {each.name: each for each in body}
        self._leaves: dict[str, list[Buffer]] = {}
        self._buffers: list[Buffer] = []
        self._sharing: list[tuple[Buffer, list[Buffer]]] = []
        self._owners: dict[Buffer, Buffer] = {}

    def follow(self, updates: Callable[[Instruction], bool]) -> Sequence[Buffer]:
        """Return the buffers; `updates` says whether an instruction changes an operand in place."""
        for number, instruction in enumerate(self.body):
            operands = [self._leaves.get(name, []) for name in instruction.operands]
            if instruction.opcode not in _VIEWS:
                for buffer in chain(*operands):
                    buffer.last = number
            is_update = updates(instruction)
            self._leaves[instruction.name] = self._made(number, instruction, operands, is_update)
        end = len(self.body) - 1
        results = self._leaves[self.body[-1].name] if self.body else []
        for buffer in results:
            buffer.last = end
        arguments = [each for each in self._buffers if each.maker.opcode == "parameter"]
        self._place(arguments, results)
        self._share(set(arguments))
        return self._buffers

    def state_of(self, loop: Instruction) -> list[Buffer]:
        """Return the buffers of a loop's state."""
        return [self._owner(each) for each in self._leaves[loop.name]]

    def totals(self, inside: Sequence[int]) -> list[int]:
        """Return the bytes at each instruction; `inside` are those of its loop or branch."""
        changes = [0] * (len(self.body) + 1)
        for buffer in self._buffers:
            changes[buffer.first] += buffer.bytes
            changes[buffer.last + 1] -= buffer.bytes
        return [total + more for total, more in zip(accumulate(changes), inside, strict=False)]

    def _place(self, arguments: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        """Place the arguments and the results."""
        for buffer in (*arguments, *results):
            buffer.bytes = 0

    def _made(
        self, number: int, instruction: Instruction, operands: list[list[Buffer]], is_update: bool
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
        if is_update:
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

    def _share(self, pinned: set[Buffer]) -> None:
        """Let results take the buffers of operands of the same size that are not used later."""
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


class LoopWalk(BufferWalk):
    """Follows the buffers of a loop's body. Its arguments and results are the loop's state."""

    def __init__(self, body: Sequence[Instruction], state: Sequence[Buffer]) -> None:
        """Start the walk; `state` are the buffers of the state in the computation around it."""
        super().__init__(body)
        self._state = state
        self._around: dict[Buffer, Buffer] = {}

    def state_of(self, loop: Instruction) -> list[Buffer]:
        """Return the buffers of an inner loop's state; those of this loop's are outside."""
        return [self._around.get(each, each) for each in super().state_of(loop)]

    def _place(self, arguments: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        given = set(arguments)
        for argument, result, held in zip(arguments, results, self._state, strict=False):
            self._around[argument] = held
            if result not in given and argument.last <= result.first:
                result.bytes = 0
                first, last = argument.last + 1, result.first - 1
                if first <= last and held.bytes == argument.bytes:
                    gap = Buffer(-held.bytes, held.type, held.maker, first, last)
                    self._buffers.append(gap)
        for argument in arguments:
            argument.bytes = 0


class EntryWalk(BufferWalk):
    """Follows the buffers of a step."""

    def __init__(self, body: Sequence[Instruction], stored: Sequence[Alias]) -> None:
        """Start the walk; `stored` are the results that are in the buffers of arguments."""
        super().__init__(body)
        self._stored = stored
        self._donated: list[_DonatedBuffer] = []

    def follow(self, updates: Callable[[Instruction], bool]) -> Sequence[Buffer]:
        """Return the buffers. The largest values are the first to be in donated arguments."""
        buffers = super().follow(updates)
        self._donated.sort(key=lambda each: each.bytes)
        for buffer in sorted(buffers, key=lambda each: -each.bytes):
            if buffer.bytes and buffer.maker.opcode != "parameter":
                place = next((each for each in self._donated if each.is_free_for(buffer)), None)
                if place is not None:
                    place.used.append((buffer.first, buffer.last))
                    buffer.bytes = 0
        return buffers

    def _place(self, arguments: Sequence[Buffer], results: Sequence[Buffer]) -> None:
        end, given = len(self.body) - 1, set(arguments)
        for alias in self._stored:
            result = results[alias.result]
            argument = [each for each in arguments if each.maker.parameter == alias.operand][
                alias.element
            ]
            if result not in given:
                result.bytes = 0
                if argument.last < result.first:
                    used = [(0, argument.last), (result.first, end)]
                    self._donated.append(_DonatedBuffer(argument.bytes, used))
        for argument in arguments:
            argument.first, argument.last = 0, end


@dataclass(eq=False, slots=True)
class _DonatedBuffer:
    """The buffer of an argument that the step gives away, and when it has values."""

    bytes: int
    used: list[tuple[int, int]]

    def is_free_for(self, buffer: Buffer) -> bool:
        fits = buffer.bytes <= self.bytes
        return fits and all(buffer.last < first or buffer.first > last for first, last in self.used)


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
