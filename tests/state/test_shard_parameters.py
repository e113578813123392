"""Variables stored in slices from their creation: what users see, and what devices hold."""

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
from graphdist.ir.analyses import collectives
from graphdist.ir.cost import executions
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.sharded_parameters import LARGEST_UNSHARDED
from tests.state.sharded_models import (
    FULL,
    ROWS,
    SHAPE,
    Model,
    bytes_on_one_device,
    cut_variable,
    initial_values,
    numbers,
    strategy_of,
)

# Options


@pytest.mark.parametrize(("given", "groups"), [(True, 1), (4, 1), (2, 2)], ids=str)
def test_each_group_of_replicas_holds_all_slices(given: bool | int, groups: int) -> None:
    strategy = strategy_of(4, shard_parameters=given)
    with strategy.scope():
        w = gd.Variable(lambda: jnp.asarray(numbers()), name="w")
    size = SHAPE[0] * groups // 4
    for replica, shard in enumerate(w.storage.held.addressable_shards):
        start = replica * size % SHAPE[0]
        np.testing.assert_array_equal(shard.data, numbers()[start : start + size])
    assert ("sharded(0) over member" in repr(w)) == (groups == 2)
    assert str(size * 128 * 4) in gd.viz.placement([w]).replace(",", "")
    twin = copy.deepcopy(w)
    w.assign(numbers(1))
    np.testing.assert_array_equal(w.read_value(), numbers(1))
    np.testing.assert_array_equal(twin, numbers())
    assert bytes_on_one_device(w) == FULL * groups // 4


@pytest.mark.parametrize(
    ("given", "stored"), [(True, 0), (4, 0), (False, None), (1, None)], ids=str
)
def test_a_group_of_all_replicas_or_of_none(given: bool | int, stored: int | None) -> None:
    with strategy_of(4, shard_parameters=given).scope():
        assert gd.Variable(numbers()).storage.sharded_along == stored


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (3, "shard_parameters is 3, which does not divide the 4 replicas"),
        (0, "shard_parameters is 0"),
        (-4, "shard_parameters is -4"),
        (8, "shard_parameters is 8"),
        ("yes", "shard_parameters is 'yes', not True, False or a number"),
        (None, "shard_parameters is None"),
        (2.0, "shard_parameters is 2.0"),
    ],
    ids=str,
)
def test_other_values_are_refused(given: Any, text: str) -> None:
    with pytest.raises(gd.ArgumentError, match=text):
        strategy_of(4, shard_parameters=given)


def test_full_updates_are_refused() -> None:
    with pytest.raises(gd.ArgumentError, match="shard_update=False"):
        strategy_of(4, shard_parameters=True, shard_update=False)
    strategy_of(4, shard_parameters=False, shard_update=False)


def test_the_name_people_look_for() -> None:
    strategy = gd.FullyShardedStrategy(["cpu:0", "cpu:1"], axis_name="data")
    assert isinstance(strategy, gd.MirroredStrategy)
    assert strategy.axis_name == "data"
    with copy.deepcopy(strategy).scope():
        assert gd.Variable(numbers()).storage.sharded_along == 0


@pytest.mark.needs("tpu")
def test_devices_that_are_not_here() -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True)
    with strategy.scope():
        w = gd.Variable(lambda: jnp.zeros(SHAPE), name="w")
    step = gd.function(lambda: w.assign(w * 2, read_value=False))
    held = step.trace().lower().graph.variables[0]
    assert (w.storage.sharded_along, held.sharded_along) == (0, 0)
    assert "f32[256,128] sharded(0)" in repr(w)


@pytest.mark.needs("tpu")
@pytest.mark.parametrize(("given", "groups"), [(True, 2), (8, 1), (2, 4)])
def test_over_slices_of_tpus_a_group_is_the_slice(given: bool | int, groups: int) -> None:
    strategy = gd.TPUStrategy(topology="v5e:2x2", num_slices=2, shard_parameters=given)
    assert strategy.devices.num_groups == groups
    with strategy.scope():
        w = gd.Variable(lambda: jnp.zeros(SHAPE), name="w")
    step = gd.function(lambda: w.assign(w * 2, read_value=False))
    compiled = step.trace().lower().compile()
    assert compiled.memory.argument_bytes == FULL * groups // 8


