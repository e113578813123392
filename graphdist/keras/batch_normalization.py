"""A batch normalization whose statistics are over the rows of all replicas."""

from __future__ import annotations

from typing import Any  # Any: arrays, and arguments of the layer that it extends

import jax
import jax.numpy as jnp
import keras

from graphdist.context import in_replica_context_of_a_run
from graphdist.errors import UnsupportedError
from graphdist.keras.replica_batch import current_replica_batch
from graphdist.strategies.current import get_replica_context


@keras.saving.register_keras_serializable(package="graphdist")
class SynchronizedBatchNormalization(keras.layers.BatchNormalization):
    """Normalize by the mean and variance of the global batch, not of the replica's rows alone.

    The layer takes the arguments of `keras.layers.BatchNormalization` and has the same weights:
    weights saved by either layer can be loaded into the other. Outside the steps of a strategy both
    layers compute the same. Raises `UnsupportedError` for `renorm=True`.

    >>> SynchronizedBatchNormalization(momentum=0.9).momentum
    0.9
    """

    def __init__(self, **arguments: Any) -> None:
        """Take the arguments of `keras.layers.BatchNormalization`."""
        super().__init__(**arguments)
        if self.renorm:
            raise UnsupportedError(
                "a SynchronizedBatchNormalization with renorm=True",
                hint="use keras.layers.BatchNormalization, which normalizes each replica's rows",
            )

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the normalized inputs, and update the moving averages."""
        if not (training and self.trainable) or not in_replica_context_of_a_run():
            return super().call(inputs, training=training, mask=mask)
        values = jnp.asarray(inputs, jnp.promote_types(inputs.dtype, jnp.float32))
        mean, variance = self._statistics(values, mask)
        for average, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            average.assign(average * self.momentum + new * (1.0 - self.momentum))
        outputs = keras.ops.batch_normalization(
            x=values,
            mean=mean,
            variance=variance,
            axis=self.axis,
            offset=None if self.beta is None else keras.ops.cast(self.beta, values.dtype),
            scale=None if self.gamma is None else keras.ops.cast(self.gamma, values.dtype),
            epsilon=self.epsilon,
        )
        return keras.ops.cast(outputs, self.compute_dtype)

    def _statistics(self, values: jax.Array, mask: Any) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance of each channel over the rows of all replicas."""
        batch = current_replica_batch()
        axes = tuple(axis for axis in range(values.ndim) if axis != self.axis % values.ndim)
        counted = jnp.ones(values.shape, values.dtype)
        if mask is not None:
            counted = counted * jnp.expand_dims(jnp.asarray(mask, values.dtype), -1)
        if batch is not None and not batch.num_rows:
            counted = jnp.zeros_like(counted)
        all_reduce = get_replica_context().all_reduce
        total, count = all_reduce("SUM", (jnp.sum(values * counted, axes), jnp.sum(counted, axes)))
        count = jnp.maximum(count, 1)
        mean = total / count
        shape = [1] * values.ndim
        shape[self.axis] = -1
        away = (values - mean.reshape(shape)) * counted
        return mean, all_reduce("SUM", jnp.sum(away * away, axes)) / count
