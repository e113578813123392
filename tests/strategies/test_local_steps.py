"""Local steps against the same written by hand, what a step sends, and what reads give."""

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
from graphdist.ir.cost import cost
from graphdist.ir.variable_storage import StepCount
from graphdist.report.collective_uses import matched_collectives
from graphdist.runtime.module.collective_instructions import module_collectives
from graphdist.runtime.module.instructions import CompiledModule
from tests.strategies.local_training import (
    NESTEROV,
    Training,
    are_equal,
    assert_close,
    batches,
    by_hand,
    strategy_of,
)


@pytest.mark.long
@pytest.mark.parametrize("reduce_op", ["MEAN", "SUM"])
@pytest.mark.parametrize("replicas", [2, 4])
def test_one_local_step_of_plain_sgd_is_the_synchronous_step(replicas: int, reduce_op: str) -> None:
    data, inner = batches(5), optax.sgd(0.1)
    expected = Training(strategy_of(replicas), inner, reduce_op).run(data)
    given = Training(strategy_of(replicas, sync_every=1), inner, reduce_op).run(data)
    assert_close(given, expected)


@pytest.mark.long
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


@pytest.mark.long
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
    module = CompiledModule(text)
    total = 0.0
    for found in module_collectives(module, devices):
        inside = [name for name in module if found.name in {each.name for each in module[name]}]
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


@pytest.mark.parametrize("outer", [None, NESTEROV], ids=["mean", "diloco"])
def test_a_report_counts_the_branch_by_how_often_it_is_taken(outer: Any) -> None:
    def report(**options: Any) -> Any:
        training = Training(strategy_of(2, **options), optax.adam(0.1))
        (batch,) = training.strategy.experimental_distribute_dataset(batches(1))
        return training.step.trace(batch).lower().compile().report()

    plain, local = report(), report(sync_every=8, outer_optimizer=outer)
    assert local.collective_bytes == local.module_bytes == {"all_reduce": 4 + 32 // 8}
    assert plain.collective_bytes == plain.module_bytes == {"all_reduce": 4 + 32}
    assert "every 8 steps" in str(local)
    assert {use.every for use in local.collectives} == {1, 8}
    assert {use.times for use in local.collectives} == {1}


def test_an_estimate_counts_the_branch_by_how_often_it_is_taken() -> None:
    sent, flops = [], []
    for every in (None, 1, 4):
        training = Training(strategy_of(2, sync_every=every), optax.sgd(0.1))
        (batch,) = training.strategy.experimental_distribute_dataset(batches(1))
        graph = training.step.trace(batch).lower().graph
        matched = matched_collectives(graph, ())
        sent.append(sum(found.use(None, is_compiled=False).bytes_a_step for found in matched))
        flops.append(cost(graph).total_flops)
    assert sent == [36, 36, 4 + 32 // 4]
    assert flops[2] <= flops[1]


def gathered(gather: Callable[[Any], Any]) -> tuple[gd.Variable, Any]:
    """Return a weight and its step in local steps, with its gradient combined by `gather`."""
    strategy = strategy_of(2, sync_every=3)
    with strategy.scope():
        w = gd.Variable(jnp.zeros(3))

    def replica_fn(x: Any) -> None:
        gradient = jax.grad(lambda w: jnp.mean((x @ w - x.sum(axis=1)) ** 2))(w[...])
        w.assign_sub(0.1 * gather(gradient))

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    for batch in strategy.experimental_distribute_dataset(batches(4)):
        step(batch)
    return w, step.latest


def context() -> gd.ReplicaContext:
    return gd.get_replica_context()


MEANS_OF_GATHERS: list[Callable[[Any], Any]] = [
    lambda g: context().all_gather(g[None], axis=0).mean(0),
    lambda g: jax.lax.all_gather(g, "replica").mean(axis=0),
    lambda g: jax.lax.all_gather(g, "replica", axis=1).sum(1) / 2,
    lambda g: jax.lax.all_gather(g.astype(jnp.float16), "replica").mean(0).astype(jnp.float32),
]


def test_a_mean_of_what_is_gathered_is_a_reduction() -> None:
    expected, _ = gathered(lambda g: context().all_reduce("MEAN", g))
    for mean in MEANS_OF_GATHERS:
        w, traced = gathered(mean)
        for copy, other in zip(w.values, expected.values, strict=True):
            assert np.allclose(copy, other, rtol=1e-2)
        assert not np.array_equal(w.values[0], w.values[1])
        assert "all_gather" not in traced.lower().as_text("graph")


def test_a_step_that_gathers_and_reduces_nothing_is_told() -> None:
    with pytest.warns(gd.ReplicaWarning) as caught:
        w, _ = gathered(lambda g: jax.lax.all_gather(g, "replica").max(axis=0))
    (warning,) = caught
    assert str(warning.message).startswith("sync_every changes nothing in lambda: it reduces no")
    assert 'write all_reduce("MEAN", x) for the mean' in str(warning.message)
    assert warning.filename == __file__
    assert np.array_equal(w.values[0], w.values[1])


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
    roles = {v.name: v.role for v in graph.variables}
    assert roles["a.steps"] == StepCount(("a", "b"))
    kinds = [(v.role is None, v.is_in_copies, str(v.type.layout)) for v in graph.variables]
    assert kinds.count((True, True, "per_replica")) == 6  # a, b and two slots each
    assert (True, False, "mirrored") in kinds  # the count of Adam
    assert list(roles.values()).count(None) == len(roles) - 1


def test_other_functions_read_the_mean() -> None:
    training = Training(strategy_of(2, sync_every=3), optax.sgd(0.1))
    training.run(batches(2))
    copies = [np.asarray(value) for value in training.params["a"].values]
    mean = (copies[0] + copies[1]) / 2
    assert not are_equal(training.params["a"])

    @gd.function
    def evaluate(x: Any) -> Any:
        inside = training.strategy.run(lambda x: training.params["a"][...] + 0 * x, args=(x,))
        return training.params["a"][...], training.strategy.reduce("MEAN", inside, axis=None)

    for value in evaluate(jnp.zeros(())):
        np.testing.assert_allclose(value, mean, rtol=1e-6)
    np.testing.assert_allclose(training.params["a"], mean, rtol=1e-6)
    np.testing.assert_allclose(training.params["a"] * 2, mean * 2, rtol=1e-6)


@pytest.mark.long
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
    anchor = training.params["a"].stored.anchor
    assert (anchor is None) == (outer is None)
    if anchor is not None:
        np.testing.assert_array_equal(anchor.copy(), 2 * value)
    training.run(data[4:])
    copies = training.params["a"].values
    np.testing.assert_array_equal(copies[0], copies[1])


@pytest.mark.long
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
