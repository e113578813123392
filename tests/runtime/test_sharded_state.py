"""State that is stored in slices: its users see whole values, whatever was compiled when."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from tests.runtime.sharded_training import Training

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.01),
    "adamw, clipped": optax.chain(
        optax.clip_by_global_norm(0.05), optax.adamw(0.01, weight_decay=0.1)
    ),
    "lamb": optax.lamb(0.01),
    "rmsprop": optax.rmsprop(0.01),
    "lion": optax.lion(0.001),
    "adafactor": optax.adafactor(0.01, min_dim_size_to_factor=4),
}


SLOTS = {"sgd": 0, "momentum": 3, "rmsprop": 3, "lion": 3, "adafactor": 4}
"""How many variables are stored in slices; of Adam's kind both moments of three parameters."""
CASES = [(name, 4) for name in OPTIMIZERS] + [("adamw, clipped", 2), ("adam", 8)]


@pytest.mark.long
@pytest.mark.parametrize(("name", "replicas"), CASES)
def test_training_is_the_same_shared_out(name: str, replicas: int) -> None:
    whole, cut = (Training(OPTIMIZERS[name], replicas, shards) for shards in (False, True))
    for mine, theirs in zip(cut.batches(4), whole.batches(4), strict=True):
        np.testing.assert_allclose(cut.step(mine), whole.step(theirs), rtol=1e-4)
    for one, other in zip(cut.values(), whole.values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert not whole.sharded
    assert len(cut.sharded) == SLOTS.get(name, 6)


def adam(replicas: int = 4, shard_update: bool | str = True) -> Training:
    return Training(optax.adam(0.01), replicas, shard_update)


@pytest.mark.long
def test_a_slot_takes_a_replicas_part_of_the_memory() -> None:
    training = adam()
    (batch,) = training.batches(1)
    training.step(batch)
    slot = training.state[0].mu["first"]
    assert slot.shape == (8, 16)
    assert {shard.data.shape for shard in slot.storage.buffer.addressable_shards} == {(2, 16)}
    assert training.params["first"].storage.buffer.sharding.is_fully_replicated
    memory = training.step.trace(batch).lower().compile().memory
    whole = adam(shard_update=False)
    all_of_it = whole.step.trace(*whole.batches(1)).lower().compile().memory
    cut = 2 * 4 * (8 * 16 + 16 + 16 * 3)
    assert all_of_it.argument_bytes - memory.argument_bytes == cut * 3 // 4


@pytest.mark.long
def test_reading_printing_and_copying_see_the_whole_value() -> None:
    training, plain = adam(), adam(shard_update=False)
    for mine, theirs in zip(training.batches(2), plain.batches(2), strict=True):
        training.step(mine)
        plain.step(theirs)
    slot, same = training.state[0].mu["first"], plain.state[0].mu["first"]
    np.testing.assert_allclose(slot.read_value(), same.read_value(), rtol=1e-5)
    assert slot.read_value().sharding.is_fully_replicated
    assert [value.shape for value in slot.values] == [(8, 16)] * 4
    assert "f32[8,16] sharded(0) on cpu:0" in repr(slot)
    row = gd.viz.placement(slot).splitlines()[1].split()
    assert row[1:5] == ["[8,16]", "float32", "128", "sharded(0)"]
    twin = copy.deepcopy(slot)
    np.testing.assert_array_equal(twin.read_value(), slot.read_value())
    training.step(training.batches(1)[0])
    assert not np.array_equal(twin.read_value(), slot.read_value())


@pytest.mark.long
def test_assigning_keeps_the_slices() -> None:
    training = adam()
    (batch,) = training.batches(1)
    training.step(batch)
    slot = training.state[0].mu["first"]
    slot.assign(np.full((8, 16), 2.0, "f"))
    slot.assign_add(np.ones((8, 16), "f"))
    assert slot.storage.sharded_along == 0
    np.testing.assert_array_equal(slot.read_value(), np.full((8, 16), 3.0))
    before = slot.read_value()
    training.step(batch)
    np.testing.assert_array_equal(before, np.full((8, 16), 3.0))
    assert slot.read_value().max() < 3


@pytest.mark.long
@pytest.mark.parametrize("value", [0.0, 2.0])
def test_slots_are_set_to_a_number_by_a_function(value: float) -> None:
    training = Training(optax.adam(1e-2), 2, shard_update=True)
    (batch,) = training.batches(1)
    training.step(batch)
    slot = training.state[0].mu["first"]

    @gd.function
    def restart() -> None:
        def replica_fn() -> None:
            zeros = jax.tree.map(lambda old: jnp.full_like(old, value), gd.read(training.state))
            gd.assign(training.state, zeros)

        training.strategy.run(replica_fn)

    assert slot.storage.sharded_along is not None
    restart()
    assert slot.storage.sharded_along is not None
    for variable in jax.tree.leaves(training.state):
        np.testing.assert_array_equal(variable.read_value(), np.full(variable.shape, value))


@pytest.mark.long
def test_functions_compiled_before_and_after_see_the_same() -> None:
    training = adam()
    slot = training.state[0].mu["first"]
    total = gd.function(lambda: slot.read_value().sum())
    doubled = gd.function(lambda: slot.assign(slot * 2, read_value=False))
    assert float(total()) == 0
    doubled()
    batch, other = training.batches(1)[0], training.batches(1, rows=24)[0]
    training.step(batch)
    assert training.sharded
    assert float(total()) == pytest.approx(float(slot.read_value().sum()), rel=1e-4)
    before = np.asarray(slot.read_value())
    doubled()
    np.testing.assert_array_equal(slot.read_value(), before * 2)
    training.step(other)  # compiled for a variable that is in slices already
    for _ in range(3):
        training.step(batch)
        training.step(other)
    late = gd.function(lambda: slot.read_value().sum())
    assert float(late()) == pytest.approx(float(total()))


@pytest.mark.long
def test_a_second_step_function_takes_over_the_slices() -> None:
    training, plain = adam(), adam(shard_update=False)
    for one in (training, plain):
        again = Training.__new__(Training)
        vars(again).update(vars(one))
        freeze = gd.function(lambda x, one=one: one.step(x) * 0)
        for batch in one.batches(3):
            one.step(batch)
            freeze(batch)
    for ours, theirs in zip(training.values(), plain.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_auto_leaves_small_variables_whole() -> None:
    training = adam(shard_update="auto")
    training.step(*training.batches(1))
    assert not training.sharded
    with pytest.raises(gd.ArgumentError, match="shard_update is 'yes'"):
        adam(shard_update="yes")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:MEAN over replicas:graphdist.ReplicaWarning")  # alike on both
def test_unequal_replicas_share_out_too() -> None:
    training, plain = adam(), adam(shard_update=False)
    for rows in (16, 13, 3):
        ours, theirs = (one.step(*one.batches(1, rows)) for one in (training, plain))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    for ours, theirs in zip(training.values(), plain.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_accumulated_gradients_are_scattered_once() -> None:
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_update=True)
    with strategy.scope():
        w = gd.Variable(jnp.ones((8, 2)), name="w")

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            context = gd.get_replica_context()

            def gradient(x: Any) -> Any:
                return context.all_reduce("MEAN", jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w[...]))

            w.assign(w - 0.1 * gd.accumulate(gradient, microbatches=2)(x))

        strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((4, 8), jnp.float32, strategy=strategy)
    kinds = [one.kind for one in step.trace(spec).lower().collectives]
    assert kinds == ["reduce_scatter", "all_gather"]


LAYERS, WIDTH = 8, 256


def report_of_stacked_layers(shard_update: bool) -> Any:
    """Return the report of a step over layers in a scan, with parameters in full and momenta."""
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_update=shard_update)
    shape = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    with strategy.scope():
        w, m = gd.Variable(shape, name="w"), gd.Variable(shape, name="m")

    def loss_fn(w: jax.Array, x: jax.Array) -> jax.Array:
        @jax.checkpoint
        def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ w), None

        return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: jax.Array) -> None:
            grad = jax.grad(loss_fn)(w[...], x)
            m.assign(0.9 * m + gd.get_replica_context().all_reduce("MEAN", grad))
            w.assign(w - 0.1 * m)

        strategy.run(replica_fn, args=(x,))

    x = gd.PerReplicaSpec((4, WIDTH), jnp.float32, strategy=strategy)
    return step.trace(x).lower().compile().report()


