"""How far predictions are off.

Errors are computed element by element and averaged over the dimensions of an example. Each scalar
of a one-dimensional array is an example. `keras.metrics` averages the examples of each update
first, which is inexact if updates, or replicas, have different numbers of examples.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes

import jax
import jax.numpy as jnp

from graphdist.metrics.means import MeanOverPairs, class_labels, of_one_shape

_EPSILON = 1e-7


class MeanSquaredError(MeanOverPairs):
    """The mean of the squared differences.

    >>> MeanSquaredError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.25, dtype=float32)
    """

    default_name = "mean_squared_error"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared differences."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return jnp.square(y_pred.astype(self.dtype) - y_true.astype(self.dtype))


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of the squared differences.

    >>> RootMeanSquaredError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.5, dtype=float32)
    """

    default_name = "root_mean_squared_error"

    def value(self, total: Any, count: Any) -> jax.Array:
        """Return the square root of the mean."""
        return jnp.sqrt(super().value(total, count))


class MeanAbsoluteError(MeanOverPairs):
    """The mean of the absolute differences.

    >>> MeanAbsoluteError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.25, dtype=float32)
    """

    default_name = "mean_absolute_error"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the absolute differences."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return jnp.abs(y_pred.astype(self.dtype) - y_true.astype(self.dtype))


class _Crossentropy(MeanOverPairs):
    """The base of cross-entropies: of probabilities, or of scores (`from_logits`)."""

    def __init__(
        self, name: str | None = None, dtype: Any = None, from_logits: bool = False
    ) -> None:
        """Set whether predictions are scores instead of probabilities."""
        super().__init__(name, dtype)
        self.from_logits = from_logits

    def _log_probabilities(self, y_pred: jax.Array) -> jax.Array:
        y_pred = y_pred.astype(self.dtype)  # in bfloat16, 1 - epsilon is 1
        if self.from_logits:
            return jax.nn.log_softmax(y_pred, axis=-1)
        return jnp.log(jnp.clip(y_pred, _EPSILON, 1 - _EPSILON))


class BinaryCrossentropy(_Crossentropy):
    """The mean cross-entropy of truths between 0 and 1.

    >>> round(float(BinaryCrossentropy()([[0, 1], [0, 0]], [[0.6, 0.4], [0.4, 0.6]])), 4)
    0.8149
    """

    default_name = "binary_crossentropy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of each truth."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        y_true, y_pred = y_true.astype(self.dtype), y_pred.astype(self.dtype)
        if self.from_logits:
            return jax.nn.softplus(y_pred) - y_true * y_pred
        y_pred = jnp.clip(y_pred, _EPSILON, 1 - _EPSILON)
        return -(y_true * jnp.log(y_pred) + (1 - y_true) * jnp.log(1 - y_pred))


class CategoricalCrossentropy(_Crossentropy):
    """The mean cross-entropy of true probabilities (one-hot), one row per example.

    >>> probabilities = [[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]
    >>> round(float(CategoricalCrossentropy()([[0, 1, 0], [0, 0, 1]], probabilities)), 4)
    1.1769
    """

    default_name = "categorical_crossentropy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of each row."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        if not self.from_logits:
            y_pred = y_pred / jnp.sum(y_pred, axis=-1, keepdims=True)
        return -jnp.sum(y_true * self._log_probabilities(y_pred), axis=-1)


class SparseCategoricalCrossentropy(_Crossentropy):
    """The mean cross-entropy of labels.

    >>> probabilities = [[0.05, 0.95, 0.0], [0.1, 0.8, 0.1]]
    >>> round(float(SparseCategoricalCrossentropy()([1, 2], probabilities)), 4)
    1.1769
    """

    default_name = "sparse_categorical_crossentropy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of each label."""
        labels = class_labels(y_true, y_pred, self.name)
        # This makes probabilities add up to 1. Scores add up to 1 already.
        logits = jax.nn.log_softmax(self._log_probabilities(y_pred), axis=-1)
        return -jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
