"""Metrics go on counting where a float32 stands still, on all kinds of replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist import metrics
from graphdist.metrics.exact_sums import Total
from tests.numerics.test_metrics import STRATEGIES, mirrored

STILL = 2**24
"""Where a float32 that counts stands still."""


def counted(total: Total) -> float:
    return float(total.host_value())


@pytest.mark.long
@pytest.mark.parametrize("where", STRATEGIES)
@pytest.mark.parametrize("start", [STILL - 3, STILL, 2**31 + 1, 2**36 - 40])
def test_counting_goes_on(where: str, start: int) -> None:
    strategy = STRATEGIES[where]()
    with strategy.scope():
        metric = metrics.Mean()
    metric.total.restore(np.float64(start))
    metric.count.restore(np.float64(start))

    @gd.function
    def step(x: Any) -> None:
        strategy.run(lambda x: metric.update_state(x), args=(x,))

    for _ in range(5):
        step(jnp.ones(3))
    added = 5 * 3 * strategy.num_replicas_in_sync
    assert counted(metric.count) == counted(metric.total) == start + added
    assert float(metric.result()) == 1


@pytest.mark.parametrize("start", [0, STILL])
def test_a_metric_of_no_scope_in_replicas(start: int) -> None:
    """It has one copy, to which one replica after the other adds."""
    metric = metrics.Mean()
    metric.count.restore(np.float64(start))
    strategy = mirrored(3)

    @gd.function
    def step(x: Any) -> None:
        strategy.run(lambda x: metric.update_state(x), args=(x,))

    for _ in range(4):
        step(jnp.ones(2000))
    assert counted(metric.count) == start + 4 * 3 * 2000


def test_counts_of_predictions() -> None:
    metric = metrics.Precision()
    for total in metric.totals:
        total.restore(np.float64(STILL))
    metric.update_state(np.ones(5), np.ones(5))
    assert [counted(total) for total in metric.totals] == [STILL + 5] * 2


def test_a_total_to_which_little_is_added_at_a_time() -> None:
    """In float32 the sum of 0.001s is off by percents once it is above 4096."""
    metric = metrics.Sum()
    metric.total.restore(np.float64(8191.0))

    @gd.function
    def add() -> None:
        def once(_: Any, x: Any) -> tuple[None, None]:
            metric.update_state(x)
            return None, None

        jax.lax.scan(once, None, jnp.full(20_000, 0.001))

    add()
    exact = 8191.0 + 20_000 * float(np.float32(0.001))
    assert counted(metric.total) == pytest.approx(exact, rel=1e-9)


def test_weights_and_values_below_zero() -> None:
    metric = metrics.Mean()
    metric.total.restore(np.float64(-STILL))
    metric.count.restore(np.float64(STILL))
    metric.update_state([-1.0, -3.0], sample_weight=[0.5, 0.25])
    assert counted(metric.total) == -STILL - 1.25
    assert counted(metric.count) == STILL + 0.75


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_stays_so(value: float) -> None:
    metric = metrics.Sum()
    for added in (1.0, value, 1.0, 1.0):
        metric.update_state(added)
    np.testing.assert_equal(float(metric.result()), value)
    metric.reset_state()
    assert float(metric(2.0)) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_of_few_bits(dtype: str) -> None:
    metric = metrics.Mean(dtype=dtype)
    for _ in range(3):
        metric.update_state(jnp.ones(1001, dtype))
    assert counted(metric.count) == 3003
    assert (metric.result().dtype, float(metric.result())) == (jnp.dtype(dtype), 1.0)


@pytest.mark.long
@pytest.mark.parametrize("restored_on", [1, 2, 3])
def test_checkpoints_are_exact(tmp_path: Path, restored_on: int) -> None:
    strategy = mirrored(2)
    with strategy.scope():
        saved = metrics.Mean()
    saved.count.restore(np.float64(2**35))
    strategy.run(lambda: saved.update_state(jnp.full(3, 0.1)))
    path = gd.train.Checkpoint(loss=saved).save(tmp_path / "metric")
    assert gd.train.load_variable(path, "loss/count") == 2**35 + 6
    with mirrored(restored_on).scope():
        restored = metrics.Mean()
    gd.train.Checkpoint(loss=restored).restore(path).assert_consumed()
    assert counted(restored.count) == 2**35 + 6
    assert counted(restored.total) == counted(saved.total)
    restored.strategy.run(lambda: restored.update_state(jnp.ones(1)))
    assert counted(restored.count) == 2**35 + 6 + restored_on


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpoints_of_before(tmp_path: Path, dtype: str) -> None:
    """A metric's sums were variables of its dtype."""
    old = {
        name: gd.Variable(jnp.asarray(value, dtype))
        for name, value in (("total", STILL), ("count", 2 * STILL))
    }
    path = gd.train.Checkpoint(loss=old).save(tmp_path / "old")
    strategy = mirrored(2)
    with strategy.scope():
        metric = metrics.Mean()
    metric.update_state(123456.0)
    gd.train.Checkpoint(loss=metric).restore(path).assert_consumed()
    assert float(metric.result()) == 0.5
    strategy.run(lambda: metric.update_state(jnp.ones(1)))
    assert counted(metric.count) == 2 * STILL + 2


def test_a_sum_is_no_place_for_integers(tmp_path: Path) -> None:
    path = gd.train.Checkpoint(loss={"total": gd.Variable(3)}).save(tmp_path / "integer")
    with pytest.raises(gd.CheckpointError, match=r"'loss/total' is float64\[\], saved was int32"):
        gd.train.Checkpoint(loss=metrics.Sum()).restore(path)


class Histogram(metrics.Metric):
    """A metric of a user's with a shape."""

    def __init__(self) -> None:
        super().__init__("histogram")
        self.bins = self.add_variable("bins", (3,))

    def contributions(self, values: Any) -> list[Any]:
        return [jnp.bincount(values, length=3)]

    def value(self, bins: Any) -> Any:
        return bins


@pytest.mark.long
@pytest.mark.parametrize("make", [mirrored, gd.get_strategy])
def test_a_metric_of_ones_own(make: Callable[[], gd.Strategy]) -> None:
    with make().scope():
        histogram = Histogram()
    histogram.bins.restore(np.full(3, STILL))
    histogram.update_state(jnp.array([0, 2, 2]))
    assert histogram.bins.host_value().tolist() == [STILL + 1, STILL, STILL + 2]
    assert histogram.bins[0] == float(STILL)
    assert [part.shape for part in histogram.bins.values] == [(3,)] * len(histogram.bins.values)


def test_no_collective_more() -> None:
    strategy = mirrored()
    with strategy.scope():
        several = [metrics.Mean() for _ in range(3)]

    @gd.function
    def step(x: Any) -> Any:
        for metric in several:
            strategy.run(lambda x, metric=metric: metric.update_state(x), args=(x,))
        return [metric.result() for metric in several]

    (collective,) = step.trace(jnp.ones(3)).lower().collectives
    assert collective.kind == "all_reduce"
