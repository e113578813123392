"""A compiled module as objects: computations of instructions, in the order of the schedule.

The text of an optimised module has one instruction per line, in computations that begin with
`%name (..) -> .. {`; attributes may go on in further lines:

    %fusion.2 = bf16[8,128]{1,0} fusion(%a, %b), kind=kOutput, calls=%inner, metadata={..}, ..

The body of a `while` runs once per iteration. Some platforms write the number of iterations in the
instruction, on others it is a constant in the condition.

In a module for TPUs the configuration of an instruction has the cycles that the compiler expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>.*?) (?P<opcode>[a-z][\w-]*)\("
)
_NAME = re.compile(r"%([\w.-]+)")
_SHAPE = re.compile(r"\b(pred|bf16|[fsuc]\d+(?:e\d+m\d+\w*)?)\[([\d,]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(?P<name>[\w.-]+) \(.*\{\s*$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.-]+)")
_CALLING = ("calls=", "to_apply=", "body=", "_computation")
_BRANCHES = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")
_CONDITION = re.compile(r" while\(.*condition=%?([\w.-]+), body=")
_TRIPS = re.compile(r'known_trip_count"?:\s*\{"n":"(\d+)"')
_CONSTANT = re.compile(r" = [su]32\[\]\S* constant\((\d+)\)")
_EVERY = re.compile(r" conditional\(.*every_(\d+)_steps")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_SPACE = re.compile(r"S\((\d+)\)")
_ENTRY = re.compile(r"^ENTRY %?([\w.-]+) ", re.MULTILINE)
_ALIAS = re.compile(r"\{(\d*)\}: \((\d+), \{(\d*)\}")
_PARAMETER = re.compile(r" parameter\((\d+)\)")


@dataclass(frozen=True)
class ModuleArray:
    """An array in a module: dtype, dimensions, and the memory layout as the module writes it."""

    dtype: str
    dimensions: tuple[int, ...]
    layout: str

    @property
    def bytes(self) -> int:
        """Return the bytes of all elements."""
        return prod(self.dimensions) * bytes_of_element(self.dtype)

    @property
    def memory_space(self) -> int:
        """Return the id of the array's memory: 0 the device's, 1 the core's own, 5 the host's."""
        found = _SPACE.search(self.layout)
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Alias:
    """A result that is stored in the buffer of an operand, or of one of the operand's elements."""

    result: int
    operand: int
    element: int


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction; `line` is its text."""

    name: str
    opcode: str
    type: str
    line: str

    def matched(self, pattern: re.Pattern[str]) -> str:
        """Return what the first group of a pattern matches in the line; "" without a match."""
        found = pattern.search(self.line)
        return found[1] if found else ""

    @cached_property
    def arrays(self) -> tuple[ModuleArray, ...]:
        """Return the arrays of the result."""
        return tuple(
            ModuleArray(dtype, tuple(map(int, filter(None, sizes.split(",")))), layout)
            for dtype, sizes, layout in _SHAPE.findall(self.type)
        )

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """Return the names of the operands."""
        start = self.line.index(f" {self.opcode}(", self.line.index(" = ")) + len(self.opcode) + 2
        depth, end = 1, start
        while depth and end < len(self.line):
            depth += {"(": 1, ")": -1}.get(self.line[end], 0)
            end += 1
        return tuple(_NAME.findall(self.line[start:end]))

    @cached_property
    def aliases(self) -> tuple[Alias, ...]:
        """Return which results are stored in the buffers of operands."""
        return _aliases(self.line) if "output_to_operand_aliasing" in self.line else ()

    @property
    def parameter(self) -> int:
        """Return the number of a parameter; -1 for other instructions."""
        return int(self.matched(_PARAMETER) or -1) if self.opcode == "parameter" else -1

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Return the names of the computations that the instruction runs; for a loop, the body."""
        # Most lines are long and call nothing. This test is faster than the regular expressions.
        if not any(word in self.line for word in _CALLING):
            return ()
        branches = _BRANCHES.search(self.line)
        listed = [name.strip(" %") for name in branches[1].split(",")] if branches else []
        return (*_CALLED.findall(self.line), *listed)

    @property
    def every(self) -> int:
        """Return n if every n-th step runs the branch; 1 unless local steps made the branch."""
        return int(self.matched(_EVERY) or 1) if self.opcode == "conditional" else 1

    @property
    def uses_host_memory(self) -> bool:
        """Return whether the instruction moves an array to or from the memory of the host."""
        return any(each.memory_space == HOST_MEMORY for each in self.arrays)

    @property
    def writes_host_memory(self) -> bool:
        """Return whether the instruction moves an array to the memory of the host."""
        if self.opcode == "copy-start":
            return self.arrays[0].memory_space == HOST_MEMORY
        return self.uses_host_memory and "update" in self.opcode

    @cached_property
    def cycles(self) -> int | None:
        """Return the cycles that the compiler expects; None if the module does not have them."""
        cycles = int(self.matched(_CYCLES) or UNKNOWN_CYCLES)
        return None if cycles >= UNKNOWN_CYCLES else cycles

    @cached_property
    def op_name(self) -> str:
        """Return the scopes and the operation from which the instruction came, as a path."""
        return self.matched(_OP_NAME)

    @cached_property
    def target(self) -> str:
        """Return the function that a custom call calls; "" for other instructions."""
        return self.matched(_TARGET)


