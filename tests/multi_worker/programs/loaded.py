"""Loads a step from a file on every worker, and runs it: worker 1 as it is told."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd

ROWS, FEATURES, STEPS = 4, 8, 3


def make(strategy: Any, *, by_shape: bool = False) -> tuple[Any, list[Any]]:
    """Return a step with momentum, and its variables."""
    shape = jax.ShapeDtypeStruct((FEATURES, FEATURES), jnp.float32)
    with strategy.scope():
        w = gd.Variable(shape if by_shape else jnp.full(shape.shape, 0.1), name="w")
        m = gd.Variable(shape if by_shape else jnp.zeros(shape.shape), name="m")

    @gd.function
    def step(batch: Any, rate: float) -> Any:
        def replica_fn(x: jax.Array) -> Any:
            loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w[...])
            m.assign(0.9 * m + gd.get_replica_context().all_reduce("MEAN", grad))
            w.assign(w - rate * m)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    return step, [w, m]


def run(strategy: Any, step: Any, rate: float = 0.1) -> list[float]:
    """Return the losses of some steps over the same rows, whatever the number of workers."""
    rows = np.arange(strategy.num_replicas_in_sync * ROWS * FEATURES, dtype=np.float32)
    data = [rows.reshape(-1, FEATURES) / rows.size] * STEPS
    return [float(step(batch, rate)) for batch in strategy.experimental_distribute_dataset(data)]


if __name__ == "__main__":
    doing, path, *others = sys.argv[1:]
    strategy = gd.MultiWorkerMirroredStrategy(shard_update=doing == "sliced")
    is_second = jax.process_index() == 1
    if doing == "differ" and is_second:
        (path,) = others
    _, variables = make(strategy)
    loaded = gd.aot.load(path, strategy=strategy, variables=variables, native=doing == "native")
    if doing == "die" and is_second:
        run(strategy, loaded)
        os._exit(7)
    losses = run(strategy, loaded, rate=0.2 if doing == "rates" and is_second else 0.1)
    if doing == "die":
        losses += run(strategy, loaded)
    print("SAYS", json.dumps([losses, np.asarray(variables[0].read_value()).tolist()]))
