"""How long the instructions of a compiled module take, on TPUs and on GPUs.

On both:

* A custom kernel, opaque to the compiler, takes its operations divided by a share of the peak.
* A collective takes the bytes that a chip sends divided by a share of its links' bandwidth, or the
  time to start it if that is longer.
* A copy takes its bytes divided by a share of the memory's bandwidth, or by the rate of the host if
  it goes to or from the host.

Any other instruction takes a time that depends on its products, on its bytes, and on the platform.

TPUs. The compiler estimates cycles. An instruction takes the longest of three times: its operations
divided by the rate that large products reach on the chip, its bytes divided by a share of the
memory's bandwidth, and half of the compiler's cycles.

Only half of the cycles counts, because the compiler adds up cycles of units of a core that work at
the same time. For single products the cycles are right: a product of 4096^3 takes 0.73 ms on v5e
without its dispatch, and 0.72 ms according to the cycles. A product of 8192^3 takes 1.02 ms on
tpu7x, and 1.03 ms according to the cycles. But in steps of published runs, products are fused with
other work. According to the cycles, these fusions reach three quarters of the chip's peak, while
the entire step was measured to reach nine tenths. The cycles of elementwise work and copies are two
to four times the time of their bytes. Cycles matter where neither operations nor bytes are the
bound: sorts, small arrays, products of few channels. Products of dtypes wider than bfloat16 take
several passes, and the compiler's cycles count all of them.

GPUs. The compiler estimates nothing. An instruction takes the time to start it, and then the longer
of two times: its operations divided by the rate that large products reach on the GPU, and its bytes
divided by a share of the memory's bandwidth.

So the smaller a product of 2 m n k operations is, the smaller is the share of the peak that it
reaches. XLA's table of measured products has that form: on B200, bfloat16, `2 m n k` from 4e9 to
7e10, times are within a tenth of 5.5 us + operations / 1.5e15
(xla/service/gpu/model/matmul_interpolator_data.h, sm_100).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from graphdist.ir.collective_bytes import Exchange
from graphdist.ir.cost import executions, node_cost
from graphdist.ir.graph import Graph
from graphdist.ir.kernels import KERNEL
from graphdist.runtime.module.collective_instructions import exchange_of
from graphdist.runtime.module.instruction_cost import ModuleCost
from graphdist.runtime.module.instructions import CompiledModule, Instruction, hlo_dtype
from graphdist.runtime.targets.rates import ChipRates

_TPU_KERNEL = "tpu_custom_call"
"""The target of the custom call of a Pallas kernel on TPUs."""
_GPU_KERNEL = "__gpu$xla.gpu.triton"
"""The target of the custom call of a Pallas kernel on GPUs."""
_ONE_PASS = ("bf16", "f16", "s8", "u8", "s4", "u4")

KernelFlops: TypeAlias = Mapping[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, int]]
"""The dtype and operations of each kernel, by the dtypes and dimensions of its results."""


class ChipDurations:
    """The durations of instructions on a device of a topology; a subclass for each platform."""

    def __init__(
        self, rates: ChipRates, module: CompiledModule, kernels: KernelFlops | None = None
    ) -> None:
        """Store the rates of the chip, the module, and the operations of its kernels."""
        self._rates, self._kernels = rates, kernels or {}
        self._cost = ModuleCost(module)

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds that an instruction computes."""
        raise NotImplementedError

    def _kernel(self, instruction: Instruction) -> float:
        arrays = tuple((each.dtype, each.dimensions) for each in instruction.arrays)
        seconds = self._rates.kernel(*self._kernels.get(arrays, ("bf16", 0)))
        return seconds * self._rates.timing.slowdown

    def exchange(self, instruction: Instruction, kind: str) -> Exchange:
        """Return the exchange of an instruction that runs a collective of a kind."""
        return exchange_of(instruction, kind, self._rates.topology.num_devices)

    def collective(self, exchange: Exchange) -> float:
        """Return the seconds of a collective."""
        return self._rates.collective(exchange)

    def copy(self, instruction: Instruction) -> float:
        """Return the seconds of an asynchronous copy."""
        moved = max((each.bytes for each in instruction.arrays[-2:]), default=0)
        if "slice" in instruction.opcode:
            moved = min((each.bytes for each in instruction.arrays if each.dimensions), default=0)
        rate = self._rates.host if instruction.uses_host_memory else self._rates.bytes
        return rate(moved)


class TpuDurations(ChipDurations):
    """The durations of instructions on the TPUs of a topology."""

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds that an instruction computes; 0 if it has no cycles."""
        if instruction.target == _TPU_KERNEL:
            return self._kernel(instruction)
        if instruction.cycles is None:
            return 0.0
        rates, clock = self._rates, self._rates.topology.chip.clock
        assert clock is not None, "a chip whose modules have cycles has a clock"
        expected = instruction.cycles / clock
        dtype, operations = self._cost.products(instruction)
        passes = operations and dtype not in _ONE_PASS and not dtype.startswith("f8")
        share = 1.0 if passes else rates.timing.cycle_share
        moving = rates.bytes(self._cost.bytes(instruction))
        bound = max(rates.products(dtype, operations), moving, share * expected)
        return bound * rates.timing.slowdown


class GpuDurations(ChipDurations):
    """The durations of instructions on the GPUs of a topology."""

    def compute(self, instruction: Instruction) -> float:
        """Return the seconds of an instruction that computes."""
        if self._cost.is_free(instruction):
            return 0.0
        timing, moving = self._rates.timing, self._rates.bytes(self._cost.bytes(instruction))
        if instruction.target == _GPU_KERNEL:
            return max(self._kernel(instruction), (timing.launch + moving) * timing.slowdown)
        working = self._rates.products(*self._cost.products(instruction))
        return (timing.launch + max(working, moving)) * timing.slowdown


def kernels_of(graph: Graph) -> KernelFlops:
    """Return the operations of a graph's kernels, by the arrays that the kernels return."""
    found: dict[tuple[tuple[str, tuple[int, ...]], ...], tuple[str, int]] = {}
    for node, _, _ in executions(graph):
        if node.op.name == KERNEL:
            results = tuple((hlo_dtype(r.type.dtype), r.type.shape) for r in node.results)
            cost = node_cost(node)
            found[results] = cost.main_dtype, cost.total_flops
    return found
