"""How often predictions are right."""

from __future__ import annotations

from typing import Any  # Any: dtypes

import jax
import jax.numpy as jnp

from graphdist.metrics.examples import class_labels, of_one_shape
from graphdist.metrics.means import MeanOverPairs


class Accuracy(MeanOverPairs):
    """How often predictions are equal to the truth.

    >>> Accuracy()([1, 2, 3, 4], [0, 2, 3, 4])
    Array(0.75, dtype=float32)
    """

    default_name = "accuracy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where truth and prediction are equal."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return y_true.astype(y_pred.dtype) == y_pred


class BinaryAccuracy(MeanOverPairs):
    """How often predictions are on the side of the threshold where the truth, 0 or 1, is.

    >>> BinaryAccuracy()([1, 1, 0, 0], [0.98, 1.0, 0.0, 0.6])
    Array(0.75, dtype=float32)
    """

    default_name = "binary_accuracy"

    def __init__(self, name: str | None = None, dtype: Any = None, threshold: float = 0.5) -> None:
        """Keep the threshold."""
        super().__init__(name, dtype)
        self.threshold = threshold

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return y_true == (y_pred > self.threshold).astype(y_true.dtype)


class CategoricalAccuracy(MeanOverPairs):
    """How often the class with the highest score is the one with the highest truth (one-hot).

    >>> CategoricalAccuracy()([[0, 0, 1], [0, 1, 0]], [[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]])
    Array(0.5, dtype=float32)
    """

    default_name = "categorical_accuracy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return jnp.argmax(y_true, axis=-1) == jnp.argmax(y_pred, axis=-1)


class SparseCategoricalAccuracy(MeanOverPairs):
    """How often the class with the highest score is the label.

    >>> SparseCategoricalAccuracy()([2, 1], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]])
    Array(0.5, dtype=float32)
    """

    default_name = "sparse_categorical_accuracy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        return class_labels(y_true, y_pred, self.name) == jnp.argmax(y_pred, axis=-1)


class TopKCategoricalAccuracy(MeanOverPairs):
    """How often the true class (one-hot) is among the `k` with the highest scores.

    >>> TopKCategoricalAccuracy(k=2)([[0, 0, 1], [0, 1, 0]], [[0.1, 0.9, 0.8], [0.5, 0.0, 0.4]])
    Array(0.5, dtype=float32)
    """

    default_name = "top_k_categorical_accuracy"

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        """Keep `k`."""
        super().__init__(name, dtype)
        self.k = k

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return _is_in_top(self.k, jnp.argmax(y_true, axis=-1), y_pred)


class SparseTopKCategoricalAccuracy(MeanOverPairs):
    """How often the label is among the `k` classes with the highest scores.

    >>> SparseTopKCategoricalAccuracy(k=2)([2, 1], [[0.1, 0.9, 0.8], [0.5, 0.0, 0.4]])
    Array(0.5, dtype=float32)
    """

    default_name = "sparse_top_k_categorical_accuracy"

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        """Keep `k`."""
        super().__init__(name, dtype)
        self.k = k

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        return _is_in_top(self.k, class_labels(y_true, y_pred, self.name), y_pred)


def _is_in_top(k: int, labels: jax.Array, scores: jax.Array) -> jax.Array:
    """Return where fewer than `k` classes score higher than the label's, which is a number."""
    is_class = (labels >= 0) & (labels < scores.shape[-1])
    score = jnp.take_along_axis(scores, jnp.where(is_class, labels, 0)[..., None], axis=-1)
    is_in_top = jnp.sum(scores > score, axis=-1) < k
    return is_in_top & is_class & jnp.isfinite(score[..., 0])
