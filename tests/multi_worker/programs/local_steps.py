"""Trains a small model with local steps, and says the losses and what is read on the way."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import graphdist as gd

BATCHES, ROWS, FEATURES = 8, 8, 5
OPTIONS = {
    "sync_every": 3,
    "outer_optimizer": optax.sgd(0.7, momentum=0.9, nesterov=True),
}


def train(strategy: Any) -> list[Any]:
    """Return the losses, and the weights as they are read before and after a synchronization."""
    generator = np.random.default_rng(0)
    data = [generator.normal(size=(ROWS, FEATURES)).astype(np.float32) for _ in range(BATCHES)]
    optimizer = optax.adam(0.05)
    with strategy.scope():
        weights = gd.Variable(np.zeros(FEATURES, np.float32))
        state = gd.variables(optimizer.init(jnp.zeros(FEATURES)))

    @gd.function
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            def loss_of(w: Any) -> Any:
                return jnp.mean((x @ w - x @ jnp.arange(1.0, FEATURES + 1)) ** 2)

            loss, gradient = jax.value_and_grad(loss_of)(weights[...])
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
            update, new = optimizer.update(gradient, gd.read(state))
            weights.assign(weights[...] + update)
            gd.assign(state, new)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica, args=(x,)), axis=None)

    losses, read = [], []
    for x in strategy.experimental_distribute_dataset(data):
        losses.append(float(step(x)))
        read.append(np.asarray(weights.read_value()).tolist())
    weights.assign(np.ones(FEATURES, np.float32))
    read.append(np.asarray(weights.read_value()).tolist())
    return [losses, read]


if __name__ == "__main__":
    print("SAYS", json.dumps(train(gd.MultiWorkerMirroredStrategy(**OPTIONS))))
