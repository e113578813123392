"""Train a small convolutional network on real handwritten digits, on several devices.

    python examples/train_digits.py              # the accelerators here, else 2 CPU devices
    python examples/train_digits.py --devices cpu --replicas 4

The data are the 1797 digits of 8 x 8 pixels that come with scikit-learn; a fifth of them is kept
for the test. The network, its loss and its optimizer are plain JAX and optax, written for one
device. What a strategy adds is in `make_train_step`: each replica works on its part of the batch,
and the gradients are averaged over the replicas before the update, so that every replica makes
the same one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any  # the optimizer's state, and settings by name

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import graphdist as gd

Params = dict[str, dict[str, jax.Array]]
Variables = dict[str, dict[str, gd.Variable]]
Batch = dict[str, jax.Array]
Rows = dict[str, np.ndarray]

CHANNELS = (1, 16, 32)
CLASSES = 10


@dataclass(frozen=True)
class Settings:
    """What a run depends on."""

    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 3e-3
    seed: int = 0


def load_data() -> tuple[Rows, Rows]:
    """Return the training and the test set: `image` f32[n, 8, 8, 1] from 0 to 1, `label` i32[n]."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = np.split(order, [len(order) // 5])
    return (
        {"image": images[train], "label": labels[train]},
        {"image": images[test], "label": labels[test]},
    )


class ShuffledBatches:
    """Whole batches of a data set, in a new order every epoch; the rows left over sit it out."""

    def __init__(self, rows: Rows, settings: Settings) -> None:
        self.rows = rows
        self.batch_size = settings.batch_size
        self.random = np.random.default_rng(settings.seed)

    def __iter__(self) -> Iterator[Rows]:
        """Yield one epoch."""
        order = self.random.permutation(len(self.rows["label"]))
        for start in range(0, len(order) - self.batch_size + 1, self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield {name: values[chosen] for name, values in self.rows.items()}


def init_params(seed: int) -> Params:
    """Return fresh parameters: two convolutions and a dense layer."""
    random = np.random.default_rng(seed)

    def layer(*shape: int) -> dict[str, jax.Array]:
        deviation = math.sqrt(2 / math.prod(shape[:-1]))  # He et al., 2015
        kernel = random.normal(0, deviation, shape)
        return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.zeros(shape[-1])}

    return {
        "conv1": layer(3, 3, *CHANNELS[:2]),
        "conv2": layer(3, 3, *CHANNELS[1:]),
        "dense": layer(4 * 4 * CHANNELS[2], CLASSES),
    }


def predict(params: Params, images: jax.Array) -> jax.Array:
    """Return the logits f32[n, 10] of images f32[n, 8, 8, 1]."""
    hidden = jax.nn.relu(convolve(params["conv1"], images, stride=1))
    hidden = jax.nn.relu(convolve(params["conv2"], hidden, stride=2))
    flat = hidden.reshape(len(hidden), -1)
    return flat @ params["dense"]["kernel"] + params["dense"]["bias"]


def convolve(layer: dict[str, jax.Array], images: jax.Array, stride: int) -> jax.Array:
    """Return a convolution of images [n, height, width, channels], padded to keep their size."""
    layout = ("NHWC", "HWIO", "NHWC")
    result = jax.lax.conv_general_dilated(
        images, layer["kernel"], (stride, stride), "SAME", dimension_numbers=layout
    )
    return result + layer["bias"]


def loss_fn(params: Params, batch: Batch) -> jax.Array:
    """Return the mean cross entropy over the batch, in nats."""
    logits = predict(params, batch["image"])
    losses: jax.Array = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return losses.mean()


def make_state(strategy: gd.Strategy, settings: Settings) -> tuple[Variables, Any]:
    """Return parameters and optimizer state as variables of the strategy."""
    initial = init_params(settings.seed)
    with strategy.scope():
        return gd.variables(initial), gd.variables(optax.adam(settings.learning_rate).init(initial))