HOST_MEMORY = 5
UNKNOWN_CYCLES = 2**62
"""The compiler writes this count of cycles, or more, where it has no estimate."""


class CompiledModule:
    """The computations of a module by name, and how often each runs in a step.

    >>> module = CompiledModule('''ENTRY %main (x: f32[8]) -> f32[8] {
    ...   ROOT %y = f32[8] negate(%x)
    ... }''')
    >>> module.entry, [each.opcode for each in module["main"]]
    ('main', ['negate'])
    """

    def __init__(self, text: str) -> None:
        """Parse the text of an optimised module."""
        self._lines = _computations(text)
        self._read: dict[str, tuple[Instruction, ...]] = {}
        entry = _ENTRY.search(text)
        self.entry = entry[1] if entry else ""
        self.aliases = _aliases(text.partition("\n")[0])
        """The results of the step that are stored in the buffers of its arguments."""

    def __contains__(self, computation: str) -> bool:
        return computation in self._lines

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __getitem__(self, computation: str) -> tuple[Instruction, ...]:
        """Return the instructions of a computation; () if there is no such computation."""
        if computation not in self._read:
            self._read[computation] = tuple(_instructions(self._lines.get(computation, ())))
        return self._read[computation]

    @cached_property
    def instructions(self) -> Mapping[str, Instruction]:
        """Return the instructions of all computations by name."""
        return {each.name: each for computation in self for each in self[computation]}

    def run_by(self, instruction: Instruction) -> list[str]:
        """Return the computations that an instruction runs: the body of a loop, or branches."""
        runs = instruction.opcode in ("while", "conditional", "call")
        return [name for name in instruction.called if self[name]] if runs else []

    def trips(self, loop: Instruction) -> int:
        """Return the number of iterations of a loop; 1 if unknown, or if `loop` is no loop."""
        if loop.opcode != "while":
            return 1
        if stated := loop.matched(_TRIPS):
            return int(stated)
        condition = self._lines.get(loop.matched(_CONDITION), ())
        bounds = {int(match[1]) for line in condition if (match := _CONSTANT.search(line))}
        return bounds.pop() if len(bounds) == 1 else 1

    @cached_property
    def executions(self) -> Mapping[str, int]:
        """Return the number of runs of each computation per step: more than 1 inside loops."""
        inside = {name: [*self._runs(name)] for name in self}
        times = dict.fromkeys(self, 1)
        called = {name for names in inside.values() for name, _ in names}
        pending = [name for name in self if name not in called]
        while pending:
            name = pending.pop()
            for other, count in inside[name]:
                times[other] = max(times[other], times[name] * count)
                pending.append(other)
        return times

    def _runs(self, computation: str) -> Iterator[tuple[str, int]]:
        """Yield the computations that a computation runs, each with its number of runs."""
        for instruction in self[computation]:
            count = self.trips(instruction)
            yield from ((name, count) for name in instruction.called if name in self)

    @cached_property
    def branches(self) -> Mapping[str, int]:
        """Return the computations that only every n-th step runs, each with its number n."""
        pending = [(each, each.every) for name in self for each in self[name] if each.every > 1]
        found: dict[str, int] = {}
        while pending:
            instruction, every = pending.pop()
            for name in instruction.called:
                if name in self and name not in found:
                    found[name] = every
                    pending += [(inner, every) for inner in self[name]]
        return found


def _aliases(text: str) -> tuple[Alias, ...]:
    """Return the aliases that the header of a module, or the line of an instruction, states."""
    return tuple(Alias(*(int(number or 0) for number in found)) for found in _ALIAS.findall(text))


def _computations(text: str) -> dict[str, list[str]]:
    """Return the lines of each computation of a module, by the computation's name."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        header = _COMPUTATION.match(line)
        if header:
            lines = found[header["name"]] = []
        else:
            lines.append(line)
    return found


def _instructions(lines: Sequence[str]) -> list[Instruction]:
    """Return the instructions of a computation. Attributes may follow in lines of their own."""
    found: list[tuple[re.Match[str], list[str]]] = []
    for line in lines:
        if match := _INSTRUCTION.match(line):
            found.append((match, []))
        if found:
            found[-1][1].append(line)
    return [
        Instruction(match["name"], match["opcode"], match["type"], "\n".join(text))
        for match, text in found
    ]


def every_scope(every: int) -> str:
    """Return the name of the scope of a branch that runs once in `every` steps."""
    return f"every_{every}_steps"


def bytes_of_element(dtype: str) -> int:
    """Return the bytes per element of an HLO dtype; at least 1.

    >>> bytes_of_element("bf16"), bytes_of_element("pred"), bytes_of_element("f8e4m3fn")
    (2, 1, 1)
    """
    if dtype == "pred":
        return 1
    bits = re.match(r"\D+(\d+)", dtype)
    return max(int(bits[1]) // 8, 1) if bits else 1


def hlo_dtype(dtype: str) -> str:
    """Return the name that a dtype of the graph has in modules.

    >>> hlo_dtype("i32"), hlo_dtype("bf16")
    ('s32', 'bf16')
    """
    return {"i": "s"}.get(dtype[0], dtype[0]) + dtype[1:]
