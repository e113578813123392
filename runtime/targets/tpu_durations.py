"""How long the instructions of a module for TPUs take, of which its compiler says the cycles.

An instruction takes the longest of three: its operations over the rate that large products reach
on the chip, its bytes over a share of the memory's bandwidth, and half of the compiler's cycles.

Why half: the compiler adds up what a core does at once. Of single products its cycles are right:
XLA's product of 4096^3 takes 0.73 ms on v5e without its dispatch, by cycles 0.72; 8192^3 takes 1.02
ms on tpu7x, by cycles 1.03. But in steps of published runs its cycles of products, which are fused
with other work, are three quarters of the chip's peak, where the entire step was measured to reach
nine tenths; and its cycles of elementwise work and copies are two to four times the time of their
bytes. Cycles tell where an instruction is bound by neither: sorts, small arrays, products of few
channels. Products of wider numbers than bfloat16 take several passes, which the compiler's cycles
have in full.
"""

from __future__ import annotations

from graphdist.runtime.scheduled_module import Instruction
from graphdist.runtime.targets.durations import ChipDurations

KERNEL = "tpu_custom_call"
"""The target of a call of a kernel of Pallas."""
_ONE_PASS = ("bf16", "f16", "s8", "u8", "s4", "u4")


class TpuDurations(ChipDurations):
    """The durations of instructions on the TPUs of a topology."""

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction that computes; none of one without cycles."""
        if instruction.target == KERNEL:
            return self._kernel(instruction)
        if instruction.cycles is None:
            return 0.0
        clock, timing = self._topology.chip.clock, self._timing
        assert clock is not None, "a chip whose modules have cycles has a clock"
        expected = instruction.cycles / clock.value
        dtype, operations = self._cost.products(instruction)
        passes = operations and dtype not in _ONE_PASS and not dtype.startswith("f8")
        share = 1.0 if passes else timing.cycle_share
        bound = max(self._working(dtype, operations), self._moving(instruction), share * expected)
        return bound * timing.slowdown
