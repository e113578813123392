"""Trains a small model on batches of which the last is partial, and says losses and weights."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd

ROWS, BATCH, FEATURES = 45, 8, 5


def train(strategy: Any) -> list[Any]:
    """Return the losses of two epochs, the weights, and the rows that were seen."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    rows = {"x": x, "y": x @ np.arange(1, FEATURES + 1, dtype=np.float32), "row": np.arange(ROWS)}
    dataset = gd.data.Dataset.from_tensor_slices(rows).shuffle(ROWS, seed=3).batch(BATCH)
    with strategy.scope():
        weights = gd.Variable(np.zeros(FEATURES, np.float32))
        seen = gd.Variable(
            np.zeros(ROWS, np.int32),
            synchronization=gd.VariableSynchronization.ON_READ,
            aggregation=gd.VariableAggregation.SUM,
        )

    @gd.function
    def step(batch: Any, count: Any) -> Any:
        def replica(batch: Any) -> Any:
            def loss_of(w: Any) -> Any:
                return jnp.sum((batch["x"] @ w - batch["y"]) ** 2) / count

            loss, gradient = jax.value_and_grad(loss_of)(weights[...])
            context = gd.get_replica_context()
            weights.assign(weights[...] - 0.05 * context.all_reduce("SUM", gradient))
            marks = jnp.zeros(ROWS, jnp.int32).at[batch["row"]].add(1)
            seen.assign_add(marks)
            return context.all_reduce("SUM", loss)

        return strategy.reduce("MEAN", strategy.run(replica, args=(batch,)), axis=None)

    losses = []
    for _ in range(2):
        for place, batch in enumerate(strategy.experimental_distribute_dataset(dataset)):
            losses.append(float(step(batch, float(min(BATCH, ROWS - place * BATCH)))))
    return [losses, np.asarray(weights.read_value()).tolist(), seen.read_value().tolist()]


if __name__ == "__main__":
    print("SAYS", json.dumps(train(gd.MultiWorkerMirroredStrategy())))
