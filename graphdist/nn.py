"""Losses of replicas, scaled so that their sum over the replicas is the loss of the global batch.

With this scale, the sum of the replicas' gradients is the gradient of the loss of the global batch.
`embedding_lookup` reads rows of a table, which may be sharded.
"""

from __future__ import annotations

from typing import Any  # Any: arrays and whatever converts to one

import jax
import jax.numpy as jnp

from graphdist.context import in_cross_replica_context
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.ir.types import dtype_name
from graphdist.state.sharded_variable import ShardedVariable
from graphdist.strategies.current import get_replica_context
from graphdist.values.distributed import checked_array, is_array, type_name
from graphdist.values.reducible import summable


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
) -> jax.Array:
    """Return the sum of a replica's losses divided by the global batch size.

    `per_example_loss` has shape [examples, ...]. `sample_weight` has the first dimensions of
    `per_example_loss`, where a dimension may also have the size 1. `global_batch_size` is an int or
    a scalar array of integers. The default is the number of examples of all replicas together.
    Replicas may have different numbers of examples. A size of 0 gives a loss of 0. The loss of
    integers is a float32.

    Raises `ContextError` in cross-replica context, `ArgumentError` for a scalar loss or weights
    that do not fit, `ArgumentTypeError` for a batch size that is not an integer.

    >>> compute_average_loss([1.0, 3.0], sample_weight=[1.0, 0.5], global_batch_size=4)
    Array(0.625, dtype=float32)
    """
    _require_replica_context("compute_average_loss")
    loss = checked_array(per_example_loss, "compute_average_loss of")
    if loss.ndim == 0:
        raise ArgumentError(
            "compute_average_loss of a scalar: it takes the loss of each example",
            hint="give it before it is reduced, with shape [examples]",
        )
    examples = loss.shape[0]
    loss = summable(loss, "mean", "compute_average_loss")
    if sample_weight is not None:
        loss = loss * _weights(sample_weight, loss)
    total = jnp.sum(loss)
    if global_batch_size is None:
        # Without any example the sum is 0 already.
        return total / max(1, get_replica_context().examples_of_all(examples))
    size = _batch_size(global_batch_size)
    is_empty = size == 0
    return jnp.where(is_empty, jnp.zeros_like(total), total / jnp.where(is_empty, 1, size))


def _weights(sample_weight: Any, loss: jax.Array) -> jax.Array:
    """Return the weights with dimensions of size 1 appended up to the rank of the loss."""
    weights = checked_array(sample_weight, "compute_average_loss with weights", loss.dtype)
    aligned = weights.reshape(weights.shape + (1,) * (loss.ndim - weights.ndim))
    fits = weights.ndim <= loss.ndim and all(
        size in (1, wanted) for size, wanted in zip(aligned.shape, loss.shape, strict=True)
    )
    if not fits:
        raise ArgumentError(
            f"sample_weight has shape {list(weights.shape)}, the loss shape {list(loss.shape)}",
            hint="give one weight for each example",
        )
    return aligned


def _batch_size(size: Any) -> jax.Array:
    array = checked_array(size, "compute_average_loss with global_batch_size")
    if array.ndim or not jnp.issubdtype(array.dtype, jnp.integer):
        kind = (
            dtype_name(array.dtype) + str(list(array.shape)) if is_array(size) else type_name(size)
        )
        raise ArgumentTypeError(
            f"global_batch_size is of type {kind}: it is one integer",
            hint="give the number of examples of all replicas together",
        )
    return array


def scale_regularization_loss(regularization_loss: Any) -> jax.Array:
    """Return the sum of losses that do not depend on the batch, divided by the number of replicas.

    Raises `ContextError` in cross-replica context.

    >>> scale_regularization_loss([2.0, 4.0])
    Array(6., dtype=float32)
    """
    _require_replica_context("scale_regularization_loss")
    loss = checked_array(regularization_loss, "scale_regularization_loss of")
    total = jnp.sum(summable(loss, "mean", "scale_regularization_loss"))
    return total / get_replica_context().num_replicas_in_sync


def _require_replica_context(what: str) -> None:
    if in_cross_replica_context():
        raise ContextError(
            f"{what} is called in cross-replica context, where there is no loss of a replica",
            hint="call it inside the function given to run",
        )


def embedding_lookup(params: Any, ids: Any) -> jax.Array:
    """Return the rows of a table with the indices `ids`. A sharded table is read shard by shard.

    `params` is an array, a variable or a `gd.ShardedVariable`, `ids` an array of integers.

    >>> embedding_lookup(jnp.array([[1.0], [2.0]]), [1, 0, 1])
    Array([[2.],
           [1.],
           [2.]], dtype=float32)
    """
    rows = jnp.asarray(ids)
    if isinstance(params, ShardedVariable):
        return params.gather(rows)
    return jnp.asarray(params[...])[rows]