# Which variables


def test_small_and_other_kinds_of_variables_stay_in_full() -> None:
    with strategy_of(4, shard_parameters=True).scope():
        small = gd.Variable(jnp.zeros((4, 4)))
        on_read = gd.Variable(
            numbers(),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )
        keys = gd.Variable(jax.random.split(jax.random.key(0), 2**16))
        odd = gd.Variable(np.zeros((255, 129), "f"), name="odd")
    assert [each.storage.sharded_along for each in (small, on_read, keys, odd)] == [None] * 4
    np.testing.assert_allclose(on_read.read_value(), 4 * numbers(), rtol=1e-6)
    assert "unsharded, since no dimension divides by 4" in repr(odd)
    assert "unsharded" not in repr(small)


def test_a_variable_that_can_be_cut_nowhere() -> None:
    shape = jax.ShapeDtypeStruct((2049, 2049), jnp.float32)
    assert LARGEST_UNSHARDED < 2049**2
    with pytest.raises(gd.ArgumentError, match=r"'w' of shape \[2049, 2049\].*by 4 replicas") as at:
        cut_variable(shape)
    assert "[2052, 2049]" in at.value.hint
    with strategy_of(4).scope():
        assert gd.Variable(shape).shape == (2049, 2049)
    assert cut_variable(shape, replicas=1).storage.sharded_along is None


def test_a_stack_of_layers_is_cut_inside_the_layers() -> None:
    w = cut_variable(np.arange(8 * 64 * 128, dtype="f").reshape(8, 64, 128))
    assert w.storage.sharded_along == 1
    assert bytes_on_one_device(w) == 4 * 8 * 64 * 128 // 4
    np.testing.assert_array_equal(w, np.arange(8 * 64 * 128).reshape(8, 64, 128))


# What they are like afterwards


def test_reading_printing_and_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    w = cut_variable(numbers())
    assert repr(w) == ("<Variable 'w' f32[256,128] sharded(0) on cpu:0, cpu:1, cpu:2, cpu:3>")
    twin = copy.deepcopy(w)
    assert twin.storage.sharded_along == 0
    w.assign_add(np.ones(SHAPE, "f"))
    w.scatter_update(gd.IndexedSlices(jnp.zeros((2, 128)), jnp.array([0, 200])))
    expected = numbers() + 1
    expected[[0, 200]] = 0
    np.testing.assert_array_equal(w.read_value(), expected)
    np.testing.assert_array_equal(w[200], 0)
    assert [value.shape for value in w.values] == [SHAPE] * 4
    assert w.storage.sharded_along == 0
    monkeypatch.setattr(type(w.storage), "copy", None)  # it gives all devices the value
    np.testing.assert_array_equal(np.asarray(w), expected)
    np.testing.assert_array_equal(w.host_value(), expected)
    np.testing.assert_array_equal(np.asarray(twin, np.float64), numbers())


def test_traces_of_jax_are_refused() -> None:
    w = cut_variable(numbers())
    for use in (lambda: jnp.asarray(np.asarray(w)), lambda: w.assign(numbers())):
        with pytest.raises(gd.GraphdistError, match="inside a function that JAX is tracing"):
            jax.jit(use)()
    w.assign(numbers(1))
    np.testing.assert_array_equal(w, numbers(1))


def test_wrong_values_are_refused() -> None:
    w = cut_variable(numbers())
    with pytest.raises(gd.ArgumentError, match="has shape"):
        w.assign(numbers().T)
    with pytest.raises(gd.ArgumentError, match="has dtype float32"):
        w.assign(numbers().astype("f2"))
    w.assign(numbers(1).astype("f8"))
    np.testing.assert_array_equal(w, numbers(1))


