"""Replicas of other shapes, or that need their number as a Python value: numbers by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd

Rows = Sequence[Sequence[float]]
UNEQUAL: Rows = ([0.0, 1.0], [0.0, 1.0], [5.0], [])


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def rows(strategy: gd.Strategy, values: Rows) -> Any:
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.array(values[context.replica_id_in_sync_group], np.float32)
    )


def lists(value: Any) -> list[Any]:
    return [np.asarray(part).tolist() for part in value.values]


def context() -> gd.ReplicaContext:
    return gd.get_replica_context()


def number() -> int:
    return int(context().replica_id_in_sync_group)


def test_each_replica_keeps_its_shape(strategy: gd.Strategy) -> None:
    doubled = strategy.run(lambda x: x * 2, args=(rows(strategy, UNEQUAL),))
    assert lists(doubled) == [[0, 2], [0, 2], [10], []]
    again = strategy.run(lambda x: x + 1, args=(doubled,))
    assert lists(again) == [[1, 3], [1, 3], [11], []]


def test_reduce_divides_by_the_true_count(strategy: gd.Strategy) -> None:
    x = rows(strategy, UNEQUAL)
    assert float(strategy.reduce("SUM", x, axis=0)) == 7
    assert float(strategy.reduce("MEAN", x, axis=0)) == pytest.approx(7 / 5)
    assert strategy.gather(x, axis=0).tolist() == [0, 1, 0, 1, 5]


def test_a_trace_for_each_variant_and_not_for_each_replica(strategy: gd.Strategy) -> None:
    shapes = []

    def replica_fn(x: jax.Array) -> jax.Array:
        shapes.append(x.shape)
        return context().all_gather(x, axis=0)

    gathered = strategy.run(replica_fn, args=(rows(strategy, UNEQUAL),))
    assert shapes == [(2,), (1,), (0,)]
    assert lists(gathered) == [[0, 1, 0, 1, 5]] * 4


def test_lengths_guessed_wrong_are_found_out(strategy: gd.Strategy) -> None:
    # What is gathered is no longer as long as what came in: sizes 4, 4, 1, 0.
    gathered = strategy.run(
        lambda x: context().all_gather(jnp.tile(x, x.shape[0]), axis=0),
        args=(rows(strategy, UNEQUAL),),
    )
    assert lists(gathered) == [[0, 1, 0, 1, 0, 1, 0, 1, 5]] * 4


def test_the_number_as_a_python_value(strategy: gd.Strategy) -> None:
    names = ["a", "b", "c", "d"]
    given = strategy.run(lambda: names[number()])
    assert strategy.experimental_local_results(given) == ("a", "b", "c", "d")
    assert lists(strategy.run(lambda: jnp.arange(number()))) == [[], [0], [0, 1], [0, 1, 2]]
    assert lists(
        strategy.run(lambda: jnp.float32(10) if number() == 2 else jnp.float32(number()))
    ) == [0, 1, 10, 3]


def test_results_of_different_kinds(strategy: gd.Strategy) -> None:
    result: Any = strategy.run(lambda: jnp.ones(2) if number() == 1 else None)
    assert [None if part is None else part.tolist() for part in result.values] == [
        None,
        [1, 1],
        None,
        None,
    ]
    dtypes = strategy.run(lambda: jnp.int32(1) if number() == 0 else jnp.float32(2))
    assert [str(part.dtype) for part in dtypes.values] == ["int32"] + ["float32"] * 3
    again = strategy.experimental_local_results(result)
    assert again[1].tolist() == [1, 1]


def test_components_that_are_python_values(strategy: gd.Strategy) -> None:
    names = strategy.experimental_distribute_values_from_function(
        lambda context: "abcd"[context.replica_id_in_sync_group]
    )
    assert strategy.run(lambda name: name * 2, args=(names,)).values == ("aa", "bb", "cc", "dd")


def test_the_same_update_stays_mirrored(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(2.0)

    def replica_fn(x: jax.Array) -> None:
        gradient = jax.grad(lambda w: jnp.sum((w * x - 1) ** 2))(w.read_value())
        w.assign_sub(0.01 * context().all_reduce("SUM", gradient))

    strategy.run(replica_fn, args=(rows(strategy, UNEQUAL),))
    x = jnp.array([0.0, 1, 0, 1, 5])
    expected = 2 - 0.01 * jax.grad(lambda w: jnp.sum((w * x - 1) ** 2))(2.0)
    np.testing.assert_allclose(w.read_value(), expected, rtol=1e-6)


def test_a_variable_of_each_replica(strategy: gd.Strategy) -> None:
    on_read, add = gd.VariableSynchronization.ON_READ, gd.VariableAggregation.SUM
    with strategy.scope():
        count = gd.Variable(0.0, synchronization=on_read, aggregation=add)

    def replica_fn(x: jax.Array) -> None:
        count.assign_add(float(x.shape[0]))

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    for values in (UNEQUAL, [[1.0]] * 4, UNEQUAL):
        step(rows(strategy, values))
    assert float(count.read_value()) == 5 + 4 + 5


def test_a_variable_read_by_some(strategy: gd.Strategy) -> None:
    with strategy.scope():
        w = gd.Variable(3.0)
    read = strategy.run(lambda: w.read_value() if number() == 1 else jnp.float32(0))
    assert lists(read) == [0, 3, 0, 0]


def test_collectives_in_loops_and_branches(strategy: gd.Strategy) -> None:
    with strategy.scope():
        steps = gd.Variable(0)

    def replica_fn(x: jax.Array) -> jax.Array:
        def body(carry: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            steps.assign_add(1)
            total = context().all_reduce("SUM", carry.sum())
            return carry + scale * total, total

        def more(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            i, x = state
            return i + 1, x + context().all_reduce("SUM", x.sum())

        x, _ = lax.scan(body, x, jnp.array([1.0, 2.0]))
        _, x = lax.while_loop(lambda state: state[0] < 2, more, (jnp.int32(0), x))
        return lax.cond(
            steps.read_value() > 1,
            lambda x: x * context().all_reduce("SUM", jnp.float32(1)),
            lambda x: x,
            x,
        )

    result = strategy.run(replica_fn, args=(rows(strategy, UNEQUAL),))
    x = np.array([0.0, 1, 0, 1, 5])
    for scale in (1, 2, 1, 1):
        x = x + scale * x.sum()
    x = x * 4
    assert lists(result) == [x[:2].tolist(), x[2:4].tolist(), x[4:].tolist(), []]
    assert int(steps.read_value()) == 2


def test_merge_call(strategy: gd.Strategy) -> None:
    calls = []

    def merge_fn(strategy: gd.Strategy, x: Any, which: Any) -> Any:
        calls.append(which)
        return x, strategy.reduce("SUM", x, axis=0), strategy.run(lambda x: -x, args=(x,))

    def replica_fn(x: jax.Array) -> Any:
        return context().merge_call(merge_fn, args=(x * 2, "k"))

    x, total, negated = strategy.run(replica_fn, args=(rows(strategy, UNEQUAL),))
    assert calls == ["k"]
    assert lists(x) == [[0, 2], [0, 2], [10], []]
    assert float(total) == 14
    assert lists(negated) == [[0, -2], [0, -2], [-10], []]


def test_merge_call_with_python_values(strategy: gd.Strategy) -> None:
    def merge_fn(strategy: gd.Strategy, numbers: gd.PerReplica) -> int:
        return sum(numbers.values)

    assert strategy.run(lambda: context().merge_call(merge_fn, args=(number(),))) == 6


@pytest.mark.parametrize("by_number", [False, True])
def test_gradients_across_run(strategy: gd.Strategy, by_number: bool) -> None:
    x = rows(strategy, UNEQUAL)

    def replica_fn(w: jax.Array, x: jax.Array) -> jax.Array:
        assert not by_number or number() < 4
        return jnp.tanh(w * x)

    @gd.function
    def gradient(w: jax.Array, x: Any) -> jax.Array:
        def mean(w: jax.Array) -> jax.Array:
            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(w, x)), axis=0)

        return jax.grad(mean)(w)

    whole = jnp.array([0.0, 1, 0, 1, 5])
    expected = jax.grad(lambda w: jnp.mean(jnp.tanh(w * whole)))(0.3)
    np.testing.assert_allclose(gradient(jnp.float32(0.3), x), expected, rtol=1e-6)


def test_a_switch_between_collectives(strategy: gd.Strategy) -> None:
    def replica_fn(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * context().all_reduce("SUM", jnp.sum(x))

    traced = gd.function(lambda x: strategy.run(replica_fn, args=(x,))).trace(
        rows(strategy, UNEQUAL)
    )
    operations = [node.op.name for node in traced.graph.nodes]
    assert operations.count("all_reduce") == 1
    assert operations.count("cond") == 2


def test_one_replica_knows_its_number() -> None:
    strategy = gd.OneDeviceStrategy("cpu:0")
    called: list[int] = []

    def replica_fn() -> int:
        called.append(number())
        return number() + 1

    assert strategy.run(replica_fn) == 1
    assert called == [0]


def test_a_per_replica_closed_over_is_the_replicas_component(strategy: gd.Strategy) -> None:
    x = rows(strategy, UNEQUAL)
    doubled = strategy.run(lambda: jnp.asarray(x) * 2)
    assert lists(doubled) == [[0, 2], [0, 2], [10], []]
    with strategy.scope():
        total = gd.Variable(0.0, aggregation=gd.VariableAggregation.SUM)
    strategy.run(lambda: total.assign(jnp.asarray(x).sum()))
    assert float(total) == 7


def test_one_value_of_merge_call_is_one_value_for_unequal_replicas_too(
    strategy: gd.Strategy,
) -> None:
    def replica_fn(x: Any) -> Any:
        total = context().merge_call(lambda s, x: s.reduce("SUM", x, axis=0), args=(x,))
        return total, total + number()

    total, more = strategy.run(replica_fn, args=(rows(strategy, UNEQUAL),))
    assert float(total) == 7
    assert lists(more) == [7, 8, 9, 10]


def test_python_numbers_of_unequal_replicas_are_reduced(strategy: gd.Strategy) -> None:
    x = rows(strategy, UNEQUAL)

    def counted(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(lambda x: x.shape[0], args=(x,)), axis=None)

    assert int(counted(x)) == int(gd.function(counted)(x)) == 5


def test_the_number_bounds_a_slice_or_a_shape(strategy: gd.Strategy) -> None:
    values = jnp.arange(5)

    def replica_fn() -> Any:
        number = context().replica_id_in_sync_group
        return values[: number + 1], jnp.zeros(number)

    part, zeros = strategy.run(replica_fn)
    assert lists(part) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert lists(zeros) == [[], [0], [0, 0], [0, 0, 0]]


def test_a_variant_hands_its_argument_back_and_another_does_not() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def by_number(x: Any) -> Any:
        number = gd.get_replica_context().replica_id_in_sync_group
        return (x + number if number else x), x

    summed, same = strategy.run(by_number, args=(jnp.float32(1),))
    assert [float(value) for value in summed.values] == [1, 2]
    assert float(same) == 1

    def by_rows(w: Any, x: Any) -> Any:
        return w if x.shape[0] == 0 else w * jnp.sum(x)

    rows = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(2 - 2 * context.replica_id_in_sync_group, np.float32)
    )

    @gd.function
    def step(w: Any, rows: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(by_rows, args=(w, rows)), axis=None)

    assert float(step(jnp.float32(5), rows)) == 15
