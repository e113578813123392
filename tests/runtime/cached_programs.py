"""A program that keeps what it compiles: it prints the compilations of each part, and a number.

The parts are named on the command line. The folder is named in the environment.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any  # Any: strategies of several kinds

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd

COMPILED = "/jax/core/compile/backend_compile_duration"  # also of a program that was found
FOUND = "/jax/compilation_cache/cache_hits"
ROWS = [np.arange(12.0, dtype=np.float32).reshape(4, 3) + i for i in range(3)]


def trained(strategy: Any) -> float:
    """Train some layers for a few steps; return the loss."""
    with strategy.scope():
        weights = gd.variables([jnp.full((3, 3), (i + 1) / 10) for i in range(12)])
    dataset = strategy.experimental_distribute_dataset(ROWS)

    def loss_fn(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    @gd.function
    def step(batch: Any) -> Any:
        def replica_fn(batch: jax.Array) -> jax.Array:
            loss, gradients = jax.value_and_grad(loss_fn)(gd.read(weights), batch)
            gradients = gd.get_replica_context().all_reduce("MEAN", gradients)
            gd.assign(weights, jax.tree.map(lambda w, g: w - g, gd.read(weights), gradients))
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    return [float(step(batch)) for batch in dataset][-1]


def sharded(strategy: Any) -> float:
    """Take a step with parameters in shards; return their sum."""
    with strategy.scope():
        weight = gd.Variable(lambda: jnp.ones((256, 64)), name="weight")

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: jax.Array) -> jax.Array:
            gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(weight.read_value())
            weight.assign_sub(gd.get_replica_context().all_reduce("MEAN", gradient))
            return gradient.sum()

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    x = strategy.experimental_distribute_values_from_function(
        lambda context: np.full((2, 256), 0.1, np.float32)
    )
    step(x)
    return float(np.asarray(weight).sum())


def looped() -> float:
    """Loop over a dataset inside a function; return the sum of its rows."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    @gd.function
    def total(dataset: Any) -> Any:
        result: Any = 0.0
        for x in dataset:
            result += strategy.reduce("SUM", strategy.run(jnp.sum, args=(x,)), axis=None)
        return result

    return float(total(strategy.experimental_distribute_dataset(ROWS)))


def eager() -> float:
    """Use values outside functions; return the sum of what they give."""
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        v = gd.Variable(jnp.arange(3.0))
        v.assign_add(jnp.ones(3))
        gradient = jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(v.read_value())
        keys = jax.random.split(jax.random.key(0), 2)
    return float(gradient.sum() + jax.random.normal(keys[0]) + v[1])


def two(**options: Any) -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"], **options)


PARTS: dict[str, Callable[[], float]] = {
    "mirrored": lambda: trained(two()),
    "one device": lambda: trained(gd.OneDeviceStrategy("cpu:0")),
    "sharded": lambda: sharded(two(shard_parameters=True)),
    "sharded on one": lambda: sharded(
        gd.MirroredStrategy(["cpu:0"], shard_parameters=True, shard_update=True)
    ),
    "looped": looped,
    "eager": eager,
    "workers": lambda: trained(gd.MultiWorkerMirroredStrategy()),
}


def main(names: list[str]) -> None:
    """Run parts and print for each the programs, those that were compiled, and its number."""
    if names != ["workers"]:
        gd.config.set_logical_cpu_devices(2)
    seen: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: seen.update([event]))
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **_: seen.update([event])
    )
    results = {}
    for name in names:
        seen.clear()
        number = PARTS[name]()
        results[name] = [seen[COMPILED], seen[COMPILED] - seen[FOUND], number]
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
