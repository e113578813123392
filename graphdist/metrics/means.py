"""`Sum` and `Mean`, and the bases of metrics that average a value of each pair of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays and whatever converts to one

import jax
import jax.numpy as jnp

from graphdist.metrics.examples import by_example
from graphdist.metrics.metric import Metric


class Sum(Metric):
    """The sum of values, each times its weight.

    >>> total = Sum()
    >>> total([1.0, 3.0], sample_weight=[1.0, 0.5])
    Array(2.5, dtype=float32)
    """

    def __init__(self, name: str = "sum", dtype: Any = None) -> None:
        """Start at 0."""
        super().__init__(name, dtype)
        self.total = self.add_variable("total")

    def contributions(self, values: Any, sample_weight: Any = None) -> list[jax.Array]:
        """Return the sum of these values."""
        sums, _ = by_example(jnp.sum, values, sample_weight, self.dtype, self.name)
        return [jnp.sum(sums, dtype=self.sum_dtype)]

    def value(self, total: Any) -> jax.Array:
        """Return the sum."""
        return total


class Mean(Metric):
    """The mean of values over examples, weighted if there are weights; 0 of none.

    An example counts as one whatever its size: dimensions after the first are averaged first. A
    scalar is one example. Examples are counted exactly up to 2**36, 69 billion.

    >>> mean = Mean()
    >>> mean.update_state([1.0, 3.0])
    >>> mean(8.0)
    Array(4., dtype=float32)
    """

    def __init__(self, name: str = "mean", dtype: Any = None) -> None:
        """Start with nothing seen."""
        super().__init__(name, dtype)
        self.total = self.add_variable("total")
        self.count = self.add_variable("count")

    def contributions(self, values: Any, sample_weight: Any = None) -> list[jax.Array]:
        """Return the weighted sum of these values, and the sum of their weights."""
        means, weights = by_example(jnp.mean, values, sample_weight, self.dtype, self.name)
        return [jnp.sum(array, dtype=self.sum_dtype) for array in (means, weights)]

    def value(self, total: Any, count: Any) -> jax.Array:
        """Return the mean."""
        return ratio_or_zero(total, count)


def ratio_or_zero(part: jax.Array, total: jax.Array) -> jax.Array:
    """Return a part of a total; 0 where the total is 0."""
    is_empty = total == 0
    # Without the inner `where` a gradient would be nan, of a division that nobody sees.
    return jnp.where(is_empty, jnp.zeros_like(part), part / jnp.where(is_empty, 1, total))


class MeanOverPairs(Mean):
    """The base of means over what truths and predictions give, pair by pair."""

    default_name = ""

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        """Start with nothing seen."""
        super().__init__(self.default_name if name is None else name, dtype)

    def contributions(  # type: ignore[override]  # a pair of arrays in place of one
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> list[jax.Array]:
        """Return what the values of these examples add."""
        return super().contributions(self.compare(y_true, y_pred), sample_weight)

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the values to average, with the examples along dimension 0."""
        raise self._undefined("compare", "the values to average, examples along dimension 0")


class MeanMetricWrapper(MeanOverPairs):
    """The mean of what a function of one's own returns for each example.

    `fn(y_true, y_pred, **options)` returns an array with the examples along dimension 0.

    >>> bias = MeanMetricWrapper(lambda y_true, y_pred: y_pred - y_true, name="bias")
    >>> bias([1.0, 2.0], [2.0, 5.0])
    Array(2., dtype=float32)
    """

    default_name = "mean_metric_wrapper"

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        """Keep the function and its options."""
        super().__init__(name, dtype)
        self._fn, self._options = fn, options

    def compare(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return what the function returns."""
        return jnp.asarray(self._fn(y_true, y_pred, **self._options))
