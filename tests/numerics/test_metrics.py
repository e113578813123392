"""`gd.metrics`: the numbers of `keras.metrics`, on any number of replicas and any share of rows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist import metrics

PROBABILITIES = [[0.05, 0.95, 0.0], [0.1, 0.8, 0.2]]
ONE_HOT = [[0, 1, 0], [0, 0, 1]]

# What Keras 3.15 gives: metric, arguments of the updates, result.
UPDATES: list[tuple[Callable[[], Any], list[tuple[Any, ...]], float]] = [
    (metrics.Mean, [([1.0, 3.0],), (8.0,)], 4),
    (metrics.Mean, [([[1.0, 2.0], [3.0, 4.0]],), ([10.0],)], 5),
    (metrics.Mean, [([[1.0, 2.0], [3.0, 4.0]], [1.0, 3.0])], 3),
    (metrics.Mean, [([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 3.0]])], 3.25),
    (metrics.Mean, [([1.0, 2.0], 0.5)], 1.5),
    (metrics.Mean, [], 0),
    (metrics.Sum, [([[1.0, 2.0], [3.0, 4.0]],)], 10),
    (metrics.Sum, [([[1.0, 2.0], [3.0, 4.0]], [1.0, 3.0])], 24),
    (metrics.Accuracy, [([[1], [2], [3], [4]], [[0], [2], [3], [4]])], 0.75),
    (metrics.Accuracy, [([1, 2, 3, 4], [0, 2, 3, 4], [1, 1, 0, 0])], 0.5),
    (metrics.BinaryAccuracy, [([[1], [1], [0], [0]], [[0.98], [1], [0], [0.6]])], 0.75),
    (metrics.BinaryAccuracy, [([1, 1, 0, 0], [0.98, 1, 0, 0.6], [1, 0, 0, 1])], 0.5),
    (lambda: metrics.BinaryAccuracy(threshold=0.7), [([1, 0], [0.6, 0.6])], 0.5),
    (metrics.CategoricalAccuracy, [(ONE_HOT, PROBABILITIES)], 0.5),
    (metrics.CategoricalAccuracy, [(ONE_HOT, PROBABILITIES, [0.7, 0.3])], 0.7),
    (metrics.SparseCategoricalAccuracy, [([[1], [2]], PROBABILITIES)], 0.5),
    (metrics.SparseCategoricalAccuracy, [([1, 2], PROBABILITIES, [0.7, 0.3])], 0.7),
    (lambda: metrics.TopKCategoricalAccuracy(k=1), [(ONE_HOT, PROBABILITIES)], 0.5),
    (lambda: metrics.SparseTopKCategoricalAccuracy(k=2), [([1, 2], PROBABILITIES)], 1),
    (lambda: metrics.SparseTopKCategoricalAccuracy(k=1), [([1], [[0.9, 0.9, 0.9]])], 1),
    (metrics.MeanSquaredError, [([[0, 1], [0, 0]], [[1, 1], [0, 0]])], 0.25),
    (metrics.MeanSquaredError, [([[0, 1], [0, 0]], [[1, 1], [0, 0]], [1, 0])], 0.5),
    (metrics.MeanAbsoluteError, [([[0, 1], [0, 0]], [[1, 1], [0, -2]])], 0.75),
    (metrics.RootMeanSquaredError, [([[0, 1], [0, 0]], [[1, 1], [0, 0]], [1, 0])], 0.70710678),
    (metrics.BinaryCrossentropy, [([[0, 1], [0, 0]], [[0.6, 0.4], [0.4, 0.6]])], 0.81492448),
    (
        lambda: metrics.BinaryCrossentropy(from_logits=True),
        [([[0, 1], [0, 0]], [[0.6, 0.4], [0.4, 0.6]])],
        0.87525165,
    ),
    (metrics.CategoricalCrossentropy, [(ONE_HOT, PROBABILITIES)], 0.87802064),
    (
        lambda: metrics.CategoricalCrossentropy(from_logits=True),
        [([[0, 1, 0], [0, 0, 1]], [[0.05, 0.95, 0], [0.1, 0.8, 0.1]])],
        0.98689508,
    ),
    (
        metrics.SparseCategoricalCrossentropy,
        [
            ([1, 2], PROBABILITIES),
            ([1, 2], [[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]], [0.3, 0.7]),
        ],
        1.12774646,
    ),
    (
        lambda: metrics.SparseCategoricalCrossentropy(from_logits=True),
        [([1, 2], PROBABILITIES)],
        0.94982767,
    ),
    (metrics.Precision, [([0, 1, 1, 1], [1, 0, 1, 1])], 2 / 3),
    (metrics.Precision, [([0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 1, 0])], 1),
    (metrics.Precision, [([0, 1], [0, 0])], 0),
    (metrics.Recall, [([0, 1, 1, 1], [1, 0, 1, 1])], 2 / 3),
]


def mirrored(replicas: int = 2) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])


@pytest.mark.long
def test_a_score_that_is_no_number_is_not_among_the_highest() -> None:
    scores = [[np.nan] * 3, [0.1, np.nan, 0.2], [0.3, 0.2, 0.1], [0.3, 0.2, 0.1]]
    metric = metrics.SparseTopKCategoricalAccuracy(k=3)
    np.testing.assert_array_equal(metric([0, 1, 2, 0], scores), 0.5)
    for outside in (-1, 3):  # as in tf.math.in_top_k
        assert metrics.SparseTopKCategoricalAccuracy(k=3)([outside], scores[3:]) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_crossentropy_of_certainty_in_few_bits(dtype: str) -> None:
    certain = jnp.array([1.0, 0.0], dtype)
    loss = metrics.BinaryCrossentropy()([1.0, 0.0], certain)
    assert 0 <= float(loss) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("make", "updates", "expected"), UPDATES)
def test_numbers(make: Callable[[], Any], updates: list[tuple[Any, ...]], expected: float) -> None:
    metric = make()
    for update in updates:
        metric.update_state(*update)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)
    metric.reset_state()
    assert float(metric.result()) == 0


@pytest.mark.long
@pytest.mark.parametrize(("make", "updates", "expected"), UPDATES[1::4])
def test_replicas_share_the_rows(
    make: Callable[[], Any], updates: list[tuple[Any, ...]], expected: float
) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        metric = make()
    update_state = lambda *arrays: metric.update_state(*arrays)  # noqa: E731
    for update in updates:
        arrays = [np.asarray(array) for array in update]
        if any(array.ndim == 0 for array in arrays):
            metric.update_state(*update)
        else:
            strategy.run(update_state, args=tuple(shared(strategy, array) for array in arrays))
    assert float(metric.result()) == pytest.approx(expected, rel=1e-5)


def shared(strategy: gd.Strategy, rows: Any) -> Any:
    """Return rows cut as datasets cut them: the last replicas may have fewer, or none."""
    size = -(-len(rows) // strategy.num_replicas_in_sync)
    return strategy.experimental_distribute_values_from_function(
        lambda context: rows[size * context.replica_id_in_sync_group :][:size]
    )


STRATEGIES: dict[str, Callable[[], gd.Strategy]] = {
    "mirrored": mirrored,
    "central": lambda: gd.CentralStorageStrategy(["cpu:0", "cpu:1"]),
    "one": lambda: gd.OneDeviceStrategy("cpu:1"),
    "default": gd.get_strategy,
}


@pytest.fixture(params=STRATEGIES)
def strategy(request: pytest.FixtureRequest) -> gd.Strategy:
    return STRATEGIES[request.param]()


def rows_of(strategy: gd.Strategy) -> Any:
    rows = [np.array([1, 2], np.float32), np.array([6], np.float32)]
    return strategy.experimental_distribute_values_from_function(
        lambda context: rows[context.replica_id_in_sync_group]
    )


@pytest.mark.long
@pytest.mark.parametrize("inside", [False, True])
def test_updated_by_replicas(strategy: gd.Strategy, inside: bool) -> None:
    with strategy.scope():
        mean, total = metrics.Mean(), metrics.Sum()

    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            mean.update_state(x)
            total.update_state(x)

        strategy.run(replica_fn, args=(x,))

    run = gd.function(step) if inside else step
    run(rows_of(strategy))
    several = strategy.num_replicas_in_sync > 1
    assert float(mean.result()) == (3 if several else 1.5)
    assert float(total.result()) == (9 if several else 3)
    run(rows_of(strategy))
    assert float(mean.result()) == (3 if several else 1.5)
    assert float(total.result()) == (18 if several else 6)
    mean.reset_state()
    assert float(mean.result()) == 0


@pytest.mark.long
@pytest.mark.parametrize("inside", [False, True])
def test_updated_outside_replicas(strategy: gd.Strategy, inside: bool) -> None:
    with strategy.scope():
        metric = metrics.Mean()

    def step(x: Any, one: Any) -> Any:
        metric.update_state(x)
        metric.update_state(one, sample_weight=2.0)
        return metric.result()

    with strategy.scope():
        result = (gd.function(step) if inside else step)(rows_of(strategy), jnp.float32(10))
    rows = [1, 2, 6] if strategy.num_replicas_in_sync > 1 else [1, 2]
    assert float(result) == pytest.approx((sum(rows) + 20) / (len(rows) + 2))


def test_one_value_counts_once() -> None:
    strategy = mirrored(3)
    with strategy.scope():
        metric = metrics.Sum()
    metric.update_state(5.0)
    x = strategy.run(lambda: gd.get_replica_context().replica_id_in_sync_group)
    metric.update_state(strategy.extended.reduce_to("SUM", x, x))
    assert float(metric.result()) == 8
    assert [float(value) for value in metric.total.values] == [8, 0, 0]


def test_results_of_replicas_are_their_own() -> None:
    strategy = mirrored()
    with strategy.scope():
        metric = metrics.Mean()

    def replica_fn(x: Any) -> Any:
        return metric(x)

    result = strategy.run(replica_fn, args=(rows_of(strategy),))
    assert [float(value) for value in result.values] == [1.5, 6]
    assert float(metric(0.0)) == pytest.approx(9 / 4)


def test_a_mean_is_one_collective() -> None:
    strategy = mirrored()
    with strategy.scope():
        metric = metrics.Mean()

    @gd.function
    def step(x: Any) -> Any:
        strategy.run(lambda x: metric.update_state(x), args=(x,))
        return metric.result()

    lowered = step.trace(rows_of(strategy)).lower()
    assert [one.kind for one in lowered.collectives] == ["all_reduce"]


def test_variables_are_sums_each_replica_has_its_own() -> None:
    with mirrored().scope():
        metric = metrics.Mean(name="loss", dtype=jnp.float16)
    assert [variable.name for variable in metric.variables] == ["total", "count"]
    for variable in metric.variables:
        assert variable.synchronization is gd.VariableSynchronization.ON_READ
        assert variable.aggregation is gd.VariableAggregation.SUM
        assert not variable.trainable
        assert variable.dtype == jnp.float32
    assert (metric.name, metric.dtype) == ("loss", jnp.float16)
    assert metric.result().dtype == jnp.float16


def test_names() -> None:
    assert metrics.Mean().name == "mean"
    assert metrics.SparseCategoricalAccuracy().name == "sparse_categorical_accuracy"
    assert metrics.RootMeanSquaredError(name="off").name == "off"
    assert set(metrics.__all__) <= set(dir(metrics))


def test_weights_of_several_dimensions_and_broadcasting() -> None:
    metric = metrics.Mean()
    metric.update_state(np.ones((2, 3, 4)) * [[[1.0]], [[5.0]]], sample_weight=[3.0, 1.0])
    assert float(metric.result()) == 2


@pytest.mark.long
def test_what_is_made_for_a_metric_goes_with_it() -> None:
    strategy = mirrored()
    with strategy.scope():
        metric = metrics.Mean()
    metric.update_state(1.0)
    assert float(metric.result()) == 1
    gone = weakref.ref(metric.total)
    del metric
    gc.collect()
    assert gone() is None


def test_a_metric_has_the_name_of_its_class() -> None:
    class TopFive(gd.metrics.Mean):
        pass

    assert TopFive().name == "top_five"
    assert gd.metrics.Mean().name == "mean"
    assert gd.metrics.SparseTopKCategoricalAccuracy().name == "sparse_top_k_categorical_accuracy"
    assert gd.metrics.Recall(name="found").name == "found"
