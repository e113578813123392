"""The shapes of what metrics are given: examples, truths, predictions and weights.

Arrays have the examples along dimension 0. Where predictions and truths differ by a dimension of
one element at the end, one is given the rank of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias  # Any: dtypes have no common type

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here

Averaging: TypeAlias = Callable[..., jax.Array]
"""`jnp.mean` or `jnp.sum`: how the dimensions of one example become one number."""


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
    average: Averaging, values: jax.Array, weights: jax.Array | None, dtype: Any, name: str
) -> tuple[jax.Array, jax.Array]:
    """Return one weighted value and the weight of each example; a scalar is one example.

    Raises `ArgumentError`, which says the metric's name, for weights that do not fit.
    """
    values = values.astype(dtype)
    if weights is None:
        values = average(values, axis=tuple(range(1, values.ndim)))
        return values, jnp.ones_like(values)
    values, weights = of_one_rank(values, weights.astype(dtype))
    rank = weights.ndim
    fits = rank <= values.ndim and all(
        size in (1, full) for size, full in zip(weights.shape, values.shape, strict=False)
    )
    if not fits:
        raise ArgumentError(
            f"metric {name!r}: sample_weight has shape {list(weights.shape)}, "
            f"the values shape {list(values.shape)}",
            source=here(),
            hint="give one weight for each example",
        )
    values = average(values, axis=tuple(range(rank, values.ndim))) * weights
    weights = jnp.broadcast_to(weights, values.shape)
    rest = tuple(range(1, values.ndim))
    return average(values, axis=rest), average(weights, axis=rest)


def of_one_shape(y_true: jax.Array, y_pred: jax.Array, name: str) -> tuple[jax.Array, jax.Array]:
    """Return truths and predictions of one shape; raises `ArgumentError` where they differ."""
    y_true, y_pred = of_one_rank(y_true, y_pred)
    if y_true.shape != y_pred.shape:
        raise ArgumentError(
            f"metric {name!r}: y_true has shape {list(y_true.shape)}, "
            f"y_pred shape {list(y_pred.shape)}",
            source=here(),
            hint="give a prediction for each truth",
        )
    return y_true, y_pred


def class_labels(y_true: jax.Array, y_pred: jax.Array, name: str) -> jax.Array:
    """Return labels without a last dimension of one element, as many as there are predictions."""
    if y_true.ndim == y_pred.ndim and y_true.shape[-1:] == (1,):
        y_true = y_true[..., 0]
    if y_pred.ndim == 0 or y_true.shape != y_pred.shape[:-1]:
        raise ArgumentError(
            f"metric {name!r}: y_true has shape {list(y_true.shape)}, y_pred shape "
            f"{list(y_pred.shape)}: there is a label for each row of scores",
            source=here(),
            hint="give labels of shape [examples] and scores of shape [examples, classes]",
        )
    return y_true.astype(jnp.int32)
