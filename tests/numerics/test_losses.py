"""`gd.nn`: what replicas contribute to the loss of a batch; the numbers are TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

STRATEGIES: dict[str, Callable[[], gd.Strategy]] = {
    "mirrored": lambda: gd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return STRATEGIES[request.param]()


def losses(strategy: gd.Strategy, *rows: Any, dtype: Any = np.float32, **options: Any) -> list[Any]:
    """Return the average loss of each replica."""
    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.asarray(rows[context.replica_id_in_sync_group], dtype)
    )
    result: Any = strategy.run(lambda x: gd.nn.compute_average_loss(x, **options), args=(values,))
    assert all(value.dtype == jnp.float32 for value in result.values)
    return [pytest.approx(float(value), rel=1e-6) for value in result.values]


def test_default_is_the_number_of_examples_of_all_replicas(strategy: gd.Strategy) -> None:
    assert losses(strategy, [1, 3], [5, 7]) == [1, 3]
    assert losses(strategy, [1, 3], [5]) == [4 / 3, 5 / 3]
    assert losses(strategy, [1, 3], np.zeros(0)) == [2, 0]
    assert losses(strategy, np.zeros(0), np.zeros(0)) == [0, 0]
    assert losses(strategy, [1, 3], [5, 7], dtype=np.int32) == [1, 3]
    assert losses(strategy, [[1, 3]], [[5, 7]]) == [2, 6]


def test_global_batch_size(strategy: gd.Strategy) -> None:
    assert losses(strategy, [1, 3], [5], global_batch_size=3) == [4 / 3, 5 / 3]
    assert losses(strategy, [1, 3], np.zeros(0), global_batch_size=2) == [2, 0]
    assert losses(strategy, [1, 3], [5, 7], global_batch_size=0) == [0, 0]


def test_weights(strategy: gd.Strategy) -> None:
    assert losses(strategy, [1, 3], [5, 7], sample_weight=[1.0, 0.5]) == [0.625, 2.125]
    per_example = {"sample_weight": [2.0, 1.0], "global_batch_size": 4}
    assert losses(strategy, [[1, 3], [1, 1]], [[0, 0], [4, 0]], **per_example) == [2.5, 1]


def test_a_traced_global_batch_size() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_fn(x: Any) -> Any:
        size = gd.get_replica_context().all_reduce("SUM", jnp.int32(x.shape[0]))
        return gd.nn.compute_average_loss(x, global_batch_size=size)

    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.array([[1, 3], [5]][context.replica_id_in_sync_group], np.float32)
    )
    result = strategy.run(replica_fn, args=(values,))
    assert [float(value) for value in result.values] == pytest.approx([4 / 3, 5 / 3])


def test_the_sum_of_the_gradients_is_that_of_the_batch(strategy: gd.Strategy) -> None:
    x = np.array([1, 2, 3], np.float32)

    def replica_fn(rows: Any) -> Any:
        return jax.grad(lambda w: gd.nn.compute_average_loss((w * rows) ** 2, global_batch_size=3))(
            jnp.float32(0.5)
        )

    parts = strategy.experimental_distribute_values_from_function(
        lambda context: (x[:2], x[2:])[context.replica_id_in_sync_group]
    )
    total = strategy.reduce("SUM", strategy.run(replica_fn, args=(parts,)), axis=None)
    whole = jax.grad(lambda w: jnp.mean((w * x) ** 2))(jnp.float32(0.5))
    assert float(total) == pytest.approx(float(whole))


def test_regularization(strategy: gd.Strategy) -> None:
    result: Any = strategy.run(lambda: gd.nn.scale_regularization_loss(jnp.float32(6)))
    assert [float(value) for value in result.values] == [3, 3]


def test_outside_every_strategy() -> None:
    assert float(gd.nn.compute_average_loss([1.0, 3.0])) == 2
    assert float(gd.nn.scale_regularization_loss(6.0)) == 6
    assert gd.get_strategy().run(lambda: gd.nn.compute_average_loss([1, 3])) == 2


def test_examples_are_counted_where_they_are_no_rows_of_the_arguments(
    strategy: gd.Strategy,
) -> None:
    """Pairs of rows are examples; one class has none and never counts."""

    def replica_fn(x: Any) -> Any:
        gd.get_replica_context().all_reduce("SUM", jnp.float32(0))
        if x.shape[0] == 1:
            return jnp.float32(0)
        pairs = (x[:, None] + x).reshape(-1)
        return gd.nn.compute_average_loss(pairs)

    parts = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(1 + context.replica_id_in_sync_group, np.float32)
    )
    result = strategy.run(replica_fn, args=(parts,))
    assert [float(value) for value in result.values] == [0, 2]


def test_examples_are_counted_line_by_line_and_in_loops(strategy: gd.Strategy) -> None:
    def replica_fn(x: Any) -> Any:
        def add(total: Any, _: Any) -> Any:
            return total + gd.nn.compute_average_loss(x), None

        total, _ = jax.lax.scan(add, jnp.float32(0), None, length=2)
        return total, gd.nn.compute_average_loss(jnp.tile(x, 2))

    parts = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(1 + context.replica_id_in_sync_group, np.float32)
    )
    once, twice = strategy.run(replica_fn, args=(parts,))
    assert [float(value) for value in once.values] == pytest.approx([2 / 3, 4 / 3])
    assert [float(value) for value in twice.values] == pytest.approx([1 / 3, 2 / 3])
