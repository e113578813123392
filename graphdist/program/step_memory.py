"""When a compiled step holds most memory, and which arrays, by the user's lines.

`graphdist.runtime.module_memory` follows the module's buffers. The compiler's own peak, which the
report states, is larger by what it pads and by gaps between buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any  # Any: JSON

from graphdist.program.step_labels import Labels
from graphdist.runtime.module_memory import Buffer, ModuleMemory
from graphdist.runtime.scheduled_module import Instruction, ScheduledModule

MOST_ARRAYS = 10
ARGUMENT = "argument"
"""The phase of the step's arguments, variables among them."""


@dataclass(frozen=True, slots=True)
class HeldArrays:
    """Arrays of one type that a line's operations make, and that are held at the peak."""

    bytes: int
    count: int
    type: str
    phase: str
    line: str


@dataclass(frozen=True, slots=True)
class StepMemory:
    """The most bytes that a device holds in a step, where in the program, and of what.

    `during` has the bytes while each instruction of the schedule runs.
    """

    peak_bytes: int
    phase: str
    line: str
    largest: tuple[HeldArrays, ...]
    during: Mapping[Instruction, int] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return it as an object of JSON, without the bytes at each instruction."""
        largest = [
            {"bytes": each.bytes, "count": each.count, "type": each.type, "line": each.line}
            for each in self.largest
        ]
        peak = {"peak_bytes": self.peak_bytes, "phase": self.phase, "line": self.line}
        return {**peak, "largest": largest}


def memory_of_step(module: ScheduledModule, text: str, labels: Labels) -> StepMemory:
    """Return the memory that a step holds."""
    memory = ModuleMemory(module, text)
    instruction, buffers = memory.at_peak()
    phase, line = labels.of(instruction)
    return StepMemory(memory.entry.peak, phase, line, _largest(buffers, labels), memory.held_at())


def _largest(buffers: list[Buffer], labels: Labels) -> tuple[HeldArrays, ...]:
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for buffer in buffers:
        is_argument = buffer.maker.opcode == "parameter"
        phase, line = (ARGUMENT, "") if is_argument else labels.of(buffer.maker)
        key = buffer.type, phase, line
        total, count = found.get(key, (0, 0))
        found[key] = total + buffer.bytes, count + 1
    arrays = [
        HeldArrays(total, count, type_text, phase, line)
        for (type_text, phase, line), (total, count) in found.items()
    ]
    return tuple(sorted(arrays, key=lambda each: -each.bytes)[:MOST_ARRAYS])
