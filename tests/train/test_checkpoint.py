"""What is saved of objects and put back, and what is said of what does not fit."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.runtime.files.checkpoint_index import sealed
from graphdist.train.entries import entries_of


class State(NamedTuple):
    count: Any
    moments: dict[str, Any]


def zeros_like(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: gd.Variable(jnp.zeros(leaf.shape, leaf.dtype)), tree)


def on_read(value: float, aggregation: gd.VariableAggregation) -> gd.Variable:
    return gd.Variable(
        value, synchronization=gd.VariableSynchronization.ON_READ, aggregation=aggregation
    )


def test_pytrees_of_variables(prefix: str, pair: gd.Strategy) -> None:
    tree = {"dense": [jnp.arange(6.0).reshape(2, 3), jnp.ones(3)], "empty": jnp.zeros((0, 2))}
    with pair.scope():
        params = gd.variables(tree)
        others = zeros_like(tree)
    path = gd.train.Checkpoint(params=params).save(prefix)
    gd.train.Checkpoint(params=others).restore(path).assert_consumed()
    jax.tree.map(np.testing.assert_array_equal, gd.read(others), tree)
    assert path == prefix + "-1"


@pytest.mark.parametrize(
    "dtype",
    [
        *(np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
    ],
)
def test_arrays_of_every_dtype(prefix: str, dtype: Any) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    checkpoint = gd.train.Checkpoint(array=array, turned=array.T, number=array[0, 1])
    path = checkpoint.save(prefix)
    checkpoint.array = np.zeros_like(array)
    checkpoint.restore(path).assert_consumed()
    np.testing.assert_array_equal(checkpoint.array, array)
    np.testing.assert_array_equal(checkpoint.turned, array.T)
    assert checkpoint.array.dtype == array.dtype
    assert type(checkpoint.number) is type(array[0, 1])


def test_what_cannot_be_written_to_is_replaced(prefix: str) -> None:
    w = gd.Variable([1.0], name="w")
    state = State(jnp.int32(3), {"w": w})
    checkpoint = gd.train.Checkpoint(state=state, step=7, rate=0.1, name="run", done=True)
    path = checkpoint.save(prefix)
    checkpoint.state = State(jnp.int32(0), {"w": w})
    checkpoint.step, checkpoint.rate, checkpoint.name, checkpoint.done = 0, 1.0, "", False
    w.assign([5.0])
    checkpoint.restore(path).assert_consumed()
    assert (checkpoint.step, checkpoint.rate, checkpoint.name) == (7, 0.1, "run")
    assert checkpoint.done is True
    assert isinstance(checkpoint.state, State)
    assert int(checkpoint.state.count) == 3
    assert checkpoint.state.moments["w"] is w
    assert float(w[0]) == 1.0


def test_the_state_of_an_optimizer(prefix: str) -> None:
    params = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    optimizer = optax.adam(0.1)
    state = optimizer.init(params)
    _, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params)
    path = gd.train.Checkpoint(state=state).save(prefix)
    checkpoint = gd.train.Checkpoint(state=optimizer.init(params))
    checkpoint.restore(path).assert_consumed()
    structures: list[Any] = [jax.tree.structure(one) for one in (checkpoint.state, state)]
    assert structures[0] == structures[1]
    jax.tree.map(np.testing.assert_array_equal, checkpoint.state, state)


@pytest.mark.long
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_keys_and_generators(prefix: str, pair: gd.Strategy, implementation: str) -> None:
    key = jax.random.key(3, impl=implementation)
    with pair.scope():
        generator = gd.random.Generator(key)
        variable = gd.Variable(jax.random.key(4, impl=implementation))
    generator.uniform((2,))
    checkpoint = gd.train.Checkpoint(key=key, generator=generator, variable=variable)
    path = checkpoint.save(prefix)
    expected = [float(x) for x in generator.uniform((3,))]
    checkpoint.key = jax.random.key(0, impl=implementation)
    variable.assign(jax.random.key(0, impl=implementation))
    checkpoint.restore(path).assert_consumed()
    assert [float(x) for x in generator.uniform((3,))] == expected
    assert bool(checkpoint.key == key)
    assert bool(variable.read_value() == jax.random.key(4, impl=implementation))


@pytest.mark.long
def test_metrics_on_another_number_of_replicas(prefix: str, pair: gd.Strategy) -> None:
    with pair.scope():
        mean = gd.metrics.Mean()
    mean.update_state([1.0, 3.0, 8.0])
    path = gd.train.Checkpoint(mean=mean).save(prefix)
    for strategy in (gd.MirroredStrategy([f"cpu:{i}" for i in range(4)]), gd.get_strategy()):
        with gd.MirroredStrategy(["cpu:0"]).scope() if strategy.is_default else strategy.scope():
            restored = gd.metrics.Mean()
        gd.train.Checkpoint(mean=restored).restore(path).assert_consumed()
        assert float(restored.result()) == 4.0
        restored.update_state(8.0)
        assert float(restored.result()) == 5.0


def test_state_stored_in_slices_is_saved_whole(prefix: str) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)
    optimizer = optax.adam(0.1)
    with strategy.scope():
        params = gd.variables({"w": jnp.linspace(-1, 1, 8)})
        state = gd.variables(optimizer.init(gd.read(params)))

    @gd.function
    def step(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            grads = jax.grad(lambda p: jnp.sum((x @ p["w"]) ** 2))(gd.read(params))
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, after = optimizer.update(grads, gd.read(state))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(state, after)

        strategy.run(replica_fn, args=(x,))

    (x,) = strategy.experimental_distribute_dataset([np.arange(32.0, dtype="f").reshape(4, 8)])
    step(x)
    checkpoint = gd.train.Checkpoint(params=params, state=state)
    cut = [one for one in jax.tree.leaves(state) if one.storage.sharded_along == 0]
    assert cut
    path = checkpoint.save(prefix)
    after = jax.tree.map(np.asarray, gd.read((params, state)))
    moment = gd.train.load_variable(path, "state/0/mu/w")
    np.testing.assert_array_equal(moment, after[1][0].mu["w"])
    step(x)
    expected = jax.tree.map(np.asarray, gd.read((params, state)))
    checkpoint.restore(path).assert_consumed()
    assert all(one.storage.sharded_along == 0 for one in cut)
    jax.tree.map(np.testing.assert_array_equal, gd.read((params, state)), after)
    step(x)
    jax.tree.map(np.testing.assert_array_equal, gd.read((params, state)), expected)

    plain = zeros_like(gd.read((params, state)))  # no strategy
    gd.train.Checkpoint(params=plain[0], state=plain[1]).restore(path).assert_consumed()
    jax.tree.map(np.testing.assert_array_equal, gd.read(plain), after)


def test_a_step_does_not_change_what_is_being_saved(prefix: str, pair: gd.Strategy) -> None:
    with pair.scope():
        w = gd.Variable(jnp.zeros(1 << 20))

    @gd.function
    def step() -> None:
        w.assign_add(jnp.ones(1 << 20))

    checkpoint = gd.train.Checkpoint(w=w)
    for number in range(4):
        path = checkpoint.write(f"{prefix}{number}")
        step()  # donates the buffer that was saved
        assert float(gd.train.load_variable(path, "w").max()) == number


def test_attributes_of_an_object(prefix: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.layers: list[Any] = [gd.Variable(1.0), {"b": gd.Variable(2.0)}]
            self.loss = gd.metrics.Mean()
            self.itself = self
            self.width = 3
            self.activation = jax.nn.relu

        def __call__(self) -> None: ...

    model = Model()
    names = entries_of(gd.train.Checkpoint(model=model)).by_name
    assert list(names) == [
        *("model/layers/0", "model/layers/1/b"),
        *("model/loss/total", "model/loss/count"),
    ]
    path = gd.train.Checkpoint(model=model).save(prefix)
    model.layers[0].assign(5.0)
    gd.train.Checkpoint(model=model).restore(path).assert_consumed()
    assert float(model.layers[0]) == 1.0


def test_a_variable_found_twice_is_saved_once(prefix: str) -> None:
    w = gd.Variable([1.0, 2.0])
    path = gd.train.Checkpoint(model={"w": w}, ema={"w": w}).save(prefix)
    assert gd.train.list_variables(path) == [("model/w", [2])]
    first, second = gd.Variable([0.0, 0.0]), gd.Variable([0.0, 0.0])
    gd.train.Checkpoint(ema={"w": first}).restore(path).assert_consumed()
    gd.train.Checkpoint(model={"w": first}, ema={"w": second}).restore(path).assert_consumed()
    assert first.read_value().tolist() == second.read_value().tolist() == [1.0, 2.0]


def test_checkpoints_in_checkpoints(prefix: str) -> None:
    inner = gd.train.Checkpoint(step=3)
    path = gd.train.Checkpoint(inner=inner, w=gd.Variable(1.0)).save(prefix)
    inner.step = 0
    gd.train.Checkpoint(inner=inner, w=gd.Variable(1.0)).restore(path).assert_consumed()
    assert inner.step == 3


def test_numbers_of_saves(prefix: str) -> None:
    checkpoint = gd.train.Checkpoint(step=1)
    paths = [checkpoint.save(prefix) for _ in range(3)]
    assert paths == [f"{prefix}-{number}" for number in (1, 2, 3)]
    checkpoint.write(prefix + "-written")
    fresh = gd.train.Checkpoint(step=0)
    fresh.read(paths[1])
    assert fresh.save_counter == 0
    fresh.restore(paths[1])
    assert fresh.save_counter == 2
    assert fresh.save(prefix) == paths[2]
    assert gd.train.latest_checkpoint(str(Path(prefix).parent)) == paths[2]


def test_missing_extra_and_mismatched_entries_by_name(prefix: str) -> None:
    path = gd.train.Checkpoint(a=gd.Variable([1.0]), b=2, c=gd.Variable(1)).save(prefix)
    a, other = gd.Variable([0.0]), gd.Variable(0.0)
    status = gd.train.Checkpoint(a=a, d=other).restore(path)
    assert float(a[0]) == 1.0
    with pytest.raises(gd.UnmatchedError) as caught:
        status.assert_consumed()
    lines = str(caught.value).splitlines()
    assert [line.strip() for line in lines if "not saved: " in line] == ["not saved: d"]
    assert [line.strip() for line in lines if "not restored: " in line] == [
        "not restored: b",
        "not restored: c",
    ]
    with pytest.raises(AssertionError, match="1 not saved"):
        status.assert_existing_objects_matched()
    status.assert_nontrivial_match().expect_partial()
    with pytest.raises(AssertionError, match="1 not saved, 3 not restored"):
        gd.train.Checkpoint(q=1).restore(path).assert_nontrivial_match()

    matching = gd.Variable([0.0])
    with pytest.raises(ValueError, match=r"'c' is float32\[2\], saved was int32\[\]"):
        gd.train.Checkpoint(a=matching, c=gd.Variable([1.0, 2.0])).restore(path)
    assert float(matching[0]) == 0.0, "nothing is restored of a checkpoint that does not fit"
    with pytest.raises(ValueError, match="'b' is of type str, saved was 2"):
        gd.train.Checkpoint(b="two").restore(path)
    with pytest.raises(ValueError, match=r"'b' is float32\[\], saved was 2"):
        gd.train.Checkpoint(b=gd.Variable(1.0)).restore(path)


def test_what_is_left_over_is_logged(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    path = gd.train.Checkpoint(a=1, b=2).save(prefix)
    with caplog.at_level(logging.WARNING, "graphdist"):
        checkpoint = gd.train.Checkpoint(a=0)
        checkpoint.restore(path).expect_partial()
        checkpoint.restore(path)
        assert prefix not in caplog.text
        checkpoint.restore(path)  # gives the one before it up
    assert f"{path}: not restored, since no object has them: b" in caplog.text


def test_no_checkpoint(prefix: str) -> None:
    checkpoint = gd.train.Checkpoint(a=1)
    checkpoint.restore(None).assert_consumed()
    with pytest.raises(gd.CheckpointError, match="there is no checkpoint"):
        checkpoint.restore(prefix + "-1")
    assert gd.train.latest_checkpoint(str(Path(prefix).parent)) is None


def test_an_on_read_variable_without_aggregation(prefix: str, pair: gd.Strategy) -> None:
    with pair.scope():
        local = on_read(1.0, gd.VariableAggregation.NONE)
    with pytest.raises(ValueError, match="aggregation NONE"):
        gd.train.Checkpoint(local=local).save(prefix)


def test_inside_a_scope_and_inside_a_function(prefix: str, pair: gd.Strategy) -> None:
    with pair.scope():
        w = gd.Variable(1.0)
    plain = gd.Variable(2.0)
    checkpoint = gd.train.Checkpoint(w=w, plain=plain)
    with gd.OneDeviceStrategy("cpu:0").scope():
        path = checkpoint.save(prefix)
        checkpoint.restore(path).assert_consumed()

    @gd.function
    def step() -> None:
        checkpoint.save(prefix)

    with pytest.raises(gd.ContextError, match="saved inside a function"):
        step()


def test_damaged_checkpoints(prefix: str) -> None:
    checkpoint = gd.train.Checkpoint(w=np.arange(1000.0), v=np.ones(2))
    path = checkpoint.save(prefix)
    checkpoint.sync()
    data = max(Path(path).rglob("0"), key=lambda file: file.stat().st_size * file.is_file())
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(gd.CheckpointError, match="cannot be read"):
        checkpoint.restore(path)
    index = Path(path, "index.json")
    index.write_bytes(sealed({**json.loads(index.read_text()), "format": 99}))
    with pytest.raises(gd.CheckpointError, match="format 99"):
        checkpoint.restore(path)
    index.write_text("{")
    with pytest.raises(gd.CheckpointError, match="cannot be read"):
        checkpoint.restore(path)


def test_saving_in_place_of_another(prefix: str) -> None:
    checkpoint = gd.train.Checkpoint(w=np.zeros(3), step=1)
    checkpoint.write(prefix)
    checkpoint.w, checkpoint.step = np.ones(4), 2
    checkpoint.write(prefix)
    checkpoint.step = 0
    checkpoint.restore(prefix).assert_consumed()
    assert checkpoint.step == 2
    assert [entry.name for entry in Path(prefix).parent.iterdir()] == ["ckpt"]
