"""Several workers load one file of a step, and it trains as the function does in one process."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.multi_worker.launch import run
from tests.multi_worker.programs import loaded
from tests.multi_worker.test_faults import errors_of


def saved(path: Path, replicas: int, *, shard_update: bool = False) -> str:
    strategy = gd.MirroredStrategy(
        [f"cpu:{number}" for number in range(replicas)], shard_update=shard_update
    )
    step, _ = loaded.make(strategy, by_shape=True)
    spec = gd.PerReplicaSpec((loaded.ROWS, loaded.FEATURES), jnp.float32, strategy=strategy)
    gd.aot.save(path, step.trace(spec, 0.1).lower().compile())
    return str(path)


@pytest.mark.long
@pytest.mark.parametrize(("doing", "devices"), [("run", 1), ("run", 2), ("sliced", 2)])
def test_losses_are_those_of_one_process(tmp_path: Path, doing: str, devices: int) -> None:
    replicas = 2 * devices
    path = saved(tmp_path / "step.gdx", replicas, shard_update=doing == "sliced")
    alone = gd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)])
    step, (weights, _) = loaded.make(alone)
    losses = loaded.run(alone, step)
    outcome = run(2, "loaded", doing, path, devices=devices)
    assert outcome.status == 0, outcome.err
    for worker in range(2):
        ((found, values),) = outcome.said[worker]
        np.testing.assert_allclose(found, losses, rtol=1e-6)
        np.testing.assert_allclose(values, weights.read_value(), rtol=1e-5)


@pytest.mark.long
def test_workers_with_different_files_are_told(tmp_path: Path) -> None:
    one, other = (
        saved(tmp_path / "step.gdx", 2),
        saved(tmp_path / "other.gdx", 2, shard_update=True),
    )
    outcome = run(2, "loaded", "differ", one, other)
    assert outcome.status != 0
    assert "is another file than on" in errors_of(outcome, 0)
    assert "give all workers the same file" in errors_of(outcome, 1)


@pytest.mark.long
def test_numbers_that_differ_between_workers_are_told(tmp_path: Path) -> None:
    outcome = run(2, "loaded", "rates", saved(tmp_path / "step.gdx", 2))
    assert outcome.status != 0
    for worker in range(2):
        told = errors_of(outcome, worker)
        assert "argument 'rate' is 0.1 on worker 0" in told
        assert "but 0.2 on worker 1" in told


@pytest.mark.long
def test_a_worker_that_dies_ends_the_steps_of_the_others(tmp_path: Path) -> None:
    outcome = run(2, "loaded", "die", saved(tmp_path / "step.gdx", 2))
    assert outcome.status != 0
    assert "WorkerError" in errors_of(outcome, 0)


@pytest.mark.long
def test_an_executable_is_for_the_cpus_of_one_process(tmp_path: Path) -> None:
    outcome = run(2, "loaded", "native", saved(tmp_path / "step.gdx", 2))
    assert outcome.status != 0
    assert "is for the CPUs of one process, here are 2 workers" in errors_of(outcome, 0)
    assert "leave out native=True" in errors_of(outcome, 0)
