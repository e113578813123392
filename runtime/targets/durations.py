"""How long the instructions of a compiled module take: what all kinds of chips share.

* A kernel, which the compiler does not look into, takes its operations over a share of the peak.
* A collective takes the bytes that a chip sends over a share of its links' bandwidth, or the time
  to start it if that is longer.
* A copy takes its bytes over a share of the memory's bandwidth, to the host of the host's.

What else computes is bound by its products, by its bytes, and by what the platform knows of it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeAlias

from graphdist.ir.cost import Exchange
from graphdist.runtime.module_collectives import ModuleCollective, collective_of
from graphdist.runtime.module_cost import ModuleCost
from graphdist.runtime.schedule import ScheduledStep
from graphdist.runtime.scheduled_module import Instruction, ScheduledModule
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.roofline import collective_seconds
from graphdist.runtime.targets.topologies import Topology

_STRIDED = re.compile(r"replica_groups=(?:\[[\d,]+\]<=\[[\d,]+\]T\(|\{\{(\d+),(\d+))")

KernelFlops: TypeAlias = Mapping[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, int]]
"""Of kernels: the dtype and number of operations, by the dtypes and dimensions of the results."""


def hlo_dtype(dtype: str) -> str:
    """Return the name of a dtype in modules.

    >>> hlo_dtype("i32"), hlo_dtype("bf16")
    ('s32', 'bf16')
    """
    return {"i": "s"}.get(dtype[0], dtype[0]) + dtype[1:]


class ChipDurations(ABC):
    """The durations of instructions on the chips of a topology."""

    def __init__(
        self,
        topology: Topology,
        timing: ChipTiming,
        module: ScheduledModule,
        kernels: KernelFlops | None = None,
    ) -> None:
        """Take the constants of the chip, the module, and the operations of its kernels."""
        self._topology, self._timing, self._kernels = topology, timing, kernels or {}
        self._cost = ModuleCost(module)

    @abstractmethod
    def compute(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction that computes."""

    def _working(self, dtype: str, operations: int) -> float:
        """Return the seconds of the operations of products, at the rate that large ones reach."""
        chip = self._topology.chip
        return operations * chip.devices / chip.reached(dtype) if operations else 0.0

    def _moving(self, instruction: Instruction) -> float:
        """Return the seconds of the bytes that an instruction reads and writes."""
        chip = self._topology.chip
        rate = chip.memory_bandwidth * self._timing.copy_share
        return self._cost.bytes(instruction) * chip.devices / rate

    def _kernel(self, instruction: Instruction) -> float:
        arrays = tuple((each.dtype, each.dimensions) for each in instruction.arrays)
        dtype, flops = self._kernels.get(arrays, ("bf16", 0))
        chip = self._topology.chip
        seconds = flops * chip.devices / (chip.peak(dtype) * self._timing.kernel_share)
        return seconds * self._timing.slowdown

    def collective(self, step: ScheduledStep) -> float:
        """Return the seconds of a collective."""
        assert step.inner is not None
        made = collective_of(step.inner, step.collective, self._topology.num_devices)
        seconds = collective_seconds(self._topology, _exchange(made, step.inner.line))
        return max(seconds / self._timing.link_share, self._timing.link_start)

    def copy(self, instruction: Instruction) -> float:
        """Return the seconds of a copy that is started."""
        moved = max((each.bytes for each in instruction.arrays[-2:]), default=0)
        if "slice" in instruction.opcode:
            moved = min((each.bytes for each in instruction.arrays if each.dimensions), default=0)
        chip = self._topology.chip
        if instruction.uses_host_memory:
            return moved / self._timing.host_rate
        return moved * chip.devices / (chip.memory_bandwidth * self._timing.copy_share)


def _exchange(made: ModuleCollective, line: str) -> Exchange:
    strided = _STRIDED.search(line)
    is_across = strided is not None and (
        strided[1] is None or int(strided[2]) - int(strided[1]) > 1
    )
    return Exchange(made.kind, made.bytes, made.group_size, is_across)
