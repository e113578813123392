"""Batches that do not divide: the loss of the whole batch, and the warning of another mean."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.values import replica_warnings

ROWS = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def nothing_is_warned_of_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_warnings, "_warned", set())


def devices(count: int) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(count)])


def batch_of(strategy: gd.Strategy, rows: int) -> Any:
    return next(iter(strategy.experimental_distribute_dataset([ROWS[:rows]])))


@contextmanager
def warned(*texts: str) -> Iterator[None]:
    """Expect these warnings, in order, at lines of this file, and no others."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [warning.category for warning in caught] == [gd.ReplicaWarning] * len(texts)
    assert all(warning.filename == __file__ for warning in caught)
    for warning, text in zip(caught, texts, strict=True):
        assert text in str(warning.message)


def losses(w: Any, x: Any) -> Any:
    return (x @ w - 1) ** 2


def exact_step(strategy: gd.Strategy, microbatches: int = 1) -> Callable[[Any], Any]:
    def loss_fn(w: Any, x: Any) -> Any:
        return gd.nn.compute_average_loss(losses(w, x))

    def replica_fn(x: Any) -> Any:
        value_and_grad = jax.value_and_grad(loss_fn)
        if microbatches > 1:
            value_and_grad = gd.accumulate(value_and_grad, microbatches)
        loss, gradient = value_and_grad(jnp.ones(3), x)
        return loss, gd.get_replica_context().all_reduce("SUM", gradient)

    def step(x: Any) -> Any:
        loss, gradient = strategy.run(replica_fn, args=(x,))
        return strategy.reduce("SUM", loss, axis=None), gradient

    return step


def means_step(strategy: gd.Strategy) -> Callable[[Any], Any]:
    def replica_fn(x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(losses(w, x)))(jnp.ones(3))
        return loss, gd.get_replica_context().all_reduce("MEAN", gradient)

    def step(x: Any) -> Any:
        loss, gradient = strategy.run(replica_fn, args=(x,))
        return strategy.reduce("MEAN", loss, axis=None), gradient

    return step


@pytest.mark.long
@pytest.mark.parametrize("make", [gd.function, lambda step: step])
@pytest.mark.parametrize(("rows", "replicas"), [(3, 2), (1, 2), (5, 4), (4, 2), (3, 1)])
def test_average_losses_are_those_of_the_whole_batch(rows: int, replicas: int, make: Any) -> None:
    strategy = devices(replicas)
    loss, gradient = make(exact_step(strategy))(batch_of(strategy, rows))
    whole = jax.value_and_grad(lambda w: jnp.mean(losses(w, ROWS[:rows])))(jnp.ones(3))
    np.testing.assert_allclose(loss, whole[0], rtol=1e-6)
    for part in strategy.experimental_local_results(gradient):
        np.testing.assert_allclose(part, whole[1], rtol=1e-5, atol=1e-6)


def test_average_losses_of_microbatches_are_those_of_the_whole_batch() -> None:
    strategy = devices(2)
    loss, gradient = gd.function(exact_step(strategy, microbatches=2))(batch_of(strategy, 8))
    whole = jax.value_and_grad(lambda w: jnp.mean(losses(w, ROWS)))(jnp.ones(3))
    np.testing.assert_allclose(loss, whole[0], rtol=1e-6)
    np.testing.assert_allclose(gradient.values[0], whole[1], rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_each_line_with_a_mean_over_unequal_replicas_is_warned_of_once() -> None:
    with warned("2 and 1 rows", "2 and 1 rows"):
        for strategy in (devices(2), devices(2)):
            step = gd.function(means_step(strategy))
            for rows in (4, 3, 3, 1):
                step(batch_of(strategy, rows))


def test_a_warning_says_that_a_replica_has_no_rows_and_what_to_do() -> None:
    strategy = devices(2)

    def mean(x: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(jnp.mean, args=(x,)), axis=None)

    with warned("1 and 0 rows gives each replica the same weight (the mean of a replica without"):
        assert np.isnan(gd.function(mean)(batch_of(strategy, 1)))
    with warned():
        gd.function(mean)(batch_of(strategy, 3))  # the line is warned of already


def test_a_mean_outside_the_function_of_the_run_is_warned_of() -> None:
    strategy = devices(2)
    run = gd.function(lambda x: strategy.run(lambda x: (jnp.mean(x), x.shape[0] * 1.0), (x,)))
    even = run(batch_of(strategy, 4))[0]
    uneven = run(batch_of(strategy, 3))[0]
    with warned():
        strategy.reduce("SUM", uneven, axis=None)
        strategy.reduce("MEAN", batch_of(strategy, 3), axis=0)
    with warned("2 and 1 rows"):
        for loss in (even, uneven, uneven):
            strategy.reduce("MEAN", {"loss": loss}, axis=None)
    with warned("2 and 1 rows"):
        gd.function(lambda loss: strategy.reduce("MEAN", loss, axis=None))(uneven)


@pytest.mark.parametrize("aggregation", ["ON_WRITE", "ON_READ"])
def test_writing_to_a_variable_that_takes_the_mean_is_warned_of(aggregation: str) -> None:
    strategy = devices(2)
    with strategy.scope():
        v = gd.Variable(
            jnp.zeros(3),
            synchronization=gd.VariableSynchronization[aggregation],
            aggregation=gd.VariableAggregation.MEAN,
        )

    def replica_fn(x: Any) -> None:
        v.assign(jnp.mean(x, axis=0))

    with warned("2 and 1 rows"):
        strategy.run(replica_fn, args=(batch_of(strategy, 3),))
        v.read_value()


def test_a_mean_in_a_loop_is_warned_of() -> None:
    strategy = devices(2)

    def replica_fn(x: Any) -> Any:
        def turn(total: Any, _: Any) -> Any:
            return total + gd.get_replica_context().all_reduce("MEAN", jnp.sum(x)), None

        return jax.lax.scan(turn, jnp.float32(0), None, length=3)[0]

    with warned("2 and 1 rows"):
        strategy.run(replica_fn, args=(batch_of(strategy, 3),))


def test_means_of_what_is_no_mean_of_rows_are_not_warned_of() -> None:
    strategy = devices(2)
    with strategy.scope():
        seen, w = gd.metrics.Mean(), gd.Variable(jnp.ones(3))

    def replica_fn(x: Any, rate: Any) -> Any:
        context = gd.get_replica_context()
        seen.update_state(losses(w.read_value(), x))
        total = context.all_reduce("SUM", jnp.sum(x))
        return context.all_reduce("MEAN", (w.read_value(), rate, total, jnp.float32(x.shape[0])))

    @gd.function
    def step(x: Any, rate: Any) -> Any:
        strategy.run(replica_fn, args=(x, rate))
        return strategy.reduce("MEAN", rate, axis=None), strategy.reduce("MEAN", x, axis=0)

    with warned():
        step(batch_of(strategy, 3), 0.1)
        np.testing.assert_allclose(seen.result(), np.mean(losses(jnp.ones(3), ROWS[:3])), rtol=1e-6)


def test_replicas_whose_rows_are_equal_and_longer_are_not_warned_of() -> None:
    strategy = devices(2)
    sequences = strategy.experimental_distribute_values_from_function(
        lambda context: np.ones((2, 3 + context.replica_id_in_sync_group), np.float32)
    )
    with warned():
        strategy.reduce("MEAN", strategy.run(jnp.mean, args=(sequences,)), axis=None)
