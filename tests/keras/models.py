"""Small Keras models with data for them, and how a test trains them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

import graphdist as gd
import graphdist.keras

ROWS = 22  # in batches of 7: parts of 4 and 3 rows, and a last batch of a single row


class Example(NamedTuple):
    """A model, its loss and its data."""

    model: Any
    loss: Any
    x: Any
    y: Any
    sample_weight: Any = None


def mirrored(replicas: int = 2, **options: Any) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(replicas)], **options)


def scope_of(strategy: gd.Strategy | None) -> Any:
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def classifier(*extra: Any, **settings: Any) -> Any:
    """Return a compiled classifier of rows of 4 numbers; it begins with the same weights."""
    keras.utils.set_random_seed(1)
    given = {"optimizer": "adam", "metrics": ["accuracy"], **settings}
    model = keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(8, "relu"),
            *extra,
            layers.Dense(3, "softmax"),
        ],
        name="classifier",
    )
    model.compile(loss="sparse_categorical_crossentropy", **given)
    return model


def rows(count: int = ROWS) -> tuple[Any, Any]:
    """Return rows for the classifier, and their classes."""
    random = np.random.default_rng(0)
    return random.normal(size=(count, 4)).astype(np.float32), random.integers(0, 3, count)


def batches(count: int) -> Iterator[Any]:
    """Yield batches of 7 rows for the classifier, and a last one of the rows that are left."""
    x, y = rows(count)
    for start in range(0, count, 7):
        yield x[start : start + 7], y[start : start + 7]


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=(ROWS, *shape)).astype(np.float32)


def tokens() -> Any:
    return np.random.default_rng(0).integers(0, 20, (ROWS, 6))


def dense() -> Example:
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8, "relu", kernel_regularizer="l2"), layers.Dense(1)]
    )
    return Example(model, "mse", numbers(4), numbers(1))


def convnet() -> Example:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            graphdist.keras.SynchronizedBatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    return Example(model, "mse", numbers(8, 8, 1), numbers(3))


def lstm() -> Example:
    masked = layers.Embedding(20, 8, mask_zero=True)
    model = keras.Sequential([keras.Input((6,)), masked, layers.LSTM(8), layers.Dense(1)])
    return Example(model, "mse", tokens(), numbers(1))


def transformer() -> Example:
    words = keras.Input((6,))
    embedded = layers.Embedding(20, 8)(words)
    attended = layers.MultiHeadAttention(2, 4)(embedded, embedded, use_causal_mask=True)
    hidden = layers.LayerNormalization()(embedded + attended)
    scores = layers.Dense(20)(layers.Dense(8, "gelu")(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Example(keras.Model(words, scores), loss, tokens(), tokens())


def embedding() -> Example:
    model = keras.Sequential(
        [keras.Input((6,)), layers.Embedding(20, 8), layers.Flatten(), layers.Dense(1, "sigmoid")]
    )
    return Example(model, "binary_crossentropy", tokens(), tokens()[:, :1] % 2)


def two_outputs() -> Example:
    """Return a model whose losses are a mean and a sum, with weights of the rows."""
    inputs = keras.Input((4,))
    hidden = layers.Dense(8, "relu")(inputs)
    outputs = {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(3, name="b")(hidden)}
    loss = {"a": keras.losses.MeanSquaredError(reduction="sum"), "b": "mae"}
    y = {"a": numbers(1), "b": numbers(3)}
    weights = {"a": np.linspace(0, 1, ROWS), "b": np.linspace(2, 0, ROWS)}
    return Example(keras.Model(inputs, outputs), loss, numbers(4), y, weights)


MODELS: dict[str, Callable[[], Example]] = {
    make.__name__: make for make in (dense, convnet, lstm, transformer, embedding, two_outputs)
}


def trained(make: Callable[[], Example], strategy: gd.Strategy | None) -> dict[str, Any]:
    """Train a model for two epochs, and return what the user sees of it."""
    keras.utils.set_random_seed(1)
    with scope_of(strategy):
        model, loss, x, y, weights = make()
        model.compile("adam", loss, metrics=["mae"] if loss == "mse" else None)
    history = model.fit(x, y, batch_size=7, epochs=2, verbose=0, sample_weight=weights)
    return {
        "history": history.history,
        "evaluated": model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True),
        "predicted": model.predict(x, batch_size=7, verbose=0),
        "weights": model.get_weights(),
    }
