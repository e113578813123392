"""The examples in the documentation of `tf.distribute.Strategy`, on two CPU devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def lists(values: Any) -> list[Any]:
    return [np.asarray(value).tolist() for value in values]


def test_scope_and_variables(strategy: gd.Strategy) -> None:
    with strategy.scope() as entered:
        assert entered is strategy
        assert gd.get_strategy() is strategy
        variable = gd.Variable(1.0)
    assert variable.strategy is strategy
    assert gd.get_strategy() is not strategy


def test_has_strategy(strategy: gd.Strategy) -> None:
    assert not gd.has_strategy()
    with strategy.scope():
        assert gd.has_strategy()


def test_cross_replica_and_replica_context(strategy: gd.Strategy) -> None:
    assert not gd.in_cross_replica_context()
    seen = []
    with strategy.scope():
        assert gd.in_cross_replica_context()
        assert gd.get_replica_context() is None

        def replica_fn() -> None:
            seen.append(gd.in_cross_replica_context())
            assert gd.get_replica_context().strategy is strategy

        strategy.run(replica_fn)
    assert seen == [False]


def test_the_default_context_counts_as_replica_context() -> None:
    context = gd.get_replica_context()
    assert context is not None
    assert context.num_replicas_in_sync == 1
    assert context.replica_id_in_sync_group == 0
    assert context.all_reduce("SUM", jnp.float32(3)) == 3


def test_run_of_distributed_values(strategy: gd.Strategy) -> None:
    tensor = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )
    result = strategy.run(lambda value: value * 2.0, args=(tensor,))
    assert lists(result.values) == [0.0, 2.0]


def test_run_of_a_dataset(strategy: gd.Strategy) -> None:
    dataset = strategy.experimental_distribute_dataset([np.array([9, 9, 15, 24], np.float32)])
    results = [strategy.run(lambda x: x * 2.0, args=(x,)) for x in dataset]
    assert [lists(result.values) for result in results] == [[[18.0, 18.0], [30.0, 48.0]]]


def test_values_from_a_constant(strategy: gd.Strategy) -> None:
    values = strategy.experimental_distribute_values_from_function(lambda context: np.float32(1))
    assert lists(strategy.experimental_local_results(values)) == [1.0, 1.0]


def test_values_from_an_array(strategy: gd.Strategy) -> None:
    array = np.array([3.0, 2.0, 1.0])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: array[context.replica_id_in_sync_group]
    )
    assert lists(strategy.experimental_local_results(values)) == [3.0, 2.0]


def test_values_from_the_context(strategy: gd.Strategy) -> None:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: context.num_replicas_in_sync
    )
    assert strategy.experimental_local_results(values) == (2, 2)


def test_values_placed_on_each_replicas_device(strategy: gd.Strategy) -> None:
    values = strategy.experimental_distribute_values_from_function(lambda context: np.zeros(3, "f"))
    assert [value.devices() for value in values.values] == [{d} for d in jax.devices()[:2]]


def test_reduce_without_axis(strategy: gd.Strategy) -> None:
    per_replica = strategy.run(
        lambda: jnp.float32(1) * gd.get_replica_context().replica_id_in_sync_group
    )
    assert strategy.reduce(gd.ReduceOp.SUM, per_replica, axis=None) == 1
    assert strategy.reduce("MEAN", per_replica, axis=None) == 0.5


def test_reduce_along_an_axis(strategy: gd.Strategy) -> None:
    """Replicas hold [0, 1, 2, 3] and [4, 5, 6, 7]: the mean of all is 3.5, whatever the split."""
    (batch,) = strategy.experimental_distribute_dataset([np.arange(8, dtype=np.float32)])
    assert strategy.reduce("SUM", batch, axis=0) == 28
    assert strategy.reduce("MEAN", batch, axis=0) == 3.5
    assert lists([strategy.reduce("SUM", batch, axis=None)]) == [[4.0, 6.0, 8.0, 10.0]]


@pytest.mark.parametrize(
    ("axis", "expected"), [(0, [[1], [2], [1], [2]]), (1, [[1, 1], [2, 2]]), (-1, [[1, 1], [2, 2]])]
)
def test_gather(strategy: gd.Strategy, axis: int, expected: Any) -> None:
    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.array([[1], [2]])
    )
    assert strategy.gather(values, axis=axis).tolist() == expected
    inside = gd.function(lambda values: strategy.gather(values, axis=axis))
    assert inside(values).tolist() == expected


def test_all_gather_of_a_tensor(strategy: gd.Strategy) -> None:
    def gather_value() -> Any:
        return gd.get_replica_context().all_gather(jnp.array([1, 2, 3]), axis=0)

    assert lists(strategy.run(gather_value).values) == [[1, 2, 3, 1, 2, 3]] * 2


def test_all_gather_of_a_nest(strategy: gd.Strategy) -> None:
    def gather_nest() -> tuple[Any, Any]:
        value_1 = jnp.array([[1, 2]])
        value_2 = jnp.array([[1], [2]])
        return gd.get_replica_context().all_gather((value_1, value_2), axis=0)

    first, second = strategy.run(gather_nest)
    assert lists(first.values) == [[[1, 2], [1, 2]]] * 2
    assert lists(second.values) == [[[1], [2], [1], [2]]] * 2


def test_all_reduce(strategy: gd.Strategy) -> None:
    def step_fn() -> Any:
        context = gd.get_replica_context()
        value = context.replica_id_in_sync_group + 1
        return context.all_reduce(gd.ReduceOp.SUM, {"a": value, "b": [value * 1.5]})

    result = strategy.run(step_fn)
    assert lists(result["a"].values) == [3, 3]
    assert lists(result["b"][0].values) == [4.5, 4.5]


def test_all_reduce_gradient(strategy: gd.Strategy) -> None:
    """Y = (all_reduce SUM x)**2 at x = [1, 2] has the derivative 12 on each replica; MEAN has 3."""

    def derivative(op: str) -> Any:
        x = jnp.float32(gd.get_replica_context().replica_id_in_sync_group + 1)
        return jax.grad(lambda x: gd.get_replica_context().all_reduce(op, x) ** 2)(x)

    assert lists(strategy.run(derivative, args=("SUM",)).values) == [12.0, 12.0]
    assert lists(strategy.run(derivative, args=("MEAN",)).values) == [3.0, 3.0]


def test_all_gather_gradient(strategy: gd.Strategy) -> None:
    """Each replica receives the sum over the replicas of the cotangents of its own part."""

    def derivative() -> Any:
        context = gd.get_replica_context()
        weights = jnp.array([1.0, 3.0]) * (context.replica_id_in_sync_group + 1) * 2
        x = jnp.ones(1)
        return jax.grad(lambda x: (context.all_gather(x, axis=0) * weights).sum())(x)

    assert lists(strategy.run(derivative).values) == [[6.0], [18.0]]


def test_merge_call(strategy: gd.Strategy) -> None:
    def merge_fn(strategy: gd.Strategy, value: gd.PerReplica, scale: int) -> jax.Array:
        assert gd.in_cross_replica_context()
        assert isinstance(value, gd.PerReplica)
        return strategy.reduce("SUM", value, axis=None) * scale

    def replica_fn() -> Any:
        context = gd.get_replica_context()
        value = context.replica_id_in_sync_group + 1
        return context.merge_call(merge_fn, args=(value,), kwargs={"scale": 10})

    assert strategy.run(replica_fn) == 30  # one value, which merge_fn gave to all


def test_local_results_turn_containers_inside_out(strategy: gd.Strategy) -> None:
    value = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
    assert strategy.experimental_local_results({"a": value, "b": 7}) == (
        {"a": 0, "b": 7},
        {"a": 1, "b": 7},
    )
    assert strategy.experimental_local_results([1, 2]) == ([1, 2], [1, 2])
    assert strategy.experimental_local_results({}) == ({}, {})
    assert strategy.experimental_local_results(3.0) == (3.0,)
    inside = gd.function(lambda v: strategy.experimental_local_results(v))
    assert lists(inside(value)) == [0, 1]


def test_run_returns_what_is_not_an_array_as_it_is(strategy: gd.Strategy) -> None:
    assert strategy.run(lambda: 8) == 8
    assert strategy.run(lambda: None) is None
    assert strategy.run(lambda: ("text", [None])) == ("text", [None])
    tensor = jnp.float32(5)
    assert strategy.run(lambda x: x, args=(tensor,)).item() == 5
    assert isinstance(strategy.run(lambda: np.float32(2)), gd.PerReplica)


def test_run_passes_kwargs_and_python_values(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array, shape: tuple[int, ...], *, negate: bool) -> jax.Array:
        assert isinstance(negate, bool)
        return -x.reshape(shape) if negate else x

    (x,) = strategy.experimental_distribute_dataset([np.arange(8, dtype=np.float32)])
    result = strategy.run(replica_fn, args=(x, (2, 2)), kwargs={"negate": True})
    of_each = strategy.experimental_local_results(result)
    assert lists(of_each) == [[[0, -1], [-2, -3]], [[-4, -5], [-6, -7]]]


def test_one_device_never_wraps() -> None:
    strategy = gd.OneDeviceStrategy("cpu:1")
    with strategy.scope():
        variable = gd.Variable(2.0)
    result = strategy.run(lambda x: x * variable, args=(jnp.float32(3),))
    assert result == 6
    assert result.devices() == {jax.devices()[1]}
    assert strategy.reduce("SUM", result, axis=None) == 6
    assert strategy.gather(jnp.ones(2), axis=0).tolist() == [1, 1]
    assert strategy.experimental_local_results(result) == (result,)
