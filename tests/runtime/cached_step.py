"""A program that trains a step with JAX's persistent compilation cache in the folder it is told.

It prints how many of the compilations of its step the cache had, how many it had not, and losses.
"""

from __future__ import annotations

import sys
from collections import Counter

import jax
import jax.numpy as jnp

import graphdist as gd

EVENTS = {
    "/jax/compilation_cache/cache_hits": "found",
    "/jax/compilation_cache/cache_misses": "missed",
}


def main(folder: str) -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    gd.config.set_logical_cpu_devices(2)
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        weights = gd.variables([jnp.full((3, 3), float(i)) for i in range(12)])
    batch = next(iter(strategy.experimental_distribute_dataset([jnp.ones((4, 3))])))

    @gd.function
    def step(batch: jax.Array) -> jax.Array:
        def replica_fn(batch: jax.Array) -> jax.Array:
            def loss_fn(weights: list[jax.Array]) -> jax.Array:
                x = batch
                for weight in weights:
                    x = jnp.tanh(x @ weight)
                return jnp.mean(x**2)

            loss, gradients = jax.value_and_grad(loss_fn)(gd.read(weights))
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            gd.assign(weights, jax.tree.map(lambda w, g: w - g, gd.read(weights), gradients))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    seen: Counter[str] = Counter()
    jax.monitoring.register_event_listener(
        lambda event, **_: seen.update([EVENTS[event]] if event in EVENTS else [])
    )
    first = step(batch)
    found, missed = seen["found"], seen["missed"]
    print(found, missed, float(first), float(step(batch)))


if __name__ == "__main__":
    main(sys.argv[1])
