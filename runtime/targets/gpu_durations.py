"""How long the instructions of a module for GPUs take. Its compiler does not say.

An instruction takes the time to start it, and then the longer of two: its operations over what
large products reach on the GPU, and its bytes over a share of the memory's bandwidth.

So a product of 2 m n k operations reaches a smaller part of the peak the smaller it is. XLA's table
of measured products has that form: on B200, bfloat16, `2 m n k` from 4e9 to 7e10, times are within
a tenth of 5.5 us + operations / 1.5e15 (xla/service/gpu/model/matmul_interpolator_data.h, sm_100).
"""

from __future__ import annotations

from graphdist.runtime.module_cost import ModuleCost
from graphdist.runtime.scheduled_module import Instruction, ScheduledModule
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.durations import ChipDurations, KernelFlops
from graphdist.runtime.targets.topologies import Topology

TRITON = "__gpu$xla.gpu.triton"
"""The target of a call of a kernel of Pallas."""


class GpuDurations(ChipDurations):
    """The durations of instructions on the GPUs of a topology."""

    def __init__(
        self,
        topology: Topology,
        timing: ChipTiming,
        module: ScheduledModule,
        kernels: KernelFlops | None = None,
    ) -> None:
        """Take the constants of the GPU, the module, and the operations of its kernels."""
        super().__init__(topology, timing, kernels)
        self._cost = ModuleCost(module)

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction that computes."""
        if self._cost.is_free(instruction):
            return 0.0
        chip, timing = self._topology.chip, self._timing
        moving = self._cost.bytes(instruction) / (chip.memory_bandwidth * timing.copy_share)
        if instruction.target == TRITON:
            return max(self._kernel(instruction), (timing.launch + moving) * timing.slowdown)
        dtype, operations = self._cost.products(instruction)
        working = operations / chip.reached(dtype) if operations else 0.0
        return (timing.launch + max(working, moving)) * timing.slowdown
