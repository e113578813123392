"""The user's lines of a compiled module's instructions.

Emission writes them into the names of operations as `forward(train.py:41)`.
"""

from __future__ import annotations

import re

from graphdist.runtime.scheduled_module import Instruction, ScheduledModule

_LABEL = re.compile(r"(\w+)\(([^/()]+:\d+)\)")
_MATMULS = ("convolution", "dot")
RECOMPUTED = "again"
PHASES = ("forward", "backward", RECOMPUTED, "step")


class Labels:
    """The user's lines of a module's instructions."""

    def __init__(self, module: ScheduledModule) -> None:
        self._module = module

    def of(self, instruction: Instruction) -> tuple[str, str]:
        """Return the phase and the line; a fusion has the line of its matrix multiplication."""
        inner = (each for name in instruction.called for each in self._module[name])
        matmul = next((each for each in inner if each.opcode in _MATMULS and each.op_name), None)
        found = _LABEL.findall((matmul or instruction).op_name)
        phase = next((name for name, _ in found if name in PHASES and name != "step"), "step")
        if any(name == RECOMPUTED for name, _ in found):
            phase = RECOMPUTED
        return phase, found[-1][1] if found else ""
