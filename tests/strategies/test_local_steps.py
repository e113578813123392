"""Local steps against the same written by hand, and everything else that sees the variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.runtime.hlo import computations_of, module_collectives

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def strategy_of(replicas: int = 2, **options: Any) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(replicas)], **options)


def initial() -> dict[str, jax.Array]:
    numbers = np.random.default_rng(0)
    return {"a": jnp.asarray(numbers.normal(size=(3, 2)), jnp.float32), "b": jnp.zeros(2)}


def batches(count: int, rows: int = 8) -> list[np.ndarray[Any, Any]]:
    numbers = np.random.default_rng(1)
    return [numbers.normal(size=(rows, 3)).astype(np.float32) for _ in range(count)]


def loss_of(params: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["a"]) + params["b"] - x[:, :2]) ** 2)


class Training:
    """A model with its step, in the way a user writes it."""

    def __init__(self, strategy: gd.Strategy, inner: Any, reduce_op: str = "MEAN") -> None:
        self.strategy = strategy
        with strategy.scope():
            self.params = gd.variables(initial())
            self.state = gd.variables(inner.init(initial()))

        def replica_fn(x: Any) -> Any:
            loss, grads = jax.value_and_grad(loss_of)(gd.read(self.params), x)
            if reduce_op == "SUM":
                grads = jax.tree.map(lambda g: g / strategy.num_replicas_in_sync, grads)
            grads = gd.get_replica_context().all_reduce(reduce_op, grads)
            updates, state = inner.update(grads, gd.read(self.state), gd.read(self.params))
            gd.assign(self.params, optax.apply_updates(gd.read(self.params), updates))
            gd.assign(self.state, state)
            return loss

        @gd.function
        def step(x: Any) -> Any:
            return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

        self.step = step

    def run(self, data: Any) -> Any:
        """Return the losses, and the parameters as they are read afterwards."""
        losses = [
            float(self.step(x)) for x in self.strategy.experimental_distribute_dataset(list(data))
        ]
        return losses, jax.tree.map(np.asarray, gd.read(self.params))


def by_hand(
    data: Any, replicas: int, every: int, inner: Any, outer: Any = None
) -> tuple[Any, list[Any]]:
    """Return the anchors and the replicas' copies after local steps, in plain JAX."""
    anchors = initial()
    copies = [anchors] * replicas
    states = [inner.init(anchors)] * replicas
    outer_state = None if outer is None else outer.init(anchors)
    for number, x in enumerate(data, start=1):
        for replica, rows in enumerate(np.split(x, replicas)):
            grads = jax.grad(loss_of)(copies[replica], rows)
            updates, states[replica] = inner.update(grads, states[replica], copies[replica])
            copies[replica] = optax.apply_updates(copies[replica], updates)
        if number % every:
            continue
        mean = jax.tree.map(lambda *leaves: sum(leaves) / replicas, *copies)
        if outer is None:
            anchors = mean
        else:
            difference = jax.tree.map(lambda a, m: a - m, anchors, mean)
            updates, outer_state = outer.update(difference, outer_state, anchors)
            anchors = optax.apply_updates(anchors, updates)
        copies = [anchors] * replicas
    return anchors, copies


def assert_close(given: Any, expected: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), given, expected
    )


