"""How long the instructions of a module for GPUs take. Its compiler does not say.

An instruction takes the time to start it, and then the longer of two: its operations over what
large products reach on the GPU, and its bytes over a share of the memory's bandwidth.

So a product of 2 m n k operations reaches a smaller part of the peak the smaller it is. XLA's table
of measured products has that form: on B200, bfloat16, `2 m n k` from 4e9 to 7e10, times are within
a tenth of 5.5 us + operations / 1.5e15 (xla/service/gpu/model/matmul_interpolator_data.h, sm_100).
"""

from __future__ import annotations

from graphdist.runtime.scheduled_module import Instruction
from graphdist.runtime.targets.durations import ChipDurations

TRITON = "__gpu$xla.gpu.triton"
"""The target of a call of a kernel of Pallas."""


class GpuDurations(ChipDurations):
    """The durations of instructions on the GPUs of a topology."""

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction that computes."""
        if self._cost.is_free(instruction):
            return 0.0
        timing, moving = self._timing, self._moving(instruction)
        if instruction.target == TRITON:
            return max(self._kernel(instruction), (timing.launch + moving) * timing.slowdown)
        working = self._working(*self._cost.products(instruction))
        return (timing.launch + max(working, moving)) * timing.slowdown
