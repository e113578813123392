"""Layers of libraries that meet over the name of an axis: the numbers of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: parameters and layers of the libraries are untyped pytrees

import equinox as eqx
import flax.linen
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import nnx

import graphdist as gd

R = "replica"
N = 4
FEATURES = 3
ROWS = np.random.default_rng(0).normal(2.0, 3.0, (2 * N, FEATURES)).astype(np.float32)
SCALE = np.array([0.5, 1.0, 2.0], np.float32)
EPSILON, MOMENTUM = 1e-5, 0.9


def linen(scale: Any, x: Any, axis: Any) -> tuple[Any, Any]:
    layer = flax.linen.BatchNorm(
        use_running_average=False, axis_name=axis, momentum=MOMENTUM, epsilon=EPSILON
    )
    state = {"mean": jnp.zeros(FEATURES), "var": jnp.ones(FEATURES)}
    params = {"scale": scale, "bias": jnp.zeros(FEATURES)}
    y, changed = layer.apply({"params": params, "batch_stats": state}, x, mutable=["batch_stats"])
    return y, (changed["batch_stats"]["mean"], changed["batch_stats"]["var"])


def flax_nnx(scale: Any, x: Any, axis: Any) -> tuple[Any, Any]:
    layer: Any = nnx.BatchNorm(
        FEATURES, axis_name=axis, momentum=MOMENTUM, epsilon=EPSILON, rngs=nnx.Rngs(0)
    )
    layer.scale[...] = scale
    y = layer(x, use_running_average=False)
    return y, (layer.mean[...], layer.var[...])


def dm_haiku(scale: Any, x: Any, axis: Any) -> tuple[Any, Any]:
    def apply(x: Any) -> Any:
        layer = haiku.BatchNorm(
            False, False, decay_rate=MOMENTUM, eps=EPSILON, cross_replica_axis=axis
        )
        return layer(x, is_training=True, scale=scale, offset=jnp.zeros(FEATURES))

    layer: Any = haiku.without_apply_rng(haiku.transform_with_state(apply))
    params, state = jax.eval_shape(layer.init, jax.random.key(0), x)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), state)
    y, changed = layer.apply(jax.tree.map(jnp.zeros_like, params), zeros, x)
    averages = [changed[f"batch_norm/~/{name}_ema"]["average"] for name in ("mean", "var")]
    return y, tuple(averages)


def equinox(scale: Any, x: Any, axis: Any) -> tuple[Any, Any]:
    names = ("batch",) if axis is None else (axis, "batch")
    layer, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(
        FEATURES, axis_name=names, momentum=MOMENTUM, eps=EPSILON, mode="batch"
    )
    layer = eqx.tree_at(lambda layer: layer.weight, layer, scale)
    mapped = jax.vmap(layer, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    y, changed = mapped(x, state)
    return y, jax.tree.leaves(eqx.filter(changed, eqx.is_inexact_array))


LAYERS = {"linen": linen, "nnx": flax_nnx, "haiku": dm_haiku, "equinox": equinox}
Layer = Callable[[Any, Any, Any], tuple[Any, Any]]


def _trained(layer: Layer, scale: Any, x: Any, axis: Any) -> Any:
    """Return outputs, statistics and the gradient of a loss that outputs enter unevenly."""

    def loss(scale: Any) -> Any:
        y, statistics = layer(scale, x, axis)
        value = jnp.mean(jnp.sin(y))
        return value if axis is None else jax.lax.pmean(value, axis), (y, statistics)

    gradient, (y, statistics) = jax.grad(loss, has_aux=True)(scale)
    return y, statistics, gradient if axis is None else jax.lax.pmean(gradient, axis)


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(N)])


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
def test_batch_norm_over_replicas_is_that_of_the_whole_batch(
    strategy: gd.MirroredStrategy, name: str
) -> None:
    layer: Layer = LAYERS[name]
    x = next(iter(strategy.experimental_distribute_dataset([ROWS])))

    @gd.function
    def step(scale: Any, x: Any) -> Any:
        trained = strategy.run(lambda s, x: _trained(layer, s, x, R), args=(scale, x))
        y, statistics, gradient = trained
        of_replicas = strategy.experimental_local_results((statistics, gradient))
        return strategy.gather(y, axis=0), of_replicas

    y, of_replicas = step(jnp.asarray(SCALE), x)
    whole, *expected = jax.jit(lambda s, x: _trained(layer, s, x, None))(SCALE, ROWS)
    np.testing.assert_allclose(y, whole, 1e-4, 1e-5)
    for found in of_replicas:
        assert len(jax.tree.leaves(found)) >= 3
        jax.tree.map(
            lambda one, other: np.testing.assert_allclose(one, other, 1e-4, 1e-5),
            jax.tree.leaves(found),
            jax.tree.leaves(tuple(expected)),
        )


def test_an_optimizer_that_averages_over_the_axis(strategy: gd.MirroredStrategy) -> None:
    """`optax.contrib.sam` takes the mean of its adversarial gradients over the axis."""

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean((x @ w - 1) ** 4)

    def step(w: Any, x: Any, axis: Any) -> Any:
        optimizer = optax.contrib.sam(
            optax.sgd(0.01),
            optax.chain(optax.contrib.normalize(), optax.sgd(0.05)),
            opaque_mode=True,
            batch_axis_name=axis,
        )
        gradient = jax.grad(loss)(w, x)
        gradient = gradient if axis is None else jax.lax.pmean(gradient, axis)
        updates, _ = optimizer.update(
            gradient, optimizer.init(w), w, grad_fn=lambda p, _: jax.grad(loss)(p, x)
        )
        return optax.apply_updates(w, updates)

    x = next(iter(strategy.experimental_distribute_dataset([ROWS])))
    w = jnp.full(FEATURES, 0.1)
    moved = gd.function(lambda w, x: strategy.run(lambda w, x: step(w, x, R), args=(w, x)))(w, x)
    expected = jax.jit(lambda w: step(w, ROWS, None))(w)
    assert not np.allclose(expected, w)
    for found in moved.values:
        np.testing.assert_allclose(found, expected, 1e-5)
