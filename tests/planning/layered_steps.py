"""A step of layers, scanned or written out, of which the backward pass recomputes everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

import graphdist as gd

LAYERS = 6


def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
    up, down = weights
    hidden = checkpoint_name(jnp.tanh(checkpoint_name(x @ up, "inner")), "hidden")
    return x + hidden @ down.T, None


def run_scanned(layer: Any, x: jax.Array, weights: Any) -> jax.Array:
    return jax.lax.scan(layer, x, tuple(weights))[0]


def run_written_out(layer: Any, x: jax.Array, weights: Any) -> jax.Array:
    for i in range(LAYERS):
        x, _ = layer(x, [each[i] for each in weights])
    return x


def make_step(
    strategy: gd.Strategy,
    width: int = 8,
    rows: int = 4,
    wrapper: Callable[[Any], Any] = jax.checkpoint,
    run: Callable[[Any, jax.Array, Any], jax.Array] = run_scanned,
    **options: Any,
) -> tuple[gd.Function[..., Any], gd.PerReplicaSpec, Any]:
    """Return a step with these options of `gd.function`, the spec of its batch, its variables."""
    numbers = jax.random.key(0)
    shape = (LAYERS, width, 4 * width)
    is_here = strategy.devices.topology is None
    with strategy.scope():
        weights: Any = gd.variables(
            [
                jax.random.normal(jax.random.fold_in(numbers, i), shape) * 0.1
                if is_here
                else jax.ShapeDtypeStruct(shape, jnp.float32)
                for i in range(2)
            ]
        )

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        return jnp.mean(run(wrapper(layer), x, weights) ** 2)

    @gd.function(**options)  # type: ignore[untyped-decorator]  # options of any kind
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            old = gd.read(weights)
            value, grads = jax.value_and_grad(loss)(old, x)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            for variable, before, grad in zip(weights, old, grads, strict=True):
                variable.assign(before - 0.1 * grad)
            return gd.get_replica_context().all_reduce("MEAN", value)

        return strategy.run(replica_fn, args=(x,))

    return step, gd.PerReplicaSpec((rows, width), jnp.float32), weights