def test_slots_are_stored_like_their_parameters() -> None:
    with strategy_of(4, shard_parameters=True).scope():
        params = gd.variables({"w": numbers(), "b": np.zeros(3, "f")})
        mine = gd.Variable(jnp.zeros_like(params["w"][...]))
        state = gd.variables(optax.adam(0.1).init(gd.read(params)))
    large = [each for each in jax.tree.leaves((params, mine, state)) if each.shape == SHAPE]
    assert [each.storage.sharded_along for each in large] == [0] * 4


OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "clipped": optax.chain(optax.clip_by_global_norm(0.05), optax.adam(0.01)),
    "every two": optax.MultiSteps(optax.adam(0.01), 2),
}
CASES = [(name, 2) for name in OPTIMIZERS] + [("momentum", 4), ("clipped", 8)]


@pytest.mark.parametrize("options", [{"shard_update": True}, {"shard_parameters": 2}], ids=str)
def test_a_variable_of_another_strategy_stays_where_it_is(options: dict[str, Any]) -> None:
    total = gd.Variable(jnp.zeros((1024, 256)))
    strategy = gd.MirroredStrategy([f"cpu:{index}" for index in range(4)], **options)
    with strategy.scope():
        w = gd.Variable(jnp.ones((1024, 256)))

    @gd.function
    def step() -> None:
        def replica_fn() -> Any:
            gradient = gd.get_replica_context().all_reduce("sum", jnp.asarray(w) * 0.5)
            w.assign_sub(gradient)
            return gradient

        total.assign_add(strategy.reduce("mean", strategy.run(replica_fn), axis=None))

    assert "another strategy stores it" in str(step.trace().lower().explain())
    step()
    np.testing.assert_array_equal(total, np.full((1024, 256), 2.0))
    assert "cpu:0>" in repr(total)


@pytest.mark.long
@pytest.mark.parametrize("name", ["momentum", "clipped", "every two"])
@pytest.mark.parametrize("group", [2, 4])
def test_training_in_groups_gives_the_same(name: str, group: int) -> None:
    cut = Model(OPTIMIZERS[name], 8, shard_parameters=group)
    full = Model(OPTIMIZERS[name], 8, shard_update=True)
    assert bytes_on_one_device(cut.params["first"]) == FULL // group
    # A group adds up before the groups do: another order of additions.
    np.testing.assert_allclose(cut.train(ROWS, ROWS), full.train(ROWS, ROWS), rtol=1e-5)
    for mine, theirs in zip(cut.values(), full.values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("name", "replicas"), CASES)
def test_training_gives_the_same(name: str, replicas: int) -> None:
    cut = Model(OPTIMIZERS[name], replicas, shard_parameters=True)
    full = Model(OPTIMIZERS[name], replicas, shard_update=True)
    assert [bytes_on_one_device(cut.params[name]) for name in ("first", "frozen", "bias")] == [
        FULL // replicas,
        FULL // replicas,
        4 * 128,
    ]
    # The norm adds up shards and the unsharded bias in one order or the other.
    tolerance = 1e-5 if name == "clipped" else 0
    np.testing.assert_allclose(cut.train(ROWS, ROWS), full.train(ROWS, ROWS), rtol=tolerance)
    for mine, theirs in zip(cut.values(), full.values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance / 10)
    for variable in cut.variables:
        assert (variable.storage.sharded_along == 0) == (variable.size >= 2**15), variable


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:MEAN over replicas:graphdist.ReplicaWarning")  # alike on both
def test_ragged_batches_and_accumulated_gradients() -> None:
    for rows, microbatches in (((16, 13, 3), 1), ((16, 16), 2)):
        cut = Model(optax.sgd(0.1), 4, microbatches, shard_parameters=True)
        full = Model(optax.sgd(0.1), 4, microbatches, shard_update=True)
        np.testing.assert_allclose(cut.train(*rows), full.train(*rows), rtol=1e-6)
        for mine, theirs in zip(cut.values(), full.values(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("gather", "times"), [("auto", 1), ("once", 1), ("each", 4)])
@pytest.mark.parametrize("of", ["value", "gradient"])
def test_microbatches_gather_once_or_each(gather: str, times: int, of: str) -> None:
    strategy = strategy_of(2, shard_parameters=True)
    with strategy.scope():
        w = gd.Variable(numbers(), name="w")

    def loss(x: Any) -> Any:
        return gd.get_replica_context().all_reduce("MEAN", jnp.mean((x @ w[...]) ** 2))

    @gd.function
    def step(x: Any) -> Any:
        accumulated = gd.accumulate(loss, 4, gather=gather)
        fn = accumulated if of == "value" else jax.grad(accumulated)
        return strategy.run(fn, args=(x,))

    with strategy.scope():
        graph = step.trace(gd.PerReplicaSpec((8, SHAPE[0]), jnp.float32)).lower().graph
    found = [count for node, count, _ in executions(graph) if node.op.name == "all_gather"]
    loops = [node for node in graph.nodes if node.op.name == "scan"]
    assert found == [times] * (len(loops) if gather == "each" else len(found))
    assert {SCAN.of(loop).gather for loop in loops} == {None if gather == "auto" else gather}
    x = numbers().T[:16]
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: x[8 * context.replica_id_in_sync_group :][:8]
    )
    whole = jax.grad(lambda x: jnp.mean((x @ numbers()) ** 2))(x) * 2
    if of == "gradient":
        both = np.concatenate(strategy.experimental_local_results(step(rows)))
        np.testing.assert_allclose(both, whole, rtol=1e-4, atol=1e-6)