def make_train_step(
    strategy: gd.Strategy, settings: Settings, params: Variables, optimizer_state: Any
) -> gd.Function[[Batch], jax.Array]:
    """Return the function that makes a step with a distributed batch and returns its loss."""
    optimizer = optax.adam(settings.learning_rate)

    @gd.function
    def train_step(batch: Batch) -> jax.Array:
        def replica_fn(batch: Batch) -> jax.Array:
            loss, grads = jax.value_and_grad(loss_fn)(gd.read(params), batch)
            grads = gd.get_replica_context().all_reduce("MEAN", grads)
            updates, state = optimizer.update(grads, gd.read(optimizer_state), gd.read(params))
            gd.assign(params, optax.apply_updates(gd.read(params), updates))
            gd.assign(optimizer_state, state)
            return loss

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(batch,)), axis=None)

    return train_step


def make_step(strategy: gd.Strategy, **settings: Any) -> tuple[gd.Function, tuple[Batch]]:
    """Return a training step with variables of its own, and arguments for it; see `Settings`."""
    chosen = Settings(**settings)
    rows, _ = load_data()
    dataset = strategy.experimental_distribute_dataset(ShuffledBatches(rows, chosen))
    step = make_train_step(strategy, chosen, *make_state(strategy, chosen))
    return step, (next(iter(dataset)),)


def train(strategy: gd.Strategy, settings: Settings) -> tuple[list[float], float]:
    """Train, print the progress, and return the loss of every step and the test accuracy."""
    training_rows, test_rows = load_data()
    dataset = strategy.experimental_distribute_dataset(ShuffledBatches(training_rows, settings))
    params, optimizer_state = make_state(strategy, settings)
    train_step = make_train_step(strategy, settings, params, optimizer_state)
    logits = jax.jit(predict)
    losses: list[float] = []
    accuracy = 0.0
    for epoch in range(1, settings.epochs + 1):
        # A float waits for its step, so the losses are turned into floats an epoch at a time.
        epoch_losses = [train_step(batch) for batch in dataset]
        losses += map(float, epoch_losses)
        predictions = np.argmax(logits(gd.read(params), test_rows["image"]), axis=-1)
        accuracy = float(np.mean(predictions == test_rows["label"]))
        mean = np.mean(losses[-len(epoch_losses) :])
        print(f"epoch {epoch:2}   loss {mean:.4f}   test accuracy {accuracy:.1%}", flush=True)
    return losses, accuracy


def print_collectives(strategy: gd.Strategy, settings: Settings) -> None:
    """Print what the devices say to each other in one step, and who asked for it."""
    train_step, (batch,) = make_step(strategy, **asdict(settings))
    collectives = train_step.trace(batch).lower().collectives
    print("collectives of one step:", *collectives or ["none"], sep="\n")
    print("\nThe graph it comes from: train_step.trace(batch).lower().as_text('graph')")
    print("What each pass did:      train_step.trace(batch).lower().history")


def make_strategy(devices: str, replicas: int) -> gd.Strategy:
    """Return a strategy over the accelerators of this machine, or over logical CPU devices."""
    gd.config.set_logical_cpu_devices(replicas)  # takes effect only before JAX looks at its devices
    if devices == "auto" and jax.default_backend() != "cpu":
        return gd.MirroredStrategy()
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(replicas)])


def main() -> None:
    """Train, and show the collectives of a step."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--devices", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--replicas", type=int, default=2, help="logical CPU devices (default: 2)")
    parser.add_argument("--epochs", type=int, default=Settings.epochs)
    arguments = parser.parse_args()
    most = Settings.batch_size
    if not 1 <= arguments.replicas <= most:
        parser.error(f"--replicas is {arguments.replicas}: from 1 to {most}, the rows of a batch")
    if arguments.epochs < 1:
        parser.error(f"--epochs is {arguments.epochs}: at least 1")
    strategy = make_strategy(arguments.devices, arguments.replicas)
    settings = Settings(epochs=arguments.epochs)
    print(f"{strategy.num_replicas_in_sync} replicas, {settings}")
    start = time.perf_counter()
    _, accuracy = train(strategy, settings)
    print(f"\ntest accuracy {accuracy:.1%} after {time.perf_counter() - start:.1f} s\n")
    print_collectives(strategy, settings)


if __name__ == "__main__":
    main()
