"""Measure Keras's `fit` under a strategy, against Keras's own `DataParallel`, on the same devices.

    python -m graphdist.tools.bench keras            # or the names of some models

Six models are trained on random data, each with several settings of `steps_per_execution`. In each
round every system trains for one epoch with every setting, so that load on the machine affects all
alike. Compared are the medians over the rounds of the time per step. A step includes what `fit`
does for it: slicing rows out of the arrays, placing them on the devices, and calling the compiled
step. Keras on JAX has no "auto": there `DataParallel` runs single steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple  # Any: models of Keras, which has no types

import numpy as np

import graphdist as gd
import graphdist.keras  # before keras: it chooses the JAX backend
from graphdist.tools.console import CommandParser, console_tool

# isort: split
import keras
from keras import layers

from graphdist.config import choose_cpu_threads

BATCH = 64
_THREADS_PER_DEVICE = 4
WORDS, LENGTH = 200, 16


class Problem(NamedTuple):
    """A model, its loss and its data."""

    model: Any
    loss: Any
    x: Any
    y: Any


def _numbers(rows: int, *shape: int) -> Any:
    return np.random.default_rng(0).normal(size=(rows, *shape)).astype(np.float32)


def _tokens(rows: int) -> Any:
    return np.random.default_rng(0).integers(0, WORDS, (rows, LENGTH))


def _dense(rows: int) -> Problem:
    hidden = [layers.Dense(128, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((32,)), *hidden, layers.Dense(1)])
    return Problem(model, "mse", _numbers(rows, 32), _numbers(rows, 1))


def _convnet(rows: int) -> Problem:
    convolutions = [layers.Conv2D(8, 3, activation="relu"), layers.Conv2D(16, 3, strides=2)]
    pooled = [layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((16, 16, 1)), *convolutions, *pooled])
    return Problem(model, "mse", _numbers(rows, 16, 16, 1), _numbers(rows, 3))


def _lstm(rows: int) -> Problem:
    recurrent = [layers.Embedding(WORDS, 16), layers.LSTM(32), layers.Dense(1)]
    model = keras.Sequential([keras.Input((LENGTH,)), *recurrent])
    return Problem(model, "mse", _tokens(rows), _numbers(rows, 1))


def _transformer(rows: int) -> Problem:
    words = keras.Input((LENGTH,))
    hidden = layers.Embedding(WORDS, 32)(words)
    for _ in range(2):
        attended = layers.MultiHeadAttention(4, 8)(hidden, hidden, use_causal_mask=True)
        hidden = layers.LayerNormalization()(hidden + attended)
        hidden = layers.LayerNormalization()(hidden + layers.Dense(32, "gelu")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = keras.Model(words, layers.Dense(WORDS)(hidden))
    return Problem(model, loss, _tokens(rows), _tokens(rows))


def _embedding(rows: int) -> Problem:
    pooled = [layers.Embedding(WORDS, 32), layers.Flatten(), layers.Dense(1, "sigmoid")]
    model = keras.Sequential([keras.Input((LENGTH,)), *pooled])
    return Problem(model, "binary_crossentropy", _tokens(rows), _tokens(rows)[:, :1] % 2)


def _two_outputs(rows: int) -> Problem:
    inputs = keras.Input((32,))
    hidden = layers.Dense(64, "relu")(inputs)
    outputs = {name: layers.Dense(2, name=name)(hidden) for name in "ab"}
    targets = {name: _numbers(rows, 2) for name in "ab"}
    model, loss = keras.Model(inputs, outputs), {"a": "mse", "b": "mae"}
    return Problem(model, loss, _numbers(rows, 32), targets)


MODELS: dict[str, Callable[[int], Problem]] = {
    "dense": _dense,
    "convnet": _convnet,
    "LSTM": _lstm,
    "transformer": _transformer,
    "embedding": _embedding,
    "two outputs": _two_outputs,
}


class ModelTurns:
    """One model under one system, which trains for an epoch per round."""

    def __init__(
        self,
        make: Callable[[int], Problem],
        scope: Callable[[], Any],
        steps: int,
        steps_per_execution: int | str,
    ) -> None:
        """Make, compile and train the model for two epochs, so that its programs are compiled."""
        self._scope, self._steps = scope, steps
        keras.utils.set_random_seed(0)
        with scope():
            self._problem = make(steps * BATCH)
            self._problem.model.compile(
                "adam", self._problem.loss, steps_per_execution=steps_per_execution
            )
        self.seconds()
        self.seconds()

    def seconds(self) -> float:
        """Train for an epoch, and return how long a step took."""
        model, _, x, y = self._problem
        with self._scope():
            start = time.perf_counter()
            model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
            return (time.perf_counter() - start) / self._steps


def scopes_of_systems(devices: int) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """Return the systems that are compared, as functions that make the scope of each."""
    names = [f"cpu:{device}" for device in range(devices)]
    strategy = gd.MirroredStrategy(names)
    parallel = keras.distribution.DataParallel(devices=names)
    return {"graphdist": strategy.scope, "DataParallel": parallel.scope}


def measured_models(
    models: Sequence[str], settings: Sequence[int | str], devices: int, rounds: int, steps: int
) -> Iterator[tuple[str, int | str, dict[str, float]]]:
    """Yield for each model and setting the median seconds of a step of each system."""
    for name in models:
        scopes = scopes_of_systems(devices)
        turns = {
            (setting, system): ModelTurns(MODELS[name], scope, steps, setting)
            for setting in settings
            for system, scope in scopes.items()
        }
        seconds: dict[tuple[int | str, str], list[float]] = {key: [] for key in turns}
        for turn in range(rounds):
            for key in list(turns) if turn % 2 else reversed(turns):
                seconds[key].append(turns[key].seconds())
        for setting in settings:
            of_systems = {each: statistics.median(seconds[setting, each]) for each in scopes}
            yield name, setting, of_systems


@console_tool("bench keras")
def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = CommandParser(__doc__, "python -m graphdist.tools.bench keras")
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--steps-per-execution",
        nargs="+",
        type=lambda given: given if given == "auto" else int(given),
        default=[1, 16, "auto"],
        metavar="N",
        help='numbers, or "auto" (default 1 16 auto)',
    )
    parser.add_argument("--devices", type=int, default=2, help="CPU devices (default 2)")
    parser.add_argument("--rounds", type=int, default=21, help="turns of each system")
    parser.add_argument("--steps", type=int, default=40, help="steps of a turn, an epoch")
    options = parser.parse_args(arguments)
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    # Collectives of DataParallel wait for each other in XLA's threads. By default there is one per
    # processor, and with two of them the program hangs.
    choose_cpu_threads(_THREADS_PER_DEVICE * options.devices)
    gd.config.set_logical_cpu_devices(options.devices)
    print(f"ms per step on {options.devices} CPU devices, medians of {options.rounds} turns")
    print(
        "| model | steps per execution | graphdist | DataParallel | ratio |\n|---|---|---|---|---|"
    )
    chosen, settings = options.models or list(MODELS), options.steps_per_execution
    measured = measured_models(chosen, settings, options.devices, options.rounds, options.steps)
    for name, setting, medians in measured:
        ours, theirs = (medians[system] * 1e3 for system in ("graphdist", "DataParallel"))
        row = f"| {name} | {setting} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f} |"
        print(row, flush=True)
    return 0
