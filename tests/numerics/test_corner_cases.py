"""Corners of dtypes and shapes that random programs do not reach."""

from __future__ import annotations

from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist import VariableAggregation as Aggregation
from graphdist import VariableSynchronization as Synchronization


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def variable(strategy: gd.Strategy, start: Any, aggregation: Aggregation) -> gd.Variable:
    with strategy.scope():
        return gd.Variable(start, synchronization=Synchronization.ON_READ, aggregation=aggregation)


def test_a_flag_each_replica_keeps_for_itself(strategy: gd.Strategy) -> None:
    flag = variable(strategy, np.array([True, False]), Aggregation.ONLY_FIRST_REPLICA)

    def replica_fn() -> None:
        is_first = gd.get_replica_context().replica_id_in_sync_group == 0
        flag.assign(jnp.array([False, True]) & is_first)

    assert flag.read_value().tolist() == [True, False]
    strategy.run(replica_fn)
    assert flag.read_value().tolist() == [False, True]


def test_a_random_key_each_replica_keeps_for_itself(strategy: gd.Strategy) -> None:
    key = variable(strategy, jax.random.key(3), Aggregation.NONE)

    def replica_fn() -> Any:
        number = gd.get_replica_context().replica_id_in_sync_group
        key.assign(jax.random.fold_in(key.read_value(), number))
        return jax.random.normal(key.read_value())

    step = gd.function(lambda: strategy.run(replica_fn))
    expected = [jax.random.key(3)] * 2
    for _ in range(2):
        expected = [jax.random.fold_in(one, number) for number, one in enumerate(expected)]
        given = [float(value) for value in step().values]
        np.testing.assert_allclose(given, [jax.random.normal(one) for one in expected], rtol=1e-6)


def test_nothing_is_reduced_and_gathered(strategy: gd.Strategy) -> None:
    empty = strategy.experimental_distribute_values_from_function(lambda _: np.zeros((0, 3), "f"))

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            context = gd.get_replica_context()
            return context.all_gather(x, 0), context.all_reduce("SUM", x), x.sum()

        reduced = strategy.reduce("SUM", x, axis=None), strategy.reduce("SUM", x, axis=0)
        return (
            *reduced,
            strategy.gather(x, 0),
            strategy.gather(x, 1),
            strategy.run(replica_fn, (x,)),
        )

    *whole, of_replicas = step(empty)
    assert [value.shape for value in whole] == [(0, 3), (3,), (0, 3), (0, 6)]
    assert [value.values[1].shape for value in of_replicas] == [(0, 3), (0, 3), ()]
    assert whole[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("axis", [None, 0])
def test_the_mean_of_integers_that_differ_is_a_float_on_any_number_of_replicas(
    num_replicas: int, axis: int | None
) -> None:
    strategy = gd.MirroredStrategy([f"cpu:{number}" for number in range(num_replicas)])
    values = strategy.run(
        lambda: jnp.arange(3) + 2 * gd.get_replica_context().replica_id_in_sync_group
    )
    mean = strategy.reduce("MEAN", values, axis=axis)
    assert mean.dtype == jnp.float32
    expected = np.arange(3) + num_replicas - 1
    assert mean.tolist() == (expected if axis is None else expected.mean()).tolist()
    assert strategy.reduce("SUM", values, axis=axis).dtype == jnp.int32


def test_gradients_of_integers(strategy: gd.Strategy) -> None:
    def gradient(x: jax.Array) -> Any:
        return jax.grad(lambda i: jnp.sum(i * 1.5), allow_int=True)(x)

    for function in (gradient, lambda x: strategy.run(gradient, (x,))):
        given = gd.function(function)(jnp.arange(3))
        assert (given.dtype, given.shape) == (jax.dtypes.float0, (3,))


@pytest.mark.parametrize("shards", [False, True], ids=["mirrored", "sharded"])
def test_a_loop_adds_up_what_it_gathers(shards: bool) -> None:
    """The update has shards of the sum, so the loop carries these, and gathers nothing."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters=shards)
    size = 2**19
    with strategy.scope():
        total: Any = gd.Variable(jnp.zeros(2 * size), name="total")

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            def add(before: Any, row: Any) -> Any:
                return before + gd.get_replica_context().all_gather(row, axis=0), None

            after, _ = jax.lax.scan(add, jnp.zeros(2 * size), x)
            total.assign_add(0.5 * after)

        strategy.run(replica_fn, args=(x,))

    rows = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.full((3, size), 1.0 + context.replica_id_in_sync_group)
    )
    step(rows)
    np.testing.assert_array_equal(np.asarray(total), np.repeat([1.5, 3.0], size))
