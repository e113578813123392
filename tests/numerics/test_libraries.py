"""Models and states of other libraries as pytrees of variables, in steps and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import jmp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import graphdist as gd

KEY = jax.random.key(0)
ROWS = jnp.ones((1, 2))


class Dense(nn.Module):
    """A flax module."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(3)(x)


class Normalized(nnx.Module):
    """An nnx module with parameters, statistics and streams of random numbers."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.dense = nnx.Linear(2, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


@jax.tree_util.register_pytree_node_class
class Converted:
    """A class that makes arrays of what it is given, but of JAX's plain objects."""

    def __init__(self, x: Any) -> None:
        self.x = x if type(x) is object else jnp.asarray(x)

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Converted:
        return cls(*children)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Checked:
    """A class that takes nothing but arrays."""

    x: Any

    def __post_init__(self) -> None:
        if not isinstance(self.x, jax.Array):
            raise TypeError("no array")

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Checked:
        return cls(*children)


def mlp() -> Any:
    return eqx.nn.MLP(2, 2, 4, 1, key=KEY)


def flax_params() -> Any:
    return Dense().init(KEY, ROWS)


train_state: Any = TrainState.create  # no annotations


def haiku_params() -> Any:
    return hk.transform(lambda x: hk.Linear(3)(x)).init(KEY, ROWS)


def loss_scale() -> jmp.DynamicLossScale:
    return jmp.DynamicLossScale(jnp.float32(8), period=2)


TREES: dict[str, Callable[[], Any]] = {
    "equinox model": mlp,
    "equinox arrays": lambda: eqx.filter(mlp(), eqx.is_array),
    "flax parameters": flax_params,
    "flax train state": lambda: train_state(
        apply_fn=Dense().apply, params=flax_params(), tx=optax.adam(0.1)
    ),
    "nnx state": lambda: nnx.split(Normalized())[1],
    "haiku parameters": haiku_params,
    "loss scale": loss_scale,
    "loss scale and parameters": lambda: [{"scale": loss_scale()}, (flax_params(), None)],
    "static loss scale": lambda: jmp.StaticLossScale(jnp.float32(8)),
    "adam": lambda: optax.adam(0.1).init(flax_params()),
    "multi steps": lambda: optax.MultiSteps(optax.adam(0.1), 2).init(flax_params()),
    "apply if finite": lambda: optax.apply_if_finite(optax.adam(0.1), 2).init(flax_params()),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adam)(0.1).init(flax_params()),
    "converted leaves": lambda: Converted([1.0, 2.0]),
}


@pytest.fixture
def strategy() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def next_value(leaf: Any) -> Any:
    """Return another value for a leaf that is a number, and any other as it is."""
    is_number = not callable(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.number)
    return leaf + 1 if is_number else leaf


def values(tree: Any) -> list[Any]:
    """Return the leaves that numpy can compare."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if next_value(leaf) is not leaf]


@pytest.mark.long
@pytest.mark.parametrize("name", TREES)
def test_there_and_back(name: str, strategy: gd.Strategy) -> None:
    tree = TREES[name]()
    with strategy.scope():
        kept: Any = gd.variables(tree)
    arrays = [leaf for leaf in jax.tree.leaves(tree) if not callable(leaf)]
    assert sum(isinstance(leaf, gd.Variable) for leaf in jax.tree.leaves(kept)) == len(arrays)
    structure: Any = jax.tree.structure(tree)
    assert jax.tree.structure(gd.read(kept)) == structure
    gd.assign(kept, gd.read(kept))

    @gd.function
    def step() -> None:
        strategy.run(lambda: gd.assign(kept, jax.tree.map(next_value, gd.read(kept))))

    step()
    for given, before in zip(values(gd.read(kept)), values(tree), strict=True):
        np.testing.assert_allclose(given, before + 1)


def test_a_model_of_variables_is_a_model_again_when_it_is_read(strategy: gd.Strategy) -> None:
    model = mlp()
    with strategy.scope():
        kept = gd.variables(model)
    assert kept.layers[0].weight.name == "layers_0_weight"
    assert kept.activation is model.activation
    x = jnp.array([1.0, -2.0])
    np.testing.assert_allclose(gd.read(kept)(x), model(x))

    @gd.function
    def step(x: jax.Array) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            loss = lambda model: jnp.mean(model(x) ** 2)  # noqa: E731
            value, grads = eqx.filter_value_and_grad(loss)(gd.read(kept))
            all_reduce = gd.get_replica_context().all_reduce
            grads = jax.tree.map(lambda g: all_reduce("MEAN", g), grads)
            updates = jax.tree.map(lambda g: -0.1 * g, grads)
            gd.assign(kept, eqx.apply_updates(gd.read(kept), updates))
            return value

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    losses = [float(step(x)) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[2] < losses[0]


def test_a_function_among_the_leaves_does_not_change(strategy: gd.Strategy) -> None:
    with strategy.scope():
        kept: Any = gd.variables({"f": jnp.sin, "w": jnp.ones(2)})
    before = kept["w"].read_value()
    with pytest.raises(gd.ArgumentTypeError, match=r"^gd.assign to leaf \['f'\] of type"):
        gd.assign(kept, {"f": jnp.cos, "w": jnp.zeros(2)})
    np.testing.assert_array_equal(kept["w"].read_value(), before)


def test_a_class_that_checks_its_leaves_goes_through_run_and_functions(
    strategy: gd.Strategy,
) -> None:
    with strategy.scope():
        kept = gd.variables(loss_scale())

    def adjust(scale: Any) -> Any:
        new = gd.read(kept).adjust(jnp.bool_(True))
        gd.assign(kept, new)
        return [new, scale]

    @gd.function
    def step(scale: Any) -> Any:
        return strategy.run(adjust, args=(scale,))

    new, given = step(loss_scale())
    assert isinstance(new, jmp.DynamicLossScale)
    parts = strategy.experimental_local_results(new)
    assert [float(part.loss_scale) for part in parts] == [8, 8]
    assert [int(part.counter) for part in parts] == [1, 1]
    again, _ = step(given)
    assert [float(one.loss_scale) for one in strategy.experimental_local_results(again)] == [16, 16]
    assert float(strategy.reduce("SUM", again, axis=None).loss_scale) == 32
    assert int(kept.counter) == 0


def test_classes_of_replicas_that_are_not_alike(strategy: gd.Strategy) -> None:
    (rows,) = strategy.experimental_distribute_dataset([np.arange(3, dtype=np.float32)])

    def replica_fn(x: jax.Array) -> Any:
        context = gd.get_replica_context()
        scale = jmp.DynamicLossScale(x.sum() + 1)
        return context.merge_call(lambda strategy, scale: scale, args=(scale,))

    scales = strategy.experimental_local_results(strategy.run(replica_fn, args=(rows,)))
    assert [float(scale.loss_scale) for scale in scales] == [2, 3]


def test_values_made_by_a_function(strategy: gd.Strategy) -> None:
    made: Any = strategy.experimental_distribute_values_from_function(
        lambda context: Converted(np.float32(context.replica_id_in_sync_group))
    )
    assert [float(one.x) for one in strategy.experimental_local_results(made)] == [0, 1]
