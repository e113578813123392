"""Trains for an epoch step by step, by `reduce` and by a loop in a function, and says results."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphdist as gd

ROWS, BATCH, FEATURES = 45, 4, 5


class Training:
    """Weights, and the step that trains them."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weights = gd.Variable(np.zeros(FEATURES, np.float32))

    def replica(self, batch: Any) -> Any:
        """Return the sum of the replicas' losses."""

        def loss_of(w: Any) -> Any:
            return jnp.sum((batch["x"] @ w - batch["y"]) ** 2) / BATCH

        loss, gradient = jax.value_and_grad(loss_of)(self.weights[...])
        context = gd.get_replica_context()
        self.weights.assign(self.weights[...] - 0.05 * context.all_reduce("SUM", gradient))
        return context.all_reduce("SUM", loss)

    def __call__(self, total: Any, batch: Any) -> Any:
        """Return the total of the losses after a step."""
        losses = self.strategy.run(self.replica, args=(batch,))
        return total + self.strategy.reduce("MEAN", losses, axis=None)


def dataset(strategy: Any) -> Any:
    """Return batches, the last of which has one row."""
    x = np.random.default_rng(0).normal(size=(ROWS, FEATURES)).astype(np.float32)
    rows = {"x": x, "y": x @ np.arange(1, FEATURES + 1, dtype=np.float32)}
    batches = gd.data.Dataset.from_tensor_slices(rows).batch(BATCH)
    return strategy.experimental_distribute_dataset(batches)


def one_by_one(training: Training, batches: Any, steps: int | None) -> Any:
    step = gd.function(training.__call__)
    total: Any = np.float32(0)
    for batch in batches:
        total = step(total, batch)
    return total


def by_reduce(training: Training, batches: Any, steps: int | None) -> Any:
    return batches.reduce(np.float32(0), training, steps_per_execution=steps)


def in_a_function(training: Training, batches: Any, steps: int | None) -> Any:
    @gd.function
    def train(batches: Any, total: Any) -> Any:
        for batch in batches:
            total = training(total, batch)
            if total > 150:
                break
        return total

    return train(batches, np.float32(0))


def main() -> None:
    steps = int(sys.argv[1]) or None
    strategy = gd.MultiWorkerMirroredStrategy()
    batches = dataset(strategy)
    for loop in (one_by_one, by_reduce, in_a_function):
        training = Training(strategy)
        total = loop(training, batches, steps)
        print("SAYS", json.dumps([float(total), np.asarray(training.weights[...]).tolist()]))


if __name__ == "__main__":
    main()
