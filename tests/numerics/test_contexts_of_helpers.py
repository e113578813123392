"""A helper means what the context it is called in says, not the one it was traced in first."""

from __future__ import annotations

from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd


@pytest.fixture
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.mark.parametrize("runs_first", [False, True])
def test_a_jitted_assignment_keeps_its_aggregation(strategy: gd.Strategy, runs_first: bool) -> None:
    with strategy.scope():
        v = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)
    put = jax.jit(lambda x: v.assign(x, read_value=False))

    @gd.function
    def step(x: Any) -> Any:
        values = []
        for runs in (runs_first, not runs_first):
            if runs:
                strategy.run(put, args=(x,))
            else:
                put(x)
            values.append(v.read_value())
        return values

    assert [float(value) for value in step(jnp.float32(5))] == ([10, 5] if runs_first else [5, 10])


def test_a_jitted_assignment_in_merge_call(strategy: gd.Strategy) -> None:
    with strategy.scope():
        v = gd.Variable(1.0, aggregation=gd.VariableAggregation.SUM)
    put = jax.jit(lambda x: v.assign(x, read_value=False))

    def replica_fn() -> Any:
        put(jnp.float32(5))
        before = v.read_value()
        gd.get_replica_context().merge_call(lambda strategy: put(jnp.float32(5)))
        return before, v.read_value()

    before, after = strategy.run(replica_fn)
    assert [float(before.values[0]), float(after.values[0])] == [10, 5]


def test_replicas_draw_numbers_of_their_own(strategy: gd.Strategy) -> None:
    with strategy.scope():
        generator = gd.random.Generator.from_seed(1)
    draw = jax.jit(lambda: generator.uniform(()))
    first, drawn = gd.function(lambda: (draw(), strategy.run(draw)))()
    assert len({float(first), *map(float, drawn.values)}) == 3


def test_a_plain_variable_is_scattered_into_by_one_replica_after_the_other(
    strategy: gd.Strategy,
) -> None:
    v = gd.Variable(np.ones(3, np.float32), aggregation=gd.VariableAggregation.SUM)
    x = strategy.experimental_distribute_values_from_function(
        lambda context: np.full(1, context.replica_id_in_sync_group + 2, "f")
    )

    def replica_fn(x: Any) -> None:
        v.scatter_add(gd.IndexedSlices(x, jnp.array([1])), read_value=False)
        v.scatter_mul(gd.IndexedSlices(x, jnp.array([2])), read_value=False)

    strategy.run(replica_fn, args=(x,))
    np.testing.assert_array_equal(v.read_value(), [1, 6, 6])


def test_a_checkpointed_read_that_saw_two_versions_is_refused(strategy: gd.Strategy) -> None:
    with strategy.scope():
        v = gd.Variable(1.0, name="v")
    read = jax.checkpoint(lambda x: jnp.sin(x * v[...]))

    def loss(x: Any) -> Any:
        v.assign(2.0, read_value=False)
        y = read(x)
        v.assign(5.0, read_value=False)
        return read(y)

    with pytest.raises(gd.TraceError, match="'v' is read inside"):
        strategy.run(jax.grad(loss), args=(jnp.float32(0.3),))


def test_a_ref_of_the_program_is_no_variable_of_the_users(strategy: gd.Strategy) -> None:
    with strategy.scope():
        v = gd.Variable(2.0, name="cell_0")

    def replica_fn(x: Any) -> Any:
        cell = jax.new_ref(x)
        cell[...] = cell[...] * 10
        return cell[...] + v[...]

    result = strategy.run(replica_fn, args=(jnp.float32(5),))
    assert [float(value) for value in result.values] == [52, 52]
    assert float(v.read_value()) == 2


def test_unlike_replicas_loop_over_arrays_of_one_dtype(strategy: gd.Strategy) -> None:
    def replica_fn(x: Any) -> Any:
        context = gd.get_replica_context()
        rows = jnp.ones(3) if context.replica_id_in_sync_group == 0 else jnp.arange(3)

        def body(total: Any, row: Any) -> Any:
            return total + context.all_reduce("MEAN", x * row), None

        return lax.scan(body, jnp.float32(0), rows)[0]

    with pytest.raises(gd.TraceError, match=r"pass float32\[3\] and int32\[3\] to scan"):
        strategy.run(replica_fn, args=(jnp.float32(1),))


@pytest.mark.parametrize("view", [lambda ref: ref.T, lambda ref: ref.bitcast(jnp.int32)])
def test_a_ref_seen_otherwise_than_it_is(view: Any) -> None:
    with pytest.raises(gd.TraceError, match="is accessed through a"):
        gd.function(lambda x: view(jax.new_ref(x))[...])(jnp.ones((2, 2)))
