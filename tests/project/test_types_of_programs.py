"""Users' programs, as mypy sees them: distributed values keep the types that they are given.

`mypy` checks this file with the rest of the project, and finds an `assert_type` that does not hold.
The tests run the same programs, so that checked programs also work. Nothing here needs a cast.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd

Batch: TypeAlias = tuple[jax.Array, jax.Array]
Params: TypeAlias = dict[str, jax.Array]
Layers: TypeAlias = dict[str, dict[str, jax.Array]]


class Moments(NamedTuple):
    """A pytree of a user's own."""

    mean: jax.Array
    number: jax.Array


@pytest.fixture
def strategy() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def test_the_program_of_the_readme(strategy: gd.Strategy) -> None:
    with strategy.scope():
        params = gd.variables({"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)})
    assert_type(params, dict[str, gd.Variable])
    rows = np.random.default_rng(0).standard_normal((8, 16, 3), np.float32)
    batches = [(x, x.sum(axis=1, keepdims=True) + 1) for x in rows]
    dataset: gd.DistributedDataset[Batch] = strategy.experimental_distribute_dataset(batches)

    @gd.function
    def train_step(batch: Batch) -> jax.Array:
        def replica_fn(batch: Batch) -> jax.Array:
            loss, grads = jax.value_and_grad(loss_fn)(gd.read(params), batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            gd.assign(params, jax.tree.map(lambda p, g: p - 0.1 * g, gd.read(params), grads))
            return loss

        losses = strategy.run(replica_fn, args=(batch,))
        assert_type(losses, jax.Array)
        return strategy.reduce("MEAN", losses, axis=None)

    for batch in dataset:
        assert_type(batch, Batch)
        loss = train_step(batch)
        assert_type(loss, jax.Array)
    assert float(loss) > 0
    (element, _) = train_step.trace(dataset.element_spec).graph.inputs[-2:]
    assert element.type.shape == (8, 3)
    assert_type(params["b"][0], jax.Array)
    assert params["b"].name == "b"


def test_a_program_with_layers_and_an_optimizer(strategy: gd.Strategy) -> None:
    optimizer = optax.adam(0.1)
    initial: Layers = {"dense": {"kernel": jnp.ones(3), "bias": jnp.zeros(())}}
    with strategy.scope():
        params = gd.variables(initial)
        state = gd.variables(optimizer.init(initial))
    assert_type(params, dict[str, dict[str, gd.Variable]])
    assert_type(gd.read(params), Layers)
    images: list[dict[str, np.ndarray]] = [{"image": np.ones((4, 3), np.float32)}]
    dataset = strategy.experimental_distribute_dataset(images)
    assert_type(dataset, gd.DistributedDataset[Any])

    def loss_of_layers(layers: Layers, batch: dict[str, jax.Array]) -> jax.Array:
        dense = layers["dense"]
        return jnp.mean(batch["image"] @ dense["kernel"] + dense["bias"])

    @gd.function(name="digits", static_argnames="scale")
    def train_step(batch: dict[str, jax.Array], scale: float = 1.0) -> jax.Array:
        def replica_fn(batch: dict[str, jax.Array]) -> jax.Array:
            loss, grads = jax.value_and_grad(loss_of_layers)(gd.read(params), batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, new = optimizer.update(grads, gd.read(state), gd.read(params))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(state, new)
            return loss * scale

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    losses = [float(train_step(batch, scale=2.0)) for batch in dataset]
    assert losses == [6.0]
    assert float(params["dense"]["bias"]) < 0


class Model:
    """A model whose method is a step."""

    def __init__(self) -> None:
        self.w = gd.Variable(2.0)

    @gd.function
    def __call__(self, x: jax.Array, scale: float = 1.0) -> jax.Array:
        return self.w * x * scale

    @gd.function(name="twice")
    def twice(self, x: jax.Array) -> tuple[jax.Array, int]:
        return self.w * x * 2, 2


def test_methods() -> None:
    model = Model()
    assert_type(model(jnp.float32(3), scale=2.0), jax.Array)
    product, count = model.twice(jnp.float32(3))
    assert_type(product, jax.Array)
    assert_type(count, int)
    assert (float(product), count) == (12.0, 2)
    assert "jax.mul" in model.twice.trace(jax.ShapeDtypeStruct((), jnp.float32)).as_text()


def test_pytrees_keep_their_class(strategy: gd.Strategy) -> None:
    def replica_fn() -> Moments:
        context = gd.get_replica_context()
        moments = Moments(jnp.ones(2), jnp.int32(1))
        assert_type(context.all_reduce("SUM", moments), Moments)
        assert_type(context.all_gather(moments.mean, axis=0), jax.Array)
        assert_type(context.merge_call(lambda strategy, x: "merged", args=(moments,)), str)
        return moments

    given = strategy.run(replica_fn)
    assert_type(given, Moments)
    assert_type(strategy.reduce("SUM", given, axis=None), Moments)
    assert_type(strategy.experimental_local_results(given), tuple[Moments, ...])
    gathered = strategy.gather(given.mean, axis=0)
    assert_type(gathered, jax.Array)
    assert gathered.shape == (4,)
    assert_type(gd.variables(given._replace(mean=jnp.ones(1), number=jnp.int32(0))), Moments)
    assert strategy.run(lambda: None) is None


def test_values_that_are_distributed(strategy: gd.Strategy) -> None:
    def value_fn(context: gd.ValueContext) -> np.float32:
        return np.float32(context.replica_id_in_sync_group)

    values = strategy.experimental_distribute_values_from_function(value_fn)
    assert_type(values, jax.Array)
    per_replica = gd.PerReplica([1.0, 2.0])
    assert_type(strategy.reduce("SUM", per_replica, axis=None), jax.Array)
    assert_type(strategy.experimental_local_results(per_replica), tuple[Any, ...])
    of_pipeline = gd.data.Dataset.from_tensor_slices(np.arange(4)).batch(2)
    elements = iter(strategy.experimental_distribute_dataset(of_pipeline))
    assert_type(elements, gd.DistributedIterator[Any])
    assert strategy.gather(next(elements), axis=0).tolist() == [0, 1]


def test_arguments_are_checked() -> None:
    @gd.function
    def scaled(x: jax.Array, factor: float) -> jax.Array:
        return x * factor

    with pytest.raises(TypeError):
        scaled(jnp.ones(2))  # type: ignore[call-arg]


def test_functions_of_functions() -> None:
    def scaled(x: jax.Array, factor: float) -> jax.Array:
        return x * factor

    given = gd.accumulate(scaled, 2, batch_argnums=0)(jnp.ones((2, 3)), 2.0)
    assert_type(given, jax.Array)
    assert given.tolist() == [[2.0, 2.0, 2.0]]
    compiled = gd.function(scaled)
    step: gd.Function = compiled
    assert_type(step(1, 2.0), Any)