def test_another_word_for_gathers_is_refused() -> None:
    with pytest.raises(gd.ArgumentError, match="gather is 'twice', not one of 'auto', 'once'"):
        gd.accumulate(lambda x: x, 2, gather="twice")
    # Outside of a function there is nothing to gather.
    assert float(gd.accumulate(jnp.sum, 2, gather="each", reduce_op="SUM")(jnp.arange(4.0))) == 6


def test_a_step_scatters_gradients_and_gathers_parameters() -> None:
    model = Model(optax.adam(0.01), 4, shard_parameters=True)
    lowered = model.step.trace(*model.batches(ROWS)).lower()
    large = [each for each in lowered.collectives if each.bytes >= FULL // 4]
    assert {each.kind for each in large} == {"all_gather", "reduce_scatter"}
    full = Model(optax.adam(0.01), 4, shard_update=False)
    memory, of_full = (
        each.step.trace(*each.batches(ROWS)).lower().compile().memory for each in (model, full)
    )
    cut = sum(4 * variable.size for variable in model.variables if variable.size >= 2**15)
    assert of_full.argument_bytes - memory.argument_bytes == cut * 3 // 4


def test_a_stack_that_is_converted_in_front_of_its_loop_is_gathered_layer_by_layer() -> None:
    strategy = strategy_of(4, shard_parameters=True)
    with strategy.scope():
        stack = gd.Variable(jnp.ones((4, 512, 512)), name="stack")

    def loss_fn(weights: Any, x: Any) -> Any:
        def layer(x: Any, weight: Any) -> Any:
            return jnp.tanh(x @ weight), None

        out, _ = jax.lax.scan(jax.checkpoint(layer), x, weights.astype(jnp.bfloat16))
        return jnp.mean(out.astype(jnp.float32) ** 2)

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            gradient = jax.grad(loss_fn)(stack[...], x)
            mean = gd.get_replica_context().all_reduce("MEAN", gradient)
            stack.assign(stack - 0.1 * mean)

        strategy.run(replica_fn, args=(x,))

    spec = gd.PerReplicaSpec((256, 512), jnp.bfloat16, strategy=strategy)
    graph = step.trace(spec).lower().graph
    gathered = [str(node.results[0].type) for node in collectives(graph) if node.op is ALL_GATHER]
    assert gathered == ["bf16[512,512] mirrored"] * 2  # forward and backward


def test_embeddings_are_changed_by_rows() -> None:
    found = []
    for options in ({"shard_parameters": True}, {}):
        strategy = strategy_of(4, **options)
        with strategy.scope():
            table = gd.Variable(numbers(), name="table", aggregation=gd.VariableAggregation.SUM)
            calls = gd.Variable(
                0.0,
                synchronization=gd.VariableSynchronization.ON_READ,
                aggregation=gd.VariableAggregation.SUM,
            )

        @gd.function
        def step(
            indices: Any, strategy: Any = strategy, table: Any = table, calls: Any = calls
        ) -> Any:
            def replica_fn(indices: Any) -> None:
                calls.assign_add(1.0)
                gradient = jax.grad(lambda found: jnp.sum(found**2))(table[...][indices])
                table.scatter_sub(gd.IndexedSlices(0.1 * gradient, indices))

            strategy.run(replica_fn, args=(indices,))

        rows = np.arange(16, dtype=np.int32) * 3
        for batch in strategy.experimental_distribute_dataset([rows, rows + 1]):
            step(batch)
        found.append(np.asarray(table))
        assert float(calls) == 8
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], numbers())


