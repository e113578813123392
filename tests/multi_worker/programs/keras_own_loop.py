"""Trains a Keras model in a loop of the user's own in several processes, and says what came out.

No layer draws random numbers, so that the replicas can be compared with one device.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import graphdist.keras  # before keras

# isort: split
import keras

import graphdist as gd

EPOCHS, ROWS, BATCH = 2, 24, 8


def train(strategy: Any) -> Any:
    """Return the losses and accuracies of the epochs, the loss of each step, and the weights."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 4)).astype(np.float32)
    y = random.integers(0, 3, ROWS)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, "relu", kernel_regularizer="l2"),
                graphdist.keras.SynchronizedBatchNormalization(),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.Adam(0.01, clipnorm=0.5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        optimizer = model.optimizer
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def replica_step(x: Any, y: Any) -> Any:
        def loss_fn() -> Any:
            logits = model(x, training=True)
            accuracy.update_state(y, logits)
            return model.compute_loss(x, y, logits)

        loss, grads = graphdist.keras.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply(grads, model.trainable_variables)
        return loss

    @gd.function
    def train_step(x: Any, y: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    dataset = gd.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(dataset)
    losses, accuracies = [], []
    for _ in range(EPOCHS):
        losses += [float(train_step(*batch)) for batch in distributed]
        accuracies.append(float(accuracy.result()))
        accuracy.reset_state()
    return {
        "losses": losses,
        "accuracies": accuracies,
        "predicted": np.asarray(model(x)).tolist(),
        "weights": [weight.tolist() for weight in model.get_weights()],
        "state": [np.asarray(each.value).tolist() for each in optimizer.variables],
    }


if __name__ == "__main__":
    in_slices = len(sys.argv) > 1
    print("SAYS", json.dumps(train(gd.MultiWorkerMirroredStrategy(shard_update=in_slices))))
