"""Steps that several tests of ahead-of-time compilation use, and what they need installed."""

from __future__ import annotations

from typing import Any  # Any: pytrees, and functions with any signature

import jax
import jax.numpy as jnp

import graphdist as gd


def make_step(
    strategy: gd.Strategy, batch: int = 4, width: int = 8, layers: int = 3, by_shape: bool = True
) -> tuple[Any, Any, Any]:
    """Return a training step, its parameters, and the shape of its batch."""
    shape = jax.ShapeDtypeStruct((width, width), jnp.float32)
    initial = [shape if by_shape else jnp.full((width, width), 0.1 * i) for i in range(layers)]
    with strategy.scope():
        params = gd.variables(initial)

    @gd.function
    def step(batch: Any, rate: float) -> Any:
        def replica_fn(batch: jax.Array) -> Any:
            def loss_fn(weights: list[jax.Array]) -> jax.Array:
                hidden = batch
                for w in weights:
                    hidden = jnp.tanh(hidden @ w + 0.5)
                return jnp.mean(hidden**2)

            loss, grads = jax.value_and_grad(loss_fn)(gd.read(params))
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            gd.assign(params, jax.tree.map(lambda w, g: w - rate * g, gd.read(params), grads))
            return loss

        per_replica = strategy.run(replica_fn, args=(batch,))
        mean = strategy.reduce("MEAN", per_replica, axis=None)
        return {"loss": mean, "each": per_replica, "note": "done"}

    return step, params, gd.PerReplicaSpec((batch, width), jnp.float32, strategy=strategy)
