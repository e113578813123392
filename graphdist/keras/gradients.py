"""Losses and gradients on replicas: scaled to the global batch, gradients summed over the replicas.

Every optimizer of Keras gets its gradients in `apply` or `stateless_apply`. Keras has no hook for
these methods, so `sum_gradients_of_replicas` wraps both. Clipping, accumulation and loss scaling
then see the sum.

A replica's loss is a mean over its rows. So the gradient of the global batch is the sum of the
replicas' gradients, each multiplied by the replica's share of the rows. Replicas may have different
numbers of rows. In steps of `fit` the loss is multiplied by the share in `scale_loss`. If a custom
`train_step` does not call `scale_loss`, the gradients are multiplied in `stateless_apply`, which
every `train_step` for the JAX backend calls. A loss with reduction "sum" must not be scaled: the
loss is divided by the share, which cancels the factor.

In the user's own replica functions, a loss that is a mean is divided by the number of replicas,
because gradients are summed over the replicas. Keras does the same on TensorFlow. The steps of
`fit` know how many rows each replica has, and scale by its share of the rows instead. Keras has no
hook for losses, so `scale_losses_of_replicas` wraps `keras.Loss.__call__`. It wraps
`keras.Model.compute_loss` and `keras.Model.losses`, too, for the losses of regularizers and of
`add_loss`.

`keras.metrics.Mean`, and every metric that is made of a function, counts rows if it gets a value
for each row. A scalar, such as the loss that a custom `train_step` passes on, is a mean over rows
and counts once for each batch. In steps of `fit` each replica has a scalar for its part of the
batch. These scalars are weighted by the replicas' shares of the rows, which add up to one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any  # Any: arrays and objects of Keras

import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import in_replica_context_of_a_run, num_replicas_running
from graphdist.keras.replacements import value_set, wrap_method
from graphdist.keras.replica_batch import ReplicaBatch, current_replica_batch
from graphdist.strategies.current import get_replica_context

_are_summed: ContextVar[bool] = ContextVar("graphdist_keras_gradients_are_summed", default=False)


def summed(grads: Any) -> Any:
    """Return gradients summed over the replicas. A gradient that is None stays None."""
    present = {index: grad for index, grad in enumerate(grads) if grad is not None}
    sums = get_replica_context().all_reduce("SUM", present)
    return [sums.get(index) for index in range(len(grads))]


def are_gradients_summed() -> bool:
    """Return whether an optimizer is applying gradients that are summed already."""
    return _are_summed.get()


def sum_gradients_of_replicas() -> None:
    """Make the optimizers of Keras sum gradients over the replicas that apply them."""
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        wrap_method(kind, "apply", _apply)
        wrap_method(kind, "stateless_apply", _stateless_apply)
        wrap_method(kind, "scale_loss", _scale_loss)


def _apply(
    original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    if not _is_to_sum():
        return original(optimizer, grads, trainable_variables)
    with value_set(_are_summed, True):
        return original(optimizer, summed(list(grads)), trainable_variables)


def _stateless_apply(
    original: Callable[..., Any],
    optimizer: Any,
    optimizer_variables: Any,
    grads: Any,
    trainable_variables: Any,
) -> Any:
    if not _is_to_sum():
        return original(optimizer, optimizer_variables, grads, trainable_variables)
    batch = current_replica_batch()
    if batch is not None:
        grads = [_of_the_global_batch(grad, batch) for grad in grads]
        batch.are_gradients_applied = True
    with value_set(_are_summed, True):
        return original(optimizer, optimizer_variables, summed(list(grads)), trainable_variables)


def _of_the_global_batch(grad: Any, batch: ReplicaBatch) -> Any:
    """Return the replica's part of a gradient of the global batch."""
    if grad is None:
        return None
    if not batch.share_of_rows:  # `grad` is computed from a row of zeros, and may be nan
        return jnp.zeros_like(grad)
    return grad if batch.is_loss_scaled else grad * jnp.asarray(batch.share_of_rows, grad.dtype)


def _scale_loss(original: Callable[..., Any], optimizer: Any, loss: Any) -> Any:
    """Scale a loss as the optimizer does, and in a step of `fit` by the replica's share of rows.

    Layers that sum over the replicas then propagate gradients of the global batch. If a custom
    `train_step` does not call this method, `stateless_apply` multiplies the gradients.
    """
    scaled, batch = original(optimizer, loss), current_replica_batch()
    if batch is None:
        return scaled
    batch.is_loss_scaled = True
    return scaled * jnp.asarray(batch.share_of_rows, scaled.dtype)


def _is_to_sum() -> bool:
    return in_replica_context_of_a_run() and not _are_summed.get()


_are_added: ContextVar[bool] = ContextVar("graphdist_keras_losses_are_added", default=False)


def divided(loss: Any) -> Any:
    """Return a loss divided by the number of replicas, because its gradients will be summed.

    In steps of `fit`, and outside replica functions, return the unchanged loss.
    """
    if current_replica_batch() is not None or not in_replica_context_of_a_run():
        return loss
    replicas = num_replicas_running()
    return loss if replicas == 1 else loss / jnp.asarray(replicas, loss.dtype)


def scale_losses_of_replicas() -> None:
    """Scale losses of Keras that are means, and the scalars that its metrics average."""
    wrap_method(keras.Loss, "__call__", _loss)
    wrap_method(keras.Model, "compute_loss", _loss_of_a_model)
    wrap_method(keras.Model, "losses", _added_losses)
    wrap_method(keras.metrics.Mean, "update_state", _update_weighted)


def _loss(original: Callable[..., Any], loss: Any, *args: Any, **kwargs: Any) -> Any:
    value, batch = original(loss, *args, **kwargs), current_replica_batch()
    if loss.reduction == "sum" and batch is not None and batch.share_of_rows:
        return value / batch.share_of_rows  # cancels the multiplication in `_scale_loss`
    return value if loss.reduction in (None, "none", "sum") else divided(value)


def _loss_of_a_model(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with value_set(_are_added, True):
        return original(*args, **kwargs)


def _added_losses(original: Callable[[Any], Any], model: Any) -> Any:
    added = original(model)
    return [divided(loss) for loss in added] if _are_added.get() else added


def _update_weighted(
    original: Callable[..., Any], mean: Any, values: Any, sample_weight: Any = None
) -> Any:
    batch = current_replica_batch()
    if batch is not None and sample_weight is None and np.ndim(values) == 0:
        sample_weight = batch.share_of_rows
    return original(mean, values, sample_weight)
