"""Topologies without hardware: what compiles, and what says why it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas

import graphdist as gd
import graphdist.compat.v1 as gd1
from graphdist.runtime.absent_devices import absent_devices
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.chips import CHIPS
from graphdist.runtime.targets.gpu_targets import GPU_TARGETS
from graphdist.runtime.targets.topologies import find_topology
from tests.aot.steps import make_step


@pytest.mark.parametrize("name", [name for chip in CHIPS.values() for name in chip.examples])
def test_every_example_of_the_table_is_a_topology(name: str) -> None:
    topology = find_topology(name)
    assert topology.name == name
    assert topology.num_devices == topology.num_chips * topology.chip.devices


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(
    "name", [name for chip in CHIPS.values() if chip.platform == "tpu" for name in chip.examples]
)
def test_the_compiler_knows_the_tpus_of_the_table(name: str) -> None:
    topology = find_topology(name)
    devices = gd.TPUStrategy(topology=name).devices
    assert len(devices) == topology.num_devices
    assert devices.platform == "tpu"


def test_every_chip_has_constants_of_predictions() -> None:
    assert TIMINGS.keys() == CHIPS.keys()


def test_every_figure_has_a_source() -> None:
    for chip in CHIPS.values():
        assert {"memory", "memory_rate", "link", "network", "peak of bf16"} <= chip.sources.keys()
        assert all(chip.sources.values())
        assert (chip.closes_at is not None) == (chip.platform == "tpu")
        assert chip.platform == "gpu" or chip.links == 2 * chip.dimensions
        figures = [chip.memory, chip.memory_rate, chip.link, chip.network, *chip.peaks.values()]
        assert min(figures) > 0


@pytest.mark.parametrize(
    ("name", "interconnect", "network"),
    [("v4", 300, 6.25), ("v5e", 200, 3.125), ("v5p", 600, 6.25), ("h100", 450, 50)],
)
def test_bandwidths_are_of_one_direction(name: str, interconnect: float, network: float) -> None:
    assert CHIPS[name].interconnect_bandwidth == interconnect * 1e9
    assert CHIPS[name].network == network * 1e9


@pytest.mark.parametrize(
    ("name", "units", "size"), [("v4", 8, 128), ("v5e", 4, 128), ("v5p", 8, 128)]
)
def test_clocks_go_with_the_peaks(name: str, units: int, size: int) -> None:
    chip = CHIPS[name]
    assert chip.clock is not None
    assert chip.clock * units * size**2 * 2 == pytest.approx(chip.peak("bf16"), rel=0.01)


def test_the_gpus_of_the_table_have_descriptions() -> None:
    gpus = {chip.name: chip for chip in CHIPS.values() if chip.platform == "gpu"}
    assert set(gpus) == set(GPU_TARGETS)
    for name, chip in gpus.items():
        assert chip.memory_bytes == GPU_TARGETS[name].memory_bytes
        assert abs(chip.memory_rate / GPU_TARGETS[name].memory_bandwidth - 1) < 0.001


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v5e:16x1x6", "has 3 dimensions, a topology of v5e has 2"),
        ("v5e:64x64", "has 4096 chips; v5e has 1 to 256"),
        ("v5e:0x4", "has 0 chips"),
        ("v5:4x4", "did you mean v5e:4x4"),
        ("v5x:2x4", "did you mean v5e:2x4 or v5e:4x4 or v5e:2x2?"),
        ("h10:8x8", "did you mean h100:8x8"),
        ("v5x:4x4x8", "did you mean v5p:4x4x8"),
        ("h10:1x8", "did you mean h100:1x8"),
        ("", "unknown topology ''"),
        (None, "unknown topology None"),
    ],
)
def test_unknown_topologies_are_refused(name: Any, says: str) -> None:
    with pytest.raises(gd.DeviceError) as caught:
        find_topology(name)
    assert says in str(caught.value)


def test_the_extra_is_named_when_it_is_missing() -> None:
    with (
        mock.patch("graphdist.runtime.extras.has_package", return_value=False),
        pytest.raises(gd.MissingExtraError, match=r"pip install 'graphdist\[tpu\]'") as caught,
    ):
        absent_devices(find_topology("v5e:2x2"))
    assert isinstance(caught.value, ImportError)


def test_a_strategy_of_no_tpus_says_how_to_compile_for_some() -> None:
    with pytest.raises(gd.DeviceError, match="finds 0 TPUs here"):
        gd.TPUStrategy()


@pytest.mark.needs("tpu")
def test_replicas_go_slice_by_slice() -> None:
    strategy = gd.TPUStrategy(topology="v5e:4x4", num_slices=2)
    assert strategy.num_replicas_in_sync == 32
    slices = [device.slice_index for device in strategy.devices.devices]
    assert slices == [0] * 16 + [1] * 16
    assert str(strategy.topology) == "2 slices of v5e:4x4"
    assert "2 slices of v5e:4x4" in repr(strategy)
    hosts = [device.process_index for device in strategy.devices.devices[:16]]
    assert hosts == sorted(hosts)


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(
    ("name", "devices"), [("v4:2x2x1", 4), ("v4:4x4x4", 64), ("v5p:2x2x1", 4), ("tpu7x:2x2x1", 8)]
)
def test_chips_are_as_many_devices_as_tpu_hosts_report(name: str, devices: int) -> None:
    assert gd.TPUStrategy(topology=name).num_replicas_in_sync == devices


@pytest.mark.needs("tpu")
def test_a_device_of_v4_has_the_memory_of_a_chip() -> None:
    strategy = gd.TPUStrategy(topology="v4:2x2x1", shard_update=False)
    step, _, batch = make_step(strategy, width=32_768, layers=7)
    with pytest.raises(gd.DeviceMemoryError) as caught:
        step.trace(batch, 0.1).lower().compile()
    stated = strategy.topology.chip.memory_bytes if strategy.topology else 0
    assert caught.value.available_bytes == stated


@pytest.mark.needs("tpu")
def test_an_assignment_chooses_cores() -> None:
    cores = [(1, 1, 0, 0), (0, 0, 0, 0)]
    strategy = gd.TPUStrategy(None, cores, topology="v5e:2x2")
    assert [tuple(device.coords) for device in strategy.devices.devices] == [(1, 1, 0), (0, 0, 0)]
    with pytest.raises(gd.DeviceError, match=r"gives core \(5, 0, 0, 0\) but it is none"):
        gd.TPUStrategy(None, [(5, 0, 0, 0)], topology="v5e:2x2")
    with pytest.raises(gd.DeviceError, match="twice"):
        gd.TPUStrategy(None, [cores[0], cores[0]], topology="v5e:2x2")
    with pytest.raises(gd.ArgumentError, match="not \\[replicas, 4\\]"):
        gd.TPUStrategy(None, [(0, 0)], topology="v5e:2x2")


@pytest.mark.needs("tpu")
@pytest.mark.filterwarnings("ignore:experimental.TPUStrategy:DeprecationWarning")
def test_the_older_names_make_the_same() -> None:
    newer = gd.TPUStrategy(topology="v5e:2x2")
    cores = [(1, 1, 0, 0)]
    older = gd.experimental.TPUStrategy(device_assignment=cores, topology="v5e:2x2")
    assert older.num_replicas_in_sync == 1
    assert isinstance(older, gd.TPUStrategy)
    assert isinstance(newer, gd.experimental.TPUStrategy)
    oldest = gd1.TPUStrategy(topology="v5e:2x2", num_slices=2)
    assert oldest.num_replicas_in_sync == 8
    assert isinstance(oldest, gd1.Strategy)
    assert not isinstance(oldest, gd.Strategy)
    assert gd1.experimental.TPUStrategy is gd1.TPUStrategy
    with pytest.raises(gd.UnsupportedError, match="steps_per_run is 10"):
        gd1.TPUStrategy(steps_per_run=10, topology="v5e:2x2")


@pytest.mark.needs("tpu")
def test_a_replica_is_split_over_its_one_core() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", experimental_spmd_xla_partitioning=True)
    spec = gd.PerReplicaSpec((4, 2), jnp.float32, strategy=strategy)

    def split(fn: Callable[[Any], Any]) -> Any:
        return gd.function(lambda x: strategy.run(fn, args=(x,))).trace(spec)

    split(lambda x: strategy.experimental_assign_to_logical_device(x, 0))
    split(lambda x: strategy.experimental_split_to_logical_devices(x, [1, 1]))
    split(strategy.experimental_replicate_to_logical_devices)
    with pytest.raises(gd.ArgumentError, match="logical_device_id is 1"):
        split(lambda x: strategy.experimental_assign_to_logical_device(x, 1))
    with pytest.raises(gd.ArgumentError, match="makes 2 parts, but a replica has 1 core"):
        split(lambda x: strategy.experimental_split_to_logical_devices(x, [2, 1]))
    with pytest.raises(gd.ArgumentError, match="1 numbers for a tensor of 2 dimensions"):
        split(lambda x: strategy.experimental_split_to_logical_devices(x, [1]))
    with pytest.raises(gd.ContextError, match="outside of a replica function"):
        strategy.experimental_replicate_to_logical_devices(jnp.ones(2))


@pytest.mark.needs("tpu")
def test_everything_up_to_compile_works_and_running_says_why_not() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    step, params, _ = make_step(strategy, by_shape=False)
    (batch,) = strategy.experimental_distribute_dataset([np.ones((16, 8), "f")])
    compiled = step.trace(batch, 0.1).lower().compile()
    assert compiled.memory.argument_bytes >= 3 * 8 * 8 * 4
    assert "all-reduce" in compiled.as_text("hlo")
    uses: list[Callable[[], Any]] = [
        lambda: step(batch, 0.1),
        lambda: params[0].read_value(),
        lambda: batch.values,
        lambda: strategy.run(lambda x: x, args=(batch,)),
    ]
    for use in uses:
        with pytest.raises(gd.DeviceError, match="of which only the topology is here"):
            use()


@pytest.mark.needs("tpu")
def test_values_distributed_by_hand_are_shapes_too() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2")
    x = strategy.experimental_distribute_values_from_function(lambda context: np.ones(2, "f"))
    step = gd.function(lambda x: strategy.reduce("SUM", x, axis=None))
    assert step.trace(x).lower().graph.inputs[0].type.shape == (2,)


@pytest.mark.needs("tpu")
def test_nothing_is_computed_for_variables_on_absent_devices() -> None:
    with gd.TPUStrategy(topology="v5e:2x2").scope():
        huge = gd.Variable(lambda: jnp.zeros((2**20, 2**20)))  # 4 TiB
    assert huge.shape == (2**20, 2**20)
    assert "declared by shape" in repr(huge)


@pytest.mark.needs("cuda")
def test_a_gpu_host_that_is_not_here() -> None:
    strategy = gd.MirroredStrategy(topology="h100:1x4")
    step, _, batch = make_step(strategy)
    report = step.trace(batch, 0.1).lower().report()
    assert report.fits
    assert report.module_bytes == report.collective_bytes


@pytest.mark.needs("cuda")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # JAX will leave Triton to others
@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_of_pallas_is_compiled_for_gpus_that_are_not_here(count: int) -> None:
    from jax.experimental.pallas import triton

    def kernel(x: Any, y: Any) -> None:
        y[...] = x[...] + 1

    shape = jax.ShapeDtypeStruct((128,), jnp.float32)
    call = pallas.pallas_call(kernel, out_shape=shape, compiler_params=triton.CompilerParams())
    strategy = gd.MirroredStrategy(topology=f"h100:1x{count}")
    step = gd.function(lambda x: strategy.run(call, (x,)))
    spec = gd.PerReplicaSpec(shape.shape, shape.dtype, strategy=strategy)
    assert "triton" in step.trace(spec).lower().compile().as_text("hlo")


def test_topologies_go_with_their_strategies() -> None:
    with pytest.raises(gd.DeviceError, match="of Google TPU v5e, not of GPUs"):
        gd.MirroredStrategy(topology="v5e:2x2")
    with pytest.raises(gd.DeviceError, match="of NVIDIA H100 SXM, not of TPUs"):
        gd.TPUStrategy(topology="h100:1x8")
    with pytest.raises(gd.DeviceError, match="h100:16x8"):
        gd.TPUStrategy(topology="h100:8x8", num_slices=2)
    with pytest.raises(gd.ArgumentError, match="devices and a topology"):
        gd.MirroredStrategy(["cpu:0"], topology="h100:1x8")
    with pytest.raises(gd.ArgumentError, match="without a topology"):
        gd.TPUStrategy(num_slices=2)


@pytest.mark.parametrize("count", [1, 2])
def test_a_variable_declared_by_shape_runs_once_it_is_assigned(count: int) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(count)])
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((2,), jnp.float32), name="w")
    double = gd.function(lambda: w.assign(w * 2))
    assert double.trace().lower().compile().memory.argument_bytes == 8
    for use in (double, w.read_value):
        with pytest.raises(gd.RuntimeFailure, match=r"'w' was declared by its shape, \[2\]"):
            use()
    w.assign(jnp.ones(2))
    double()
    assert w.read_value().tolist() == [2, 2]