# Files


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"replicas": 4, "shard_parameters": True}, {"replicas": 2, "shard_parameters": True}),
        ({"replicas": 4, "shard_parameters": True}, {"replicas": 3}),
        ({"replicas": 2}, {"replicas": 8, "shard_parameters": True}),
        ({"replicas": 4, "shard_parameters": 2}, {"replicas": 4, "shard_parameters": True}),
        ({"replicas": 2, "shard_parameters": True}, {"replicas": 8, "shard_parameters": 4}),
    ],
    ids=["other slices", "to full", "from full", "from groups", "to groups"],
)
def test_checkpoints(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = Model(optax.adam(0.01), **before), Model(optax.adam(0.01), **after)
    old.train(12)
    gd.train.Checkpoint(params=old.params, state=old.state).save(tmp_path / "one")
    gd.train.Checkpoint(params=new.params, state=new.state).restore(tmp_path / "one-1")
    for mine, theirs in zip(
        jax.tree.leaves((new.params, new.state)),
        jax.tree.leaves((old.params, old.state)),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    is_cut = after.get("shard_parameters", False)
    assert new.params["first"].storage.sharded_along == (0 if is_cut else None)
    new.train(12 if after["replicas"] == 3 else 16)


@pytest.mark.long
@pytest.mark.parametrize("is_cut", [True, False], ids=["into slices", "into full"])
def test_saved_steps(tmp_path: Path, is_cut: bool) -> None:
    made = Model(optax.adam(0.01), 2, shard_parameters=not is_cut)
    (batch,) = made.batches(ROWS)
    gd.aot.save(tmp_path / "step.gdx", made.step.trace(batch).lower().compile())
    other = Model(optax.adam(0.01), 2, shard_parameters=is_cut)
    step = gd.aot.load(tmp_path / "step.gdx", strategy=other.strategy, variables=other.variables)
    (mine,) = other.batches(ROWS)
    for _ in range(2):
        assert float(step(mine)) == float(made.step(batch))
        np.testing.assert_allclose(other.evaluate(mine), made.evaluate(batch), rtol=1e-6)
    for mine, theirs in zip(other.values(), made.values(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.mark.long
def test_saved_steps_of_groups(tmp_path: Path) -> None:
    made = Model(optax.adam(0.01), 4, shard_parameters=2)
    (batch,) = made.batches(ROWS)
    gd.aot.save(tmp_path / "step.gdx", made.step.trace(batch).lower().compile())
    other = Model(optax.adam(0.01), 4, shard_parameters=2)
    step = gd.aot.load(tmp_path / "step.gdx", strategy=other.strategy, variables=other.variables)
    assert float(step(other.batches(ROWS)[0])) == float(made.step(batch))
    for mine, theirs in zip(other.values(), made.values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    over_all = Model(optax.adam(0.01), 4, shard_parameters=True)
    with pytest.raises(gd.ArtifactError, match=r"over 2 replicas, .* over 4") as at:
        gd.aot.load(tmp_path / "step.gdx", strategy=over_all.strategy, variables=over_all.variables)
    assert "shard_parameters=2" in at.value.hint


def test_the_values_are_as_given() -> None:
    model = Model(optax.sgd(0.1), 4, shard_parameters=True)
    for name, value in initial_values().items():
        np.testing.assert_array_equal(np.asarray(model.params[name]), value)
