"""What TensorFlow tests of the logical devices of its TPUStrategy holds here, too.

The names are those of the methods of its `tpu_strategy_model_parallelism_test.py`. Where TensorFlow
says something else, the test says why it differs. Replicas have two cores, as there; both ways of
TensorFlow, values on one core each and values split by XLA, are one here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.cores.training import strategy_on

REPLICAS = 2
each_way = pytest.mark.parametrize("cores", [("sharded", None), (None, "sharded"), None], ids=str)
"""How the cores hold a matrix; TensorFlow's variables are whole on each, or on one."""


def drawn(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(shape).random(shape, np.float32)


def total(strategy: gd.Strategy, value: Any) -> np.ndarray[Any, Any]:
    return np.asarray(strategy.reduce("SUM", value, axis=None))


class Scaled:
    """A model of two weights, each asked for on a core of its own."""

    def __init__(self, first: float, second: float) -> None:
        extended = gd.get_strategy().extended
        with extended.experimental_logical_device(0):
            self.first = gd.Variable(first)
        with extended.experimental_logical_device(1):
            self.second = gd.Variable(second)

    def __call__(self, x: Any) -> Any:
        context = gd.get_replica_context()
        with context.experimental_logical_device(0):
            y = self.first * x
        with context.experimental_logical_device(1):
            return self.second * y


def test_logical_device_assignment() -> None:
    """A variable has no core of its own: both have it in full, so `devices` has both."""
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        model = Scaled(2.0, 3.0)
    assert len(strategy.experimental_local_results(model.second)) == REPLICAS
    result = strategy.run(model, args=(5.0,))
    assert total(strategy, result) == 30 * REPLICAS
    with pytest.raises(gd.ArgumentError, match="is 2, but a replica has 2 cores"):
        strategy.run(lambda: gd.get_replica_context().experimental_logical_device(2).__enter__())


def test_paritioned_model_checkpointing(tmp_path: Path) -> None:
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        model = Scaled(2.0, 3.0)
    checkpoint = gd.train.Checkpoint(first=model.first, second=model.second)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    model.first.assign(1.0)
    model.second.assign(4.0)
    assert total(strategy, strategy.run(gd.function(model), args=(5.0,))) == 20 * REPLICAS
    status = checkpoint.restore(path)
    status.assert_consumed()
    status.assert_existing_objects_matched()
    assert total(strategy, strategy.run(gd.function(model), args=(5.0,))) == 30 * REPLICAS


def test_spmd_cannot_assign_tensor_to_logical_device() -> None:
    """TensorFlow's partitioner has no place for it; here every core has the value."""
    strategy = strategy_on(REPLICAS, 2)
    x = jnp.array([0, 1])
    got = strategy.run(lambda: strategy.experimental_assign_to_logical_device(x, 0))
    assert total(strategy, got).tolist() == [0, REPLICAS]
    with pytest.raises(gd.ContextError, match="outside of a replica function"):
        strategy.experimental_assign_to_logical_device(x, 0)


@each_way
def test_spmd_variable_created_from_callable(cores: Any) -> None:
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        w = gd.Variable(lambda: jax.random.normal(jax.random.key(0), (16, 16)), cores=cores)
    copies = [np.asarray(each) for each in strategy.experimental_local_results(w)]
    assert len(copies) == REPLICAS
    for copy in copies:
        np.testing.assert_array_equal(copy, np.asarray(w))


@each_way
def test_spmd_variable_read(cores: Any) -> None:
    x, initial = drawn(32, 16), drawn(16, 8)
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        w = gd.Variable(initial, cores=cores)
    assert w.shape == (16, 8)
    step = gd.function(lambda x: strategy.run(lambda x: x @ w, args=(x,)))
    np.testing.assert_allclose(total(strategy, step(x)), x @ initial * REPLICAS, rtol=1e-5)


@each_way
def test_spmd_variable_read_init_scope(cores: Any) -> None:
    """What is read while the function is traced is read outside of it: here with `numpy`."""
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        v = gd.Variable(np.ones((4, 4), np.float32), cores=cores)
    got = strategy.run(gd.function(v.read_value))
    np.testing.assert_array_equal(strategy.reduce("MEAN", got, axis=None), v.read_value())


@each_way
def test_spmd_variable_update(cores: Any) -> None:
    x = drawn(1024, 256)
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        w = gd.Variable(drawn(256, 1024).T, cores=cores)

    def updated(method: Any, value: Any) -> np.ndarray[Any, Any]:
        return total(strategy, gd.function(lambda v: strategy.run(method, args=(v,)))(value))

    np.testing.assert_allclose(updated(w.assign, x), x * REPLICAS)
    for method, sign in ((w.assign_sub, -1), (w.assign_add, 1)):
        change = drawn(1024, 256) / 2
        x = x + sign * change
        np.testing.assert_allclose(updated(method, change), x * REPLICAS, rtol=1e-5)


@each_way
def test_spmd_variable_eager_update(cores: Any) -> None:
    x, change = drawn(32, 16), drawn(16, 32).T
    with strategy_on(REPLICAS, 2).scope():
        w = gd.Variable(np.zeros((32, 16), np.float32), cores=cores)
    w.assign(x)
    np.testing.assert_array_equal(np.asarray(w), x)
    w.assign_sub(change)
    np.testing.assert_array_equal(np.asarray(w), x - change)
    w.assign(x)
    w.assign_add(change)
    np.testing.assert_array_equal(np.asarray(w), x + change)


@each_way
def test_spmd_model_checkpointing(cores: Any, tmp_path: Path) -> None:
    x, first, second = drawn(32, 16), drawn(16, 8), drawn(8, 16).T
    strategy = strategy_on(REPLICAS, 2)
    with strategy.scope():
        w = gd.Variable(first, cores=cores)
    checkpoint = gd.train.Checkpoint(w=w)
    path = checkpoint.save(str(tmp_path / "ckpt"))

    @gd.function
    def step(x: Any) -> Any:
        return strategy.experimental_split_to_logical_devices(x, [1, 2]) @ w

    w.assign(second)
    got = total(strategy, strategy.run(step, args=(x,)))
    np.testing.assert_allclose(got, x @ second * REPLICAS, rtol=1e-5)
    status = checkpoint.restore(path)
    status.assert_consumed()
    status.assert_existing_objects_matched()
    got = total(strategy, strategy.run(step, args=(x,)))
    np.testing.assert_allclose(got, x @ first * REPLICAS, rtol=1e-5)


def test_spmd_with_summary() -> None:
    """Summaries are written by `jax.debug.callback`; it runs once for each replica, not core."""
    strategy, written = strategy_on(REPLICAS, 2), list[tuple[int, int]]()
    with strategy.scope():
        step = gd.Variable(1, aggregation=gd.VariableAggregation.ONLY_FIRST_REPLICA)

    def write(step: Any, value: Any) -> None:
        written.append((int(step), int(value)))

    @gd.function
    def run() -> None:
        def replica_fn() -> None:
            jax.debug.callback(write, step.read_value(), step * 2)
            step.assign_add(1)

        strategy.run(replica_fn)

    for _ in range(10):
        run()
    jax.effects_barrier()
    assert [int(each) for each in strategy.experimental_local_results(step)] == [11] * REPLICAS
    assert sorted(written) == sorted([(i, 2 * i) for i in range(1, 11)] * REPLICAS)


@pytest.mark.parametrize("is_split", [False, True])
def test_spmd_with_outside_comp(is_split: bool) -> None:
    """A computation on the host in the middle is `jax.pure_callback`."""
    strategy = strategy_on(REPLICAS, 2)

    def replica_fn(x: Any) -> Any:
        if is_split:
            x = strategy.experimental_split_to_logical_devices(x, [1, 2])
        y = x + 1
        shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
        return jax.pure_callback(lambda y: y + 1, shape, y) + 1

    given = jnp.zeros((2, 2), jnp.int32)
    result = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))(given)
    np.testing.assert_array_equal(total(strategy, result), 3 * REPLICAS)
