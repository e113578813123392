"""Train a Keras model on real handwritten digits, on several devices.

    python examples/train_keras.py              # the accelerators here, else 2 CPU devices
    python examples/train_keras.py --devices cpu --replicas 4

The data and the network are those of `train_digits.py`. The only lines that Keras on one device
does not have are the import of `graphdist.keras` and the strategy's scope.
"""

from __future__ import annotations

import argparse
import time

import graphdist.keras  # before keras: it chooses the JAX backend

# isort: split
import keras
from train_digits import CHANNELS, CLASSES, Settings, load_data, make_strategy

import graphdist as gd


def make_model(settings: Settings) -> keras.Model:
    """Return a compiled network of two convolutions and a dense layer."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, CHANNELS[0])),
            layers.Conv2D(CHANNELS[1], 3, padding="same", activation="relu"),
            layers.Conv2D(CHANNELS[2], 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(settings.learning_rate), loss, metrics=["accuracy"])
    return model


def train(strategy: gd.Strategy, settings: Settings) -> tuple[list[float], float]:
    """Train, and return the loss of every epoch and the test accuracy."""
    training_rows, test_rows = load_data()
    keras.utils.set_random_seed(settings.seed)
    with strategy.scope():
        model = make_model(settings)
    history = model.fit(
        training_rows["image"],
        training_rows["label"],
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        validation_data=(test_rows["image"], test_rows["label"]),
        verbose=2,
    )
    _, accuracy = model.evaluate(test_rows["image"], test_rows["label"], verbose=0)
    return history.history["loss"], accuracy


def main() -> None:
    """Train, and print the accuracy."""
    parser = argparse.ArgumentParser(description="Train a Keras model on handwritten digits.")
    parser.add_argument("--devices", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--replicas", type=int, default=2, help="logical CPU devices (default: 2)")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    most = Settings.batch_size
    if not 1 <= arguments.replicas <= most:
        parser.error(f"--replicas is {arguments.replicas}: from 1 to {most}, the rows of a batch")
    if arguments.epochs < 1:
        parser.error(f"--epochs is {arguments.epochs}: at least 1")
    strategy = make_strategy(arguments.devices, arguments.replicas)
    start = time.perf_counter()
    _, accuracy = train(strategy, Settings(epochs=arguments.epochs))
    seconds = time.perf_counter() - start
    replicas = strategy.num_replicas_in_sync
    print(f"\ntest accuracy {accuracy:.1%} after {seconds:.1f} s on {replicas} replicas")


if __name__ == "__main__":
    main()
