"""`Sum` and `Mean`, the bases of metrics that average over examples, and the shapes of arguments.

Arrays have the examples along dimension 0. If the ranks of predictions and truths differ by a last
dimension of one element, one array is reshaped to the rank of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: dtypes, arrays and whatever converts to one

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError
from graphdist.metrics.metric import Metric


class Sum(Metric):
    """The sum of values, each times its weight.

    >>> total = Sum()
    >>> total([1.0, 3.0], sample_weight=[1.0, 0.5])
    Array(2.5, dtype=float32)
    """

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        """Start at 0."""
        super().__init__(name, dtype)
        self.total = self.add_variable("total")

    def contributions(self, values: Any, sample_weight: Any = None) -> list[jax.Array]:
        """Return the sum of these values."""
        sums, _ = by_example(self, jnp.sum, values, sample_weight)
        return [jnp.sum(sums, dtype=self.sum_dtype)]

    def value(self, total: Any) -> jax.Array:
        """Return the sum."""
        return total


class Mean(Metric):
    """The mean of values over examples, weighted if there are weights; 0 without examples.

    The elements of an example are averaged first, so all examples count equally, whatever their
    size. A scalar is one example. Up to 2**36 examples, 69 billion, are counted exactly.

    >>> mean = Mean()
    >>> mean.update_state([1.0, 3.0])
    >>> mean(8.0)
    Array(4., dtype=float32)
    """

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        """Start without examples."""
        super().__init__(name, dtype)
        self.total = self.add_variable("total")
        self.count = self.add_variable("count")

    def contributions(self, values: Any, sample_weight: Any = None) -> list[jax.Array]:
        """Return the weighted sum of these values, and the sum of their weights."""
        means, weights = by_example(self, jnp.mean, values, sample_weight)
        return [jnp.sum(array, dtype=self.sum_dtype) for array in (means, weights)]

    def value(self, total: Any, count: Any) -> jax.Array:
        """Return the mean."""
        return ratio_or_zero(total, count)


def ratio_or_zero(part: jax.Array, total: jax.Array) -> jax.Array:
    """Return a part of a total; 0 where the total is 0."""
    is_empty = total == 0
    # Without the inner `where` the gradient of the unused division would be nan.
    return jnp.where(is_empty, jnp.zeros_like(part), part / jnp.where(is_empty, 1, total))


class MeanOverPairs(Mean):
    """The base of metrics that average a value of each pair of truth and prediction."""

    def contributions(  # type: ignore[override]  # a pair of arrays in place of one
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> list[jax.Array]:
        """Return the weighted sum of the values of these pairs, and the sum of their weights."""
        return super().contributions(self.compare(y_true, y_pred), sample_weight)

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the values to average, with the examples along dimension 0."""
        raise self._undefined("compare", "the values to average, examples along dimension 0")


class MeanMetricWrapper(MeanOverPairs):
    """The mean of the values that your function returns for each example.

    `fn(y_true, y_pred, **options)` returns an array with the examples along dimension 0.

    >>> bias = MeanMetricWrapper(lambda y_true, y_pred: y_pred - y_true, name="bias")
    >>> bias([1.0, 2.0], [2.0, 5.0])
    Array(2., dtype=float32)
    """

    def __init__(
        self, fn: Callable[..., Any], name: str | None = None, dtype: Any = None, **options: Any
    ) -> None:
        """Keep the function and its options."""
        super().__init__(name, dtype)
        self._fn, self._options = fn, options

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the values of the function."""
        return jnp.asarray(self._fn(y_true, y_pred, **self._options))


def of_one_rank(array: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two arrays of one rank if their ranks differ by a last dimension of one element.

    >>> [array.shape for array in of_one_rank(jnp.zeros((4, 1)), jnp.zeros(4))]
    [(4, 1), (4, 1)]
    >>> [array.shape for array in of_one_rank(jnp.zeros((4, 3, 1)), jnp.zeros((4, 3)))]
    [(4, 3), (4, 3)]
    """
    if array.ndim == other.ndim + 1 and array.shape[-1] == 1:
        return (array, other[:, None]) if other.ndim == 1 else (array[..., 0], other)
    if other.ndim == array.ndim + 1 and other.shape[-1] == 1:
        return (array[:, None], other) if array.ndim == 1 else (array, other[..., 0])
    return array, other


def by_example(
    metric: Metric, average: Callable[..., Any], values: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Return, for each example, one weighted value and one weight; a scalar is one example.

    `average` is `jnp.mean` or `jnp.sum`, which reduces the elements of an example. Raises
    `ArgumentError` for weights that do not fit the values.
    """
    values = values.astype(metric.dtype)
    if weights is None:
        values = average(values, axis=tuple(range(1, values.ndim)))
        return values, jnp.ones_like(values)
    values, weights = of_one_rank(values, weights.astype(metric.dtype))
    rank = weights.ndim
    fits = rank <= values.ndim and all(
        size in (1, full) for size, full in zip(weights.shape, values.shape, strict=False)
    )
    if not fits:
        raise ArgumentError(
            f"metric {metric.name!r}: sample_weight has shape {list(weights.shape)}, "
            f"the values shape {list(values.shape)}",
            hint="give one weight for each example",
        )
    values = average(values, axis=tuple(range(rank, values.ndim))) * weights
    weights = jnp.broadcast_to(weights, values.shape)
    rest = tuple(range(1, values.ndim))
    return average(values, axis=rest), average(weights, axis=rest)


def of_one_shape(y_true: jax.Array, y_pred: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
    """Return truths and predictions of one shape; raises `ArgumentError` if they differ."""
    y_true, y_pred = of_one_rank(y_true, y_pred)
    if y_true.shape != y_pred.shape:
        raise ArgumentError(
            f"metric {name!r}: y_true has shape {list(y_true.shape)}, "
            f"y_pred shape {list(y_pred.shape)}",
            hint="give a prediction for each truth",
        )
    return y_true, y_pred


def class_labels(y_true: jax.Array, y_pred: jax.Array, name: str) -> jax.Array:
    """Return labels without a last dimension of one element.

    Raises `ArgumentError` unless there is one label for each row of scores.
    """
    if y_true.ndim == y_pred.ndim and y_true.shape[-1:] == (1,):
        y_true = y_true[..., 0]
    if y_pred.ndim == 0 or y_true.shape != y_pred.shape[:-1]:
        raise ArgumentError(
            f"metric {name!r}: y_true has shape {list(y_true.shape)}, y_pred shape "
            f"{list(y_pred.shape)}: there is a label for each row of scores",
            hint="give labels of shape [examples] and scores of shape [examples, classes]",
        )
    return y_true.astype(jnp.int32)
