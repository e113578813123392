"""Metrics of predictions: how often predictions are right, and how far they are from the truth.

Errors are computed element by element and averaged over the dimensions of an example. Each scalar
of a one-dimensional array is an example. `keras.metrics` averages the examples of each update
first, which is inexact if updates, or replicas, have different numbers of examples.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes

import jax
import jax.numpy as jnp

from graphdist.metrics.means import (
    MeanOverPairs,
    class_labels,
    of_one_rank,
    of_one_shape,
    ratio_or_zero,
)
from graphdist.metrics.metric import Metric


class Accuracy(MeanOverPairs):
    """How often predictions are equal to the truth.

    >>> Accuracy()([1, 2, 3, 4], [0, 2, 3, 4])
    Array(0.75, dtype=float32)
    """

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where truth and prediction are equal."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return y_true.astype(y_pred.dtype) == y_pred


class BinaryAccuracy(MeanOverPairs):
    """How often predictions equal the truth, 0 or 1. Predictions above the threshold count as 1.

    >>> BinaryAccuracy()([1, 1, 0, 0], [0.98, 1.0, 0.0, 0.6])
    Array(0.75, dtype=float32)
    """

    def __init__(self, name: str | None = None, dtype: Any = None, threshold: float = 0.5) -> None:
        """Keep the threshold."""
        super().__init__(name, dtype)
        self.threshold = threshold

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return y_true == (y_pred > self.threshold).astype(y_true.dtype)


class CategoricalAccuracy(MeanOverPairs):
    """How often the class with the highest score is the true class (one-hot).

    >>> CategoricalAccuracy()([[0, 0, 1], [0, 1, 0]], [[0.1, 0.9, 0.8], [0.05, 0.95, 0.0]])
    Array(0.5, dtype=float32)
    """

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return jnp.argmax(y_true, axis=-1) == jnp.argmax(y_pred, axis=-1)


class SparseCategoricalAccuracy(MeanOverPairs):
    """How often the class with the highest score is the label.

    >>> SparseCategoricalAccuracy()([2, 1], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]])
    Array(0.5, dtype=float32)
    """

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        return class_labels(y_true, y_pred, self.name) == jnp.argmax(y_pred, axis=-1)


class TopKCategoricalAccuracy(MeanOverPairs):
    """How often the true class (one-hot) is among the `k` classes with the highest scores.

    >>> TopKCategoricalAccuracy(k=2)([[0, 0, 1], [0, 1, 0]], [[0.1, 0.9, 0.8], [0.5, 0.0, 0.4]])
    Array(0.5, dtype=float32)
    """

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None) -> None:
        """Keep `k`."""
        super().__init__(name, dtype)
        self.k = k

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return _is_in_top(self.k, jnp.argmax(y_true, axis=-1), y_pred)


class SparseTopKCategoricalAccuracy(TopKCategoricalAccuracy):
    """How often the label is among the `k` classes with the highest scores.

    >>> SparseTopKCategoricalAccuracy(k=2)([2, 1], [[0.1, 0.9, 0.8], [0.5, 0.0, 0.4]])
    Array(0.5, dtype=float32)
    """

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where the prediction is right."""
        return _is_in_top(self.k, class_labels(y_true, y_pred, self.name), y_pred)


def _is_in_top(k: int, labels: jax.Array, scores: jax.Array) -> jax.Array:
    """Return where the label has a finite score, and fewer than `k` classes have a higher score."""
    is_class = (labels >= 0) & (labels < scores.shape[-1])
    score = jnp.take_along_axis(scores, jnp.where(is_class, labels, 0)[..., None], axis=-1)
    is_in_top = jnp.sum(scores > score, axis=-1) < k
    return is_in_top & is_class & jnp.isfinite(score[..., 0])


class _Counts(Metric):
    """The base of ratios of true positives to counted examples."""

    def __init__(self, thresholds: float = 0.5, name: str | None = None, dtype: Any = None) -> None:
        """Keep the threshold above which a prediction is positive."""
        super().__init__(name, dtype)
        self.thresholds = thresholds
        self.add_variable("true_positives")
        self.add_variable("all")

    def contributions(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> list[jax.Array]:
        """Return the weights of the true positives, and of all counted examples."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        truth, positive = y_true.astype(bool), y_pred > self.thresholds
        weights = jnp.ones((), self.dtype)
        if sample_weight is not None:
            weights = of_one_rank(truth, sample_weight)[1].astype(self.dtype)
        weights = jnp.broadcast_to(weights, truth.shape)
        masks = truth & positive, self.counted(truth, positive)
        return [jnp.sum(weights * mask, dtype=self.sum_dtype) for mask in masks]

    def counted(self, truth: jax.Array, positive: jax.Array) -> jax.Array:
        """Return where an example is counted in the denominator."""
        raise NotImplementedError

    def value(self, true_positives: Any, all: Any) -> jax.Array:
        """Return the share of the true positives; 0 where nothing is counted."""
        return ratio_or_zero(true_positives, all)


class Precision(_Counts):
    """The share of positive predictions that are right.

    >>> Precision()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0])
    Array(0.6666667, dtype=float32)
    """

    def counted(self, truth: jax.Array, positive: jax.Array) -> jax.Array:
        """Return where the prediction is positive."""
        return positive


class Recall(_Counts):
    """The share of positive truths that are found.

    >>> Recall()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0])
    Array(0.6666667, dtype=float32)
    """

    def counted(self, truth: jax.Array, positive: jax.Array) -> jax.Array:
        """Return where the truth is positive."""
        return truth


_EPSILON = 1e-7


class MeanSquaredError(MeanOverPairs):
    """The mean of the squared differences.

    >>> MeanSquaredError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.25, dtype=float32)
    """

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the squared differences."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return jnp.square(y_pred.astype(self.dtype) - y_true.astype(self.dtype))


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean of the squared differences.

    >>> RootMeanSquaredError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.5, dtype=float32)
    """

    def value(self, total: Any, count: Any) -> jax.Array:
        """Return the square root of the mean."""
        return jnp.sqrt(super().value(total, count))


class MeanAbsoluteError(MeanOverPairs):
    """The mean of the absolute differences.

    >>> MeanAbsoluteError()([[0, 1], [0, 0]], [[1.0, 1.0], [0.0, 0.0]])
    Array(0.25, dtype=float32)
    """

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

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of each label."""
        labels = class_labels(y_true, y_pred, self.name)
        # This makes probabilities add up to 1. Scores add up to 1 already.
        logits = jax.nn.log_softmax(self._log_probabilities(y_pred), axis=-1)
        return -jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