@pytest.mark.long
def test_gradients_that_a_scan_stacks_up_are_scattered_in_it() -> None:
    report, in_full = report_of_stacked_layers(True), report_of_stacked_layers(False)
    layer = WIDTH * WIDTH * 4
    scatter, gather = report.collectives
    assert (scatter.kind, scatter.times, scatter.bytes) == ("reduce_scatter", LAYERS, layer)
    assert (gather.kind, gather.times, gather.bytes) == ("all_gather", 1, LAYERS * layer // 4)
    assert report.module_bytes["reduce_scatter"] == LAYERS * layer
    # Three quarters of the stacked gradient are never held.
    assert in_full.temp_bytes - report.temp_bytes > LAYERS * layer * 0.7


@pytest.mark.long
def test_a_file_of_a_step_takes_its_variables_in_slices(tmp_path: Path) -> None:
    training, fresh = adam(), adam()
    (batch,) = training.batches(1)
    compiled = training.step.trace(batch).lower().compile()
    gd.aot.save(tmp_path / "step.gdx", compiled)
    loaded = gd.aot.load(
        tmp_path / "step.gdx", strategy=fresh.strategy, variables=(fresh.params, fresh.state)
    )
    assert fresh.sharded
    slot = fresh.state[0].mu["first"]
    other = gd.function(lambda: slot.read_value().sum())
    for mine, theirs in zip(fresh.batches(3), training.batches(3), strict=True):
        np.testing.assert_allclose(loaded(mine), training.step(theirs), rtol=1e-5)
        other()
    for ours, theirs in zip(fresh.values(), training.values(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.long
def test_declared_by_shape_and_assigned_later() -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
    with strategy.scope():
        m = gd.Variable(jax.ShapeDtypeStruct((4,), jnp.float32), name="m")

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            m.assign(0.5 * m + gd.get_replica_context().all_reduce("SUM", x))

        strategy.run(replica_fn, args=(x,))

    x = strategy.experimental_distribute_values_from_function(lambda _: np.ones(4, "f"))
    with pytest.raises(gd.RuntimeFailure, match="declared by its shape"):
        step(x)
    m.assign(np.ones(4, "f"))
    step(x)
    assert m.storage.sharded_along == 0
    np.testing.assert_array_equal(m.read_value(), np.full(4, 2.5))


def test_nothing_is_cut_over_one_replica() -> None:
    training = adam(1)
    training.step(*training.batches(1))
    assert not training.sharded
