"""How long instructions for GPUs take, against times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.predicted_seconds import GpuDurations, KernelFlops
from graphdist.runtime.module.timeline import predicted_turn
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import find_topology

H100 = find_topology("h100:1x8")
TIMING = replace(TIMINGS["h100"], slowdown=1.0)
GROUPS = "replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}"
MODULE = """HloModule m, is_scheduled=true

ENTRY %main (x: bf16[8192,4096]) -> bf16[8192,4096] {
  %x = bf16[8192,4096]{1,0} parameter(0)
  %w = bf16[512,4096]{1,0} parameter(1)
  %s = (bf16[512,4096]{1,0}, bf16[4096,4096]{1,0}) all-gather-start(%w), GROUPS
  %c = bf16[8192,4096]{0,1} copy(%x)
  %g = bf16[4096,4096]{1,0} all-gather-done(%s)
  %k = bf16[8192,4096]{1,0} custom-call(%x), custom_call_target="__gpu$xla.gpu.triton"
  ROOT %y = bf16[8192,4096]{1,0} dot(%k, %g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
KERNEL: KernelFlops = {(("bf16", (8192, 4096)),): ("bf16", 10**12)}
PRODUCT = 2e-6 + 2 * 8192 * 4096 * 4096 / 794.5e12
COPY = 2e-6 + 2 * 2 * 8192 * 4096 / (0.85 * 3352e9)
ATTENTION = 10**12 / (0.4 * 989e12)
GATHER = 7 * 512 * 4096 * 2 / 450e9 / 0.8


def seconds(name: str, slowdown: float = 1.0) -> float:
    module = CompiledModule(MODULE.replace("GROUPS", GROUPS))
    durations = GpuDurations(ChipRates(H100, replace(TIMING, slowdown=slowdown)), module, KERNEL)
    return durations.compute(module.instructions[name])


def test_a_product_takes_its_start_and_its_operations() -> None:
    assert seconds("y") == pytest.approx(PRODUCT)
    assert seconds("y", slowdown=1.5) == pytest.approx(1.5 * PRODUCT)


def test_what_moves_takes_the_memory_and_a_kernel_its_operations() -> None:
    assert seconds("c") == pytest.approx(COPY)
    assert seconds("k") == pytest.approx(ATTENTION)
    assert seconds("x") == 0


def test_a_gather_is_hidden_by_what_stands_between_its_start_and_its_end() -> None:
    turn = predicted_turn(
        CompiledModule(MODULE.replace("GROUPS", GROUPS)), ChipRates(H100, TIMING), KERNEL
    )
    assert turn.compute == pytest.approx(COPY + ATTENTION + PRODUCT)
    assert turn.exposed == pytest.approx(max(GATHER - COPY, 0))
    assert turn.idle == 0
    assert turn.seconds == turn.compute + turn.exposed
