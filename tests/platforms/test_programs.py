"""Whole programs on the platform: random ones, the benchmark's, and what surrounds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphdist as gd
from graphdist.runtime.devices import Devices
from graphdist.tools.bench.measurement import Effort, measured
from graphdist.tools.bench.programs import TINY
from tests.aot.steps import make_step
from tests.properties.exact import random_arrays
from tests.properties.programs import programs
from tests.properties.steps import Body
from tests.properties.test_against_jax import check_equal

pytestmark = pytest.mark.long

SHORT = Effort(rounds=1, turn_seconds=0, compilations=1)
STEPS = 20


def cpu() -> Any:
    return jax.default_device(jax.local_devices(backend="cpu")[0])


def cpus_like(names: list[str], **options: Any) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(len(names))], **options)


def rows_for(strategy: gd.Strategy) -> np.ndarray[Any, Any]:
    shape = (4 * strategy.num_replicas_in_sync, 8)
    return np.random.default_rng(0).normal(size=shape).astype("f")


@settings(max_examples=40)
@given(programs(), st.integers(0, 9))
def test_a_random_program_gives_the_bits_of_cpus(
    pytestconfig: pytest.Config, program: Body, seed: int
) -> None:
    device = jax.local_devices(backend=pytestconfig.getoption("--platform"))[0]
    arrays = random_arrays(program.takes, seed)
    strategy = gd.OneDeviceStrategy(device)
    found = gd.function(lambda *inputs: strategy.run(program, inputs))(*arrays)
    with cpu():
        check_equal(found, jax.jit(program)(*map(np.asarray, arrays)))


@pytest.mark.parametrize("name", [name for name in TINY if name != "cores"])
def test_a_program_of_the_benchmark_has_the_losses_of_jax_by_hand(
    name: str, names: list[str]
) -> None:
    program = TINY[name]
    with jax.default_matmul_precision("highest"):
        here = gd.MirroredStrategy(names, **program.strategy_options)
        found = measured(program, here, ["graphdist", "shard_map", "jit", "fsdp"], SHORT)
        with cpu():
            on_cpus = cpus_like(names, **program.strategy_options)
            expected = measured(program, on_cpus, ["graphdist"], SHORT)
    tolerance = 2e-2 if getattr(program.model, "dtype", "") == "bfloat16" else 1e-4
    np.testing.assert_allclose(found[0].losses, expected[0].losses, rtol=tolerance)


def trained(strategy: gd.Strategy, steps: int, folder: Path | None = None) -> np.ndarray[Any, Any]:
    """Return the losses of steps, which continue the ones that a checkpoint in `folder` keeps."""
    step, params, _ = make_step(strategy, by_shape=False)
    checkpoint = gd.train.Checkpoint(params=params)
    if folder is not None and (latest := gd.train.latest_checkpoint(str(folder))):
        checkpoint.restore(latest)
    dataset = strategy.experimental_distribute_dataset([rows_for(strategy)] * steps)
    losses = [step(batch, 0.1)["loss"] for batch in dataset]  # none is waited for
    if folder is not None:
        checkpoint.save(str(folder / "ckpt"))
    return np.array(losses)


def test_a_checkpoint_moves_between_cpus_and_the_platform(names: list[str], tmp_path: Path) -> None:
    with jax.default_matmul_precision("highest"):
        one = cpus_like(names)
        here = gd.MirroredStrategy(names)
        whole = trained(one, 2 * STEPS)
        for name, first, second in (("up", one, here), ("down", here, one)):
            folder = tmp_path / name
            folder.mkdir()
            halves = [trained(strategy, STEPS, folder) for strategy in (first, second)]
            np.testing.assert_allclose(np.concatenate(halves), whole, rtol=1e-4)


@pytest.mark.parametrize("native", [False, True])
def test_a_step_is_saved_and_loaded(names: list[str], native: bool, tmp_path: Path) -> None:
    strategy, path = gd.MirroredStrategy(names), tmp_path / "step.gdx"
    step, _, spec = make_step(strategy)
    gd.aot.save(path, step.trace(spec, 0.1).lower().compile())
    runs = []
    for loads in (False, True):
        step, params, _ = make_step(strategy, by_shape=False)
        if loads:
            step = gd.aot.load(path, strategy=strategy, variables=params, native=native)
        (batch,) = strategy.experimental_distribute_dataset([rows_for(strategy)])
        runs.append([float(step(batch, 0.1)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-6)


def test_a_step_that_was_saved_on_cpus_runs_on_the_platform(
    names: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "step.gdx"
    strategies = [cpus_like(names), gd.MirroredStrategy(names)]
    losses = []
    for strategy in strategies:
        step, params, spec = make_step(strategy, by_shape=False)
        if strategy is strategies[0]:
            compiled = step.trace(spec, 0.1).lower().compile()
            gd.aot.save(path, compiled, platforms=["cpu", "gpu", "tpu"])
        loaded = gd.aot.load(path, strategy=strategy, variables=params)
        (batch,) = strategy.experimental_distribute_dataset([rows_for(strategy)])
        losses.append([float(loaded(batch, 0.1)["loss"]) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_random_numbers_dropout_and_metrics_are_those_of_cpus(names: list[str]) -> None:
    def of(strategy: gd.Strategy) -> list[Any]:
        with strategy.scope():
            mean, noise = gd.metrics.Mean(), gd.random.Generator.from_seed(3)

        @gd.function
        def step(x: Any) -> Any:
            def replica_fn(x: jax.Array) -> Any:
                kept = noise.uniform(x.shape) > 0.3
                mean.update_state(jnp.where(kept, x, 0))
                return kept, jax.random.normal(jax.random.key(1), (5,))

            return strategy.run(replica_fn, args=(x,))

        rows = np.arange(24, dtype="f").reshape(-1, 2)
        results = [
            [np.asarray(one) for one in strategy.experimental_local_results(kept)]
            for batch in strategy.experimental_distribute_dataset([rows[:7], rows[7:]])
            for kept in step(batch)
        ]
        return [*results, [np.asarray(mean.result())]]

    with jax.default_matmul_precision("highest"):
        pairs = zip(of(gd.MirroredStrategy(names)), of(cpus_like(names)), strict=True)
        for found, expected in pairs:
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6)


def test_what_is_no_number_is_found(names: list[str]) -> None:
    strategy = gd.MirroredStrategy(names)
    with strategy.scope():
        rate = gd.Variable(0.0, name="rate")
    step = gd.function(lambda: strategy.run(lambda: rate.assign(jnp.log(rate - 1.0))))
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"jax\.log"):
        step()


def test_the_devices_know_their_memory(devices: Devices, pytestconfig: pytest.Config) -> None:
    is_cpu = pytestconfig.getoption("--platform") == "cpu"
    assert (devices.memory_bytes == 0) is is_cpu
