"""Local steps in programs of every form: metrics, loops, accumulation, contexts, several models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from tests.strategies.local_training import (
    NESTEROV,
    Training,
    are_equal,
    assert_close,
    batches,
    by_hand,
    initial,
    loss_of,
    strategy_of,
)


def test_metrics_and_running_statistics() -> None:
    """Sums over replicas in variables stay right, and a running mean is the mean of the copies."""
    strategy = strategy_of(2, sync_every=4)
    with strategy.scope():
        w = gd.Variable(jnp.ones(3))
        mean = gd.metrics.Mean()
        total = gd.Variable(0.0, trainable=False, aggregation=gd.VariableAggregation.SUM)
        rows = gd.Variable(0, trainable=False, aggregation=gd.VariableAggregation.SUM)
        running = gd.Variable(
            jnp.zeros(3), trainable=False, aggregation=gd.VariableAggregation.MEAN
        )

    def replica_fn(x: Any) -> None:
        grad = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w[...])
        w.assign(w[...] - 0.1 * gd.get_replica_context().all_reduce("MEAN", grad))
        mean.update_state(jnp.sum(x))
        total.assign_add(jnp.sum(x))
        rows.assign_add(len(x))
        running.assign(0.9 * running[...] + 0.1 * x.mean(0))

    @gd.function
    def step(x: Any) -> None:
        strategy.run(replica_fn, args=(x,))

    data = batches(6)
    for x in strategy.experimental_distribute_dataset(data):
        step(x)
    np.testing.assert_allclose(total, sum(x.sum() for x in data), rtol=1e-4)
    assert int(rows) == 48
    parts = [part.sum() for x in data for part in np.split(x, 2)]
    np.testing.assert_allclose(mean.result(), np.mean(parts), rtol=1e-4)
    expected = np.zeros(3)
    for x in data:
        expected = 0.9 * expected + 0.1 * x.mean(0)
    np.testing.assert_allclose(running, expected, rtol=1e-4)


def test_a_loop_over_a_dataset_synchronizes_inside_the_loop() -> None:
    data, inner = batches(12), optax.adam(0.05)
    one_by_one = Training(strategy_of(2, sync_every=3, outer_optimizer=NESTEROV), inner)
    _, expected = one_by_one.run(data)
    training = Training(strategy_of(2, sync_every=3, outer_optimizer=NESTEROV), inner)
    strategy = training.strategy

    @gd.function(steps_per_execution=4)
    def epoch(dataset: Any) -> Any:
        loss = jnp.zeros(())
        for x in dataset:
            loss = training.step(x)
        return loss

    epoch(strategy.experimental_distribute_dataset(data))
    assert_close(jax.tree.map(np.asarray, gd.read(training.params)), expected)


def test_scan_over_steps() -> None:
    data, inner = np.stack(batches(9)), optax.sgd(0.1, momentum=0.9)
    training = Training(strategy_of(2, sync_every=4), inner)
    strategy = training.strategy

    def replica_fn(xs: Any) -> None:
        def body(carry: None, x: Any) -> tuple[None, None]:
            grads = jax.grad(loss_of)(gd.read(training.params), x)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, state = inner.update(grads, gd.read(training.state))
            gd.assign(training.params, optax.apply_updates(gd.read(training.params), updates))
            gd.assign(training.state, state)
            return None, None

        jax.lax.scan(body, None, xs)

    parts = np.split(data, 2, axis=1)
    xs = strategy.experimental_distribute_values_from_function(
        lambda context: parts[context.replica_id_in_sync_group]
    )
    gd.function(lambda xs: strategy.run(replica_fn, args=(xs,)))(xs)
    _, copies = by_hand(data, 2, 4, inner)
    for replica, copy in enumerate(copies):
        assert_close({k: v.values[replica] for k, v in training.params.items()}, copy)


def test_accumulated_gradients() -> None:
    data = batches(6)
    training = Training(strategy_of(2, sync_every=3), optax.sgd(0.1))
    strategy, params = training.strategy, training.params

    def replica_fn(x: Any) -> None:
        grads = gd.accumulate(lambda x: jax.grad(loss_of)(gd.read(params), x), 2)(x)
        grads = gd.get_replica_context().all_reduce("MEAN", grads)
        gd.assign(params, jax.tree.map(lambda w, g: w - 0.1 * g, gd.read(params), grads))

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    for x in strategy.experimental_distribute_dataset(data):
        step(x)
    _, copies = by_hand(data, 2, 3, optax.sgd(0.1))
    assert_close(jax.tree.map(np.asarray, gd.read(params)), copies[0])


def test_an_update_in_cross_replica_context() -> None:
    data = batches(7)
    strategy = strategy_of(2, sync_every=3)
    with strategy.scope():
        params = gd.variables(initial())

    @gd.function
    def step(x: Any) -> Any:
        values = gd.read(params)
        grads = strategy.run(lambda p, x: jax.grad(loss_of)(p, x), args=(values, x))
        grads = strategy.reduce("MEAN", grads, axis=None)
        gd.assign(params, jax.tree.map(lambda w, g: w - 0.1 * g, values, grads))
        return optax.tree.norm(grads)

    norms = [float(step(x)) for x in strategy.experimental_distribute_dataset(data)]
    _, copies = by_hand(data, 2, 3, optax.sgd(0.1))
    for replica, copy in enumerate(copies):
        assert_close({k: v.values[replica] for k, v in params.items()}, copy)
    first = [optax.tree.norm(jax.grad(loss_of)(initial(), part)) for part in np.split(data[0], 2)]
    np.testing.assert_allclose(norms[0], np.mean(first), rtol=1e-5)


def test_a_variable_with_an_aggregation_is_updated_without_an_explicit_reduction() -> None:
    data = batches(7)
    strategy = strategy_of(2, sync_every=3)
    with strategy.scope():
        params = {
            name: gd.Variable(value, aggregation=gd.VariableAggregation.MEAN)
            for name, value in initial().items()
        }

    def replica_fn(x: Any) -> None:
        grads = jax.grad(loss_of)({name: v[...] for name, v in params.items()}, x)
        for name, variable in params.items():
            variable.assign_sub(0.1 * grads[name])

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    for x in strategy.experimental_distribute_dataset(data):
        step(x)
    _, copies = by_hand(data, 2, 3, optax.sgd(0.1))
    assert_close({name: v.values[1] for name, v in params.items()}, copies[1])


@pytest.mark.long
def test_partial_batches_share_the_count_and_the_slots() -> None:
    data = [*batches(2), *batches(1, rows=6), *batches(3)]
    outer, inner = NESTEROV, optax.sgd(0.1)
    training = Training(strategy_of(2, sync_every=3, outer_optimizer=outer), inner)
    training.run(data)
    anchors, _ = by_hand(data, 2, 3, inner, outer)
    assert_close(jax.tree.map(np.asarray, gd.read(training.params)), anchors)


def test_two_models_are_synchronized_each_in_its_own_step() -> None:
    strategy = strategy_of(2, sync_every=2)
    with strategy.scope():
        first, second = gd.Variable(jnp.ones(3), name="w"), gd.Variable(jnp.ones(3), name="w")

    def step_of(mine: gd.Variable, other: gd.Variable) -> Callable[[Any], Any]:
        def replica_fn(x: Any) -> None:
            grad = jax.grad(lambda w: jnp.mean((x @ (w + other[...])) ** 2))(mine[...])
            mine.assign(mine[...] - 0.1 * gd.get_replica_context().all_reduce("MEAN", grad))

        return gd.function(lambda x: strategy.run(replica_fn, args=(x,)))

    one, two = step_of(first, second), step_of(second, first)
    for number, x in enumerate(strategy.experimental_distribute_dataset(batches(4)), start=1):
        one(x)
        assert are_equal(first) == (number % 2 == 0)
        if number == 2:
            two(x)
            assert not are_equal(second)


def test_refused() -> None:
    for options, error, words in (
        ({"sync_every": 0}, gd.ArgumentError, "sync_every is 0"),
        ({"sync_every": 2.0}, gd.ArgumentError, "sync_every is 2.0"),
        ({"sync_every": True}, gd.ArgumentError, "sync_every is True"),
        ({"outer_optimizer": NESTEROV}, gd.ArgumentError, "without sync_every"),
        ({"sync_every": 2, "outer_optimizer": 3}, gd.ArgumentTypeError, "outer_optimizer is of"),
        ({"sync_every": 2, "shard_update": True}, gd.ArgumentError, "shard_update"),
        ({"sync_every": 2, "shard_parameters": True}, gd.ArgumentError, "shard_parameters"),
    ):
        with pytest.raises(error, match=words):
            strategy_of(2, **options)
