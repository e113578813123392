"""How often predictions are right: accuracies, precision and recall."""

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

    default_name = "accuracy"

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return where truth and prediction are equal."""
        y_true, y_pred = of_one_shape(y_true, y_pred, self.name)
        return y_true.astype(y_pred.dtype) == y_pred


class BinaryAccuracy(MeanOverPairs):
    """How often predictions equal the truth, 0 or 1. Predictions above the threshold count as 1.

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
    """How often the class with the highest score is the true class (one-hot).

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
    """How often the true class (one-hot) is among the `k` classes with the highest scores.

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


class SparseTopKCategoricalAccuracy(TopKCategoricalAccuracy):
    """How often the label is among the `k` classes with the highest scores.

    >>> SparseTopKCategoricalAccuracy(k=2)([2, 1], [[0.1, 0.9, 0.8], [0.5, 0.0, 0.4]])
    Array(0.5, dtype=float32)
    """

    default_name = "sparse_top_k_categorical_accuracy"

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

    default_name = ""

    def __init__(self, thresholds: float = 0.5, name: str | None = None, dtype: Any = None) -> None:
        """Keep the threshold above which a prediction is positive."""
        super().__init__(self.default_name if name is None else name, dtype)
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

    default_name = "precision"

    def counted(self, truth: jax.Array, positive: jax.Array) -> jax.Array:
        """Return where the prediction is positive."""
        return positive


class Recall(_Counts):
    """The share of positive truths that are found.

    >>> Recall()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0])
    Array(0.6666667, dtype=float32)
    """

    default_name = "recall"

    def counted(self, truth: jax.Array, positive: jax.Array) -> jax.Array:
        """Return where the truth is positive."""
        return truth
