"""How long instructions for TPUs take, against times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphdist.runtime.module.instructions import CompiledModule
from graphdist.runtime.module.predicted_seconds import KernelFlops, TpuDurations
from graphdist.runtime.module.timeline import predicted_turn
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.rates import ChipRates
from graphdist.runtime.targets.topologies import Topology, find_topology

V5E, TPU7X = find_topology("v5e:4x4"), find_topology("tpu7x:2x2x1")
TIMING = replace(TIMINGS["v5e"], slowdown=1.0)
CLOCK, REACHED, BANDWIDTH = 1.5e9, 184.3e12, 819e9 * 0.8
MODULE = """HloModule m, is_scheduled=true

%product (p0: DTYPE[4096,4096], p1: DTYPE[4096,4096]) -> DTYPE[4096,4096] {
  %p0 = DTYPE[4096,4096]{1,0} parameter(0)
  %p1 = DTYPE[4096,4096]{1,0} parameter(1)
  ROOT %d = DTYPE[4096,4096]{1,0} convolution(%p0, %p1), dim_labels=bf_io->bf
}
%negated (n0: DTYPE[4096,4096]) -> DTYPE[4096,4096] {
  %n0 = DTYPE[4096,4096]{1,0} parameter(0)
  ROOT %n = DTYPE[4096,4096]{1,0} negate(%n0)
}
ENTRY %main (x: DTYPE[4096,4096]) -> DTYPE[4096,4096] {
  %x = DTYPE[4096,4096]{1,0} parameter(0)
  %k = DTYPE[4096,4096]{1,0} custom-call(%x), custom_call_target="tpu_custom_call"
  %u = DTYPE[4096,4096]{1,0} fusion(%x), kind=kLoop, calls=%negated
  %n = DTYPE[4096,4096]{1,0} fusion(%k), kind=kLoop, calls=%negated, CYCLES
  ROOT %y = DTYPE[4096,4096]{1,0} fusion(%n, %x), kind=kOutput, calls=%product, CYCLES
}
"""
KERNEL: KernelFlops = {(("bf16", (4096, 4096)),): ("bf16", 10**12)}
PRODUCT = 2 * 4096**3 / REACHED
MOVES = 2 * 2 * 4096**2 / BANDWIDTH


def module(cycles: int, dtype: str = "bf16") -> CompiledModule:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return CompiledModule(MODULE.replace("CYCLES", config).replace("DTYPE", dtype))


def seconds(name: str, cycles: int = 1, dtype: str = "bf16", topology: Topology = V5E) -> float:
    read = module(cycles, dtype)
    durations = TpuDurations(ChipRates(topology, TIMING), read, KERNEL)
    return durations.compute(read.instructions[name])


def test_an_instruction_takes_its_operations_or_its_bytes() -> None:
    assert seconds("y") == pytest.approx(PRODUCT)
    assert seconds("n") == pytest.approx(MOVES)


@pytest.mark.parametrize("name", ["y", "n"])
def test_it_takes_at_least_half_of_the_cycles(name: str) -> None:
    assert seconds(name, cycles=10**7) == pytest.approx(0.5 * 10**7 / CLOCK)


def test_products_of_wider_numbers_take_the_cycles_of_all_passes() -> None:
    assert seconds("y", cycles=10**7, dtype="f32") == pytest.approx(10**7 / CLOCK)
    assert seconds("n", cycles=10**7, dtype="f32") == pytest.approx(0.5 * 10**7 / CLOCK)


def test_a_kernel_takes_its_operations_and_others_without_cycles_nothing() -> None:
    assert seconds("k") == pytest.approx(10**12 / (0.9 * 197e12))
    assert seconds("u") == 0


def test_a_device_that_is_half_a_chip_has_half_of_its_rates() -> None:
    assert seconds("n", topology=TPU7X) == pytest.approx(2 * 2 * 4096**2 / (0.8 * 7380e9 / 2))
    assert seconds("y", topology=TPU7X) == pytest.approx(2 * 4096**3 / 1081.3e12)


def test_the_parts_of_a_step_add_up() -> None:
    turn = predicted_turn(module(1), ChipRates(V5E, replace(TIMING, slowdown=1.1)), KERNEL)
    assert turn.compute == pytest.approx(1.1 * (PRODUCT + MOVES + 10**12 / (0.9 * 197e12)))
    assert turn.seconds == turn.compute
