"""How predictions of two classes are right and wrong, counted."""

from __future__ import annotations

from typing import Any  # Any: arrays, and whatever broadcasts to them

import jax
import jax.numpy as jnp

from graphdist.metrics.examples import of_one_rank, of_one_shape
from graphdist.metrics.means import ratio_or_zero
from graphdist.metrics.metric import Metric


class _Counts(Metric):
    """The base of ratios of the predictions that are rightly positive."""

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
        truth, said = y_true.astype(bool), y_pred > self.thresholds
        weights = jnp.ones((), self.dtype)
        if sample_weight is not None:
            weights = of_one_rank(truth, sample_weight)[1].astype(self.dtype)
        weights = jnp.broadcast_to(weights, truth.shape)
        masks = truth & said, self.counted(truth, said)
        return [jnp.sum(weights * mask, dtype=self.sum_dtype) for mask in masks]

    def counted(self, truth: jax.Array, said: jax.Array) -> jax.Array:
        """Return where an example is counted: the true positives are a share of these."""
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

    def counted(self, truth: jax.Array, said: jax.Array) -> jax.Array:
        """Return where the prediction is positive."""
        return said


class Recall(_Counts):
    """The share of positive truths that are found.

    >>> Recall()([0, 1, 1, 1], [1.0, 0.0, 1.0, 1.0])
    Array(0.6666667, dtype=float32)
    """

    default_name = "recall"

    def counted(self, truth: jax.Array, said: jax.Array) -> jax.Array:
        """Return where the truth is positive."""
        return truth