@pytest.mark.parametrize("reduce_op", ["MEAN", "SUM"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_one_local_step_of_plain_sgd_is_the_synchronous_step(replicas: int, reduce_op: str) -> None:
    data, inner = batches(5), optax.sgd(0.1)
    expected = Training(strategy_of(replicas), inner, reduce_op).run(data)
    given = Training(strategy_of(replicas, sync_every=1), inner, reduce_op).run(data)
    assert_close(given, expected)


@pytest.mark.parametrize(
    "inner",
    [
        optax.sgd(0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.adamw(optax.linear_schedule(0.0, 0.05, 4), weight_decay=0.1),
        optax.chain(optax.clip_by_global_norm(0.1), optax.adam(0.05)),
    ],
    ids=["sgd", "momentum", "adamw", "clipped"],
)
@pytest.mark.parametrize("outer", [None, NESTEROV, optax.adam(0.1)], ids=["mean", "diloco", "adam"])
def test_as_by_hand(inner: Any, outer: Any) -> None:
    data = batches(11)
    training = Training(strategy_of(2, sync_every=3, outer_optimizer=outer), inner)
    _, read = training.run(data)
    _, copies = by_hand(data, 2, 3, inner, outer)
    for replica, copy in enumerate(copies):
        assert_close({k: v.values[replica] for k, v in training.params.items()}, copy)
    assert not np.allclose(copies[0]["a"], copies[1]["a"]), "two steps after a synchronization"
    assert_close(read, jax.tree.map(lambda a, b: (a + b) / 2, *copies))


def test_an_outer_optimizer_on_one_replica_looks_ahead() -> None:
    data, inner = batches(7), optax.sgd(0.1)
    training = Training(strategy_of(1, sync_every=3, outer_optimizer=NESTEROV), inner)
    _, read = training.run(data)
    assert_close(read, by_hand(data, 1, 3, inner, NESTEROV)[1][0])


def test_one_replica_without_an_outer_optimizer_is_not_changed() -> None:
    data, inner = batches(5), optax.adam(0.1)
    expected = Training(strategy_of(1), inner).run(data)
    assert_close(Training(strategy_of(1, sync_every=3), inner).run(data), expected)


def bytes_a_step(text: str, devices: int, every: int) -> float:
    """Return the bytes that a replica puts into collectives a step, read from a module."""
    named = r"(?:branch_computations=\{|(?:true|false)_computation=)(%?[\w.-]+(?:, %?[\w.-]+)*)"
    taken = {
        name.strip().lstrip("%") for found in re.findall(named, text) for name in found.split(",")
    }
    lines = {name: "\n".join(body) for name, body in computations_of(text).items()}
    total = 0.0
    for found in module_collectives(text, devices):
        inside = [name for name, body in lines.items() if f"%{found.name} = " in body]
        assert len(inside) == 1, found.name
        total += found.bytes / (every if inside[0] in taken else 1)
    return total


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["mean", "diloco"])
def test_bytes_a_step(outer: Any) -> None:
    """The module sends parameters in the branch alone; the mean of the loss stays in each step."""
    x = batches(1)[0]

    def module(**options: Any) -> str:
        training = Training(strategy_of(2, **options), optax.adam(0.1))
        (batch,) = training.strategy.experimental_distribute_dataset([x])
        return training.step.trace(batch).lower().compile().as_text("hlo")

    parameters, loss = 4 * (6 + 2), 4
    assert bytes_a_step(module(), 2, 1) == parameters + loss
    text = module(sync_every=50, outer_optimizer=outer)
    assert bytes_a_step(text, 2, 50) == parameters / 50 + loss


def test_explain_counts_the_branch_by_how_often_it_is_taken() -> None:
    training = Training(strategy_of(2, sync_every=50), optax.sgd(0.1))
    (batch,) = training.strategy.experimental_distribute_dataset(batches(1))
    explanation = training.step.trace(batch).lower().explain()
    (step,) = [step for step in explanation.steps if step.name == "local_steps"]
    assert step.before.moved == 36
    assert step.after.moved == round(4 + 32 / 50)
    (reason,) = step.declined
    assert "reduce of f32[] per_replica" in reason
    assert "it runs in every step, since no assigned variable depends on it" in reason


def test_counts_stay_mirrored_and_slots_local() -> None:
    training = Training(strategy_of(2, sync_every=3), optax.adam(0.1))
    (batch,) = training.strategy.experimental_distribute_dataset(batches(1))
    graph = training.step.trace(batch).lower().graph
    roles = {v.name: (v.role, str(v.type.distribution)) for v in graph.variables}
    assert roles["a.steps"] == ("steps", "mirrored")
    assert sorted(roles.values()).count(("local", "per_replica")) == 6  # a, b and two slots each
    assert ("", "mirrored") in roles.values()  # the count of Adam
    synchronized = {v.serves for v in graph.variables if v.role == "steps"}
    assert synchronized == {("a", "b")}


def test_other_functions_read_the_mean() -> None:
    training = Training(strategy_of(2, sync_every=3), optax.sgd(0.1))
    training.run(batches(2))
    copies = [np.asarray(value) for value in training.params["a"].values]
    mean = (copies[0] + copies[1]) / 2
    assert not np.array_equal(*copies)

    @gd.function
    def evaluate(x: Any) -> Any:
        inside = training.strategy.run(lambda x: training.params["a"][...] + 0 * x, args=(x,))
        return training.params["a"][...], training.strategy.reduce("MEAN", inside, axis=None)

    for value in evaluate(jnp.zeros(())):
        np.testing.assert_allclose(value, mean, rtol=1e-6)
    np.testing.assert_allclose(training.params["a"], mean, rtol=1e-6)
    np.testing.assert_allclose(training.params["a"] * 2, mean * 2, rtol=1e-6)


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["mean", "diloco"])
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
def test_assigned_values_go_to_all_copies_and_to_the_anchor(outer: Any, inside: bool) -> None:
    inner, data = optax.sgd(0.1), batches(8)
    training = Training(strategy_of(2, sync_every=4, outer_optimizer=outer), inner)
    training.run(data[:4])
    value = jnp.full((3, 2), 0.25)
    if inside:
        gd.function(lambda: training.params["a"].assign(value, read_value=False))()
    else:
        training.params["a"].assign(value)
    for copy in training.params["a"].values:
        np.testing.assert_array_equal(copy, value)
    training.params["a"].assign_add(value)
    np.testing.assert_array_equal(training.params["a"], 2 * value)
    anchor = training.params["a"].storage.anchor
    assert (anchor is None) == (outer is None)
    if anchor is not None:
        np.testing.assert_array_equal(anchor.buffer, 2 * value)
    training.run(data[4:])
    copies = training.params["a"].values
    np.testing.assert_array_equal(copies[0], copies[1])


def test_checkpoints_save_the_mean_and_restore_on_other_replicas(tmp_path: Path) -> None:
    inner, data = optax.adam(0.05), batches(10)
    training = Training(strategy_of(2, sync_every=4), inner)
    _, read = training.run(data[:8])  # just synchronized
    path = gd.train.Checkpoint(params=training.params, state=training.state).save(
        str(tmp_path / "c")
    )
    other = Training(strategy_of(4, sync_every=4), inner)
    gd.train.Checkpoint(params=other.params, state=other.state).restore(path)
    assert_close(jax.tree.map(np.asarray, gd.read(other.params)), read)
    losses, _ = other.run(data[8:])
    assert np.isfinite(losses).all()
    for value in other.params["a"].values:
        assert not np.array_equal(value, read["a"])
    again = Training(strategy_of(2, sync_every=4), inner)
    again.run(data[:3])  # its variables are in copies when they are restored
    gd.train.Checkpoint(params=again.params, state=again.state).restore(path)
    assert_close(jax.tree.map(np.asarray, gd.read(again.params)), read)


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
        assert np.array_equal(*first.values) == (number % 2 == 0)
        if number == 2:
            two(x)
            assert not np.array_equal(*second.values)


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
