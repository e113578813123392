"""Trains a Keras model in several processes, and says the history and the sum of each weight."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import graphdist.keras  # before keras

# isort: split
import keras

import graphdist as gd


def train(strategy: Any) -> Any:
    """Return what `trained` does for executions of one step, of two, and of a measured number."""
    return {str(number): trained(strategy, number) for number in (1, 2, "auto")}


def trained(strategy: Any, steps_per_execution: Any) -> Any:
    """Return the losses of two epochs, those of an evaluation, predictions and weights."""
    random = np.random.default_rng(0)
    x = random.normal(size=(22, 4)).astype(np.float32)
    y = random.integers(0, 3, 22)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")]
        )
        model.compile(
            "adam",
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
            steps_per_execution=steps_per_execution,
        )
    history = model.fit(x, y, batch_size=7, epochs=2, verbose=0).history
    return {
        "loss": [float(value) for value in history["loss"]],
        "evaluated": [float(value) for value in model.evaluate(x, y, batch_size=7, verbose=0)],
        "predicted": model.predict(x, batch_size=7, verbose=0).sum(axis=0).tolist(),
        "weights": [float(np.sum(weight)) for weight in model.get_weights()],
    }


if __name__ == "__main__":
    in_slices = len(sys.argv) > 1
    print("SAYS", json.dumps(train(gd.MultiWorkerMirroredStrategy(shard_update=in_slices))))
