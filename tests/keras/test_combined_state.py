"""State of layers and metrics that replicas assign: the numbers of one device, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
import pytest
from keras import layers, ops

import graphdist as gd
from tests.keras.models import mirrored, scope_of

X = np.arange(12, dtype=np.float32).reshape(6, 2) + 1
"""In batches of 3 rows: parts of 2 rows and of 1."""

Assign = Callable[[Any, Any, Any], None]


class Keeps(layers.Layer):
    """Keeps a weight, and returns its inputs with the weight added."""

    def __init__(self, assign: Assign, aggregation: str = "none", dtype: str = "float32") -> None:
        super().__init__(name="keeps")
        self.assign = assign
        self.total = self.add_weight(
            shape=(2,),
            initializer="zeros",
            trainable=False,
            dtype=dtype,
            aggregation=aggregation,
            name="total",
        )

    def call(self, inputs: Any) -> Any:
        self.assign(self, self.total, inputs)
        return inputs + ops.cast(self.total, "float32")


def seen(
    assign: Assign, strategy: gd.Strategy | None, rows: Any = X, **declared: Any
) -> dict[str, Any]:
    """Train, evaluate and predict, and return the numbers that a user sees."""
    with scope_of(strategy):
        last = layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((2,)), Keeps(assign, **declared), last])
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    fitted = model.fit(rows, rows[:, :1], batch_size=3, shuffle=False, verbose=0)
    found = {"fit": fitted.history["loss"], "total": model.layers[0].total.numpy()}
    found["evaluate"] = model.evaluate(rows, rows[:, :1], batch_size=3, verbose=0)
    found["predict"] = model.predict(rows, batch_size=3, verbose=0)
    return {**found, "at the end": model.layers[0].total.numpy(), "weights": last.get_weights()}


def same(assign: Assign, **declared: Any) -> None:
    alone, together = (seen(assign, each, **declared) for each in (None, mirrored(2)))
    for here, there in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-5)


def adds(layer: Any, weight: Any, x: Any) -> None:
    weight.assign_add(ops.sum(x, axis=0))


def is_assigned_the_sum(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(weight + ops.sum(x, axis=0))


def is_assigned_the_sum_turned_around(layer: Any, weight: Any, x: Any) -> None:
    amount = ops.sum(x, axis=0)
    weight.assign_sub(-amount)


def counts_rows(layer: Any, weight: Any, x: Any) -> None:
    weight.assign_add(ops.ones((2,)) * ops.shape(x)[0])


def counts_rows_by_their_number(layer: Any, weight: Any, x: Any) -> None:
    weight.assign_add(x.shape[0])


SUMS = (
    adds,
    is_assigned_the_sum,
    is_assigned_the_sum_turned_around,
    counts_rows,
    counts_rows_by_their_number,
)


@pytest.mark.long
@pytest.mark.parametrize("assign", SUMS)
def test_a_sum_that_is_declared_is_the_sum_over_all_rows(assign: Assign) -> None:
    same(assign, aggregation="sum")


@pytest.mark.long
def test_whole_numbers_are_summed() -> None:
    def counts(layer: Any, weight: Any, x: Any) -> None:
        weight.assign_add(ops.cast(ops.sum(x > 3, axis=0), "int32"))

    same(counts, aggregation="sum", dtype="int32")


def keeps_the_mean(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(0.5 * weight + 0.5 * ops.mean(x, axis=0))


def keeps_the_last_mean(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(ops.mean(x, axis=0))


def keeps_the_largest(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(ops.maximum(weight, ops.max(x, axis=0)))


def adds_by_a_function(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(ops.add(weight, ops.sum(x, axis=0)))


def adds_means(layer: Any, weight: Any, x: Any) -> None:
    weight.assign_add(ops.mean(x, axis=0))


def counts_rows_twice(layer: Any, weight: Any, x: Any) -> None:
    weight.assign(weight.value + x.shape[0])


@pytest.mark.parametrize(
    "assign",
    [*SUMS, keeps_the_mean, keeps_the_last_mean, keeps_the_largest, adds_means, counts_rows_twice],
)
def test_a_weight_that_says_nothing_is_refused(assign: Assign) -> None:
    with pytest.raises(gd.errors.DistributionError) as raised:
        seen(assign, mirrored(2))
    assert "weight 'total' of layer 'keeps' is assigned by 2 replicas" in str(raised.value)
    assert "assigned by assign_add(amount)" in str(raised.value)
    assert f"in {assign.__name__}" in str(raised.value)


def test_a_weight_that_says_nothing_is_refused_in_evaluate_too() -> None:
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((2,)), Keeps(adds)])
        model.compile(loss="mse")
    with pytest.raises(gd.errors.DistributionError, match="weight 'total' of layer 'keeps'"):
        model.evaluate(X, X, batch_size=3, verbose=0)


@pytest.mark.parametrize("assign", [keeps_the_largest, keeps_the_mean, adds_by_a_function])
def test_a_sum_that_is_not_seen_to_be_one_is_refused(assign: Assign) -> None:
    with pytest.raises(gd.errors.DistributionError) as raised:
        seen(assign, mirrored(2), aggregation="sum")
    assert "is not the weight plus an amount" in str(raised.value)


@pytest.mark.long
@pytest.mark.parametrize("assign", [keeps_the_mean, keeps_the_last_mean])
def test_a_mean_that_is_declared_is_the_mean_over_equal_parts(assign: Assign) -> None:
    alone, together = (
        seen(assign, each, X[:4].repeat(3, axis=0)[:9], aggregation="mean")["total"]
        for each in (None, gd.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]))
    )
    np.testing.assert_allclose(together, alone, rtol=1e-5)


@pytest.mark.long
def test_steps_are_counted_once() -> None:
    def counts(layer: Any, weight: Any, x: Any) -> None:
        weight.assign_add(ops.shape(x)[0] * 0 + 1)

    same(counts)


class Peak(keras.metrics.Metric):
    """The largest prediction."""

    def __init__(self) -> None:
        super().__init__(name="peak")
        self.peak = self.add_weight(shape=(), initializer="zeros", name="peak")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.peak.assign(ops.maximum(self.peak, ops.max(predicted)))

    def result(self) -> Any:
        return self.peak.value


class Positives(keras.metrics.Metric):
    """The metric that Keras documents: predictions that are positive."""

    def __init__(self) -> None:
        super().__init__(name="positives")
        self.positives = self.add_variable(shape=(), initializer="zeros", name="positives")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.positives.assign(self.positives + ops.sum(ops.cast(predicted > 9, "float32")))

    def result(self) -> Any:
        return self.positives.value


def with_metric(metric: Any, strategy: gd.Strategy | None) -> Any:
    with scope_of(strategy):
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse", metrics=[metric])
    return model.evaluate(X, X[:, :1], batch_size=3, verbose=0, return_dict=True)


def test_a_metric_that_does_not_add_up_is_refused() -> None:
    with pytest.raises(gd.errors.DistributionError) as raised:
        with_metric(Peak(), mirrored(2))
    assert "variable 'peak' of metric 'peak' is summed over the replicas" in str(raised.value)
    assert "assign it by assign_add(amount)" in str(raised.value)


@pytest.mark.long
@pytest.mark.parametrize(
    "make",
    [
        Positives,
        lambda: keras.metrics.R2Score(),
        lambda: keras.metrics.BinaryAccuracy(threshold=9.0),
    ],
)
def test_metrics_that_add_up_are_over_all_rows(make: Callable[[], Any]) -> None:
    alone, together = (with_metric(make(), each) for each in (None, mirrored(2)))
    assert together == pytest.approx(alone, rel=1e-5)


def test_a_metric_that_does_not_add_up_is_refused_in_a_loop_too() -> None:
    peak = Peak()
    with pytest.raises(gd.errors.DistributionError, match="variable 'peak' of metric 'peak'"):
        mirrored(2).run(lambda: peak.update_state(None, np.ones(3)))


def test_a_metric_is_reset_by_replicas() -> None:
    total = keras.metrics.Sum()
    strategy = mirrored(2)
    strategy.run(lambda: total.update_state(2.0))
    strategy.run(total.reset_state)
    assert float(total.result()) == 0.0


def test_sums_and_equal_values_in_a_loop() -> None:
    strategy = mirrored(2)
    total = keras.Variable(0.0, trainable=False, aggregation="sum", name="total")
    other = keras.Variable(0.0, trainable=False, name="other")

    def replica() -> Any:
        number = gd.get_replica_context().replica_id_in_sync_group + 1.0
        total.assign_add(number)
        other.assign(gd.get_replica_context().all_reduce("SUM", number) * 2)
        return total + 0

    found = strategy.run(replica)
    assert [float(part) for part in found.values] == [3.0, 3.0]
    assert (float(total), float(other)) == (3.0, 6.0)


def test_values_that_differ_in_a_loop_are_refused() -> None:
    other = keras.Variable(0, trainable=False, name="other", dtype="int32")

    def replica() -> None:
        other.assign_add(gd.get_replica_context().replica_id_in_sync_group)

    with pytest.raises(gd.errors.DistributionError, match="'other'"):
        mirrored(2).run(replica)
