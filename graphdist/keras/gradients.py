"""Losses and gradients on replicas: scaled to the global batch, gradients summed over the replicas.

Every optimizer of Keras gets its gradients in `apply` or `stateless_apply`. Keras has no hook for
either, so `sum_gradients_of_replicas` wraps them. Clipping, accumulation and loss scaling then see
the sum.

A replica's loss is a mean over its rows. So the gradient of the global batch is the sum of the
replicas' gradients, each multiplied by the replica's share of the rows. Replicas may have different
numbers of rows. In steps of `fit` the gradients are multiplied by the share in `stateless_apply`,
which every `train_step` for the JAX backend calls, a custom one too. A loss with reduction "sum"
must not be scaled: the weights of its rows are divided by the share, which cancels the factor.

While a step is traced, functions in the `__dict__` of the optimizer and of the model replace their
methods of the same name.

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

import jax
import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import in_replica_context_of_a_run, num_replicas_running
from graphdist.keras.replacements import value_set, wrap_method
from graphdist.keras.replica_batch import current_replica_batch
from graphdist.strategies.current import get_replica_context


class ScaledGradients:
    """Scales the gradients that an optimizer sums over the replicas, while a step is traced."""

    def __init__(self, optimizer: Any, share: float) -> None:
        """Take the optimizer and this replica's share of the rows."""
        self._kind, self._optimizer, self._share = type(optimizer), optimizer, share
        self._is_loss_scaled = False
        self.was_called = False

    def scale_loss(self, loss: Any) -> Any:
        """Scale a loss as the optimizer does, and multiply it by the replica's share of the rows.

        Layers that sum over the replicas then propagate gradients of the global batch. If a custom
        `train_step` does not call this method, `stateless_apply` multiplies the gradients.
        """
        self._is_loss_scaled = True
        scaled = self._kind.scale_loss(self._optimizer, loss)
        return scaled * jnp.asarray(self._share, scaled.dtype)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Apply the replica's gradients, multiplied by its share of the rows."""
        self.was_called = True
        return self._kind.stateless_apply(
            self._optimizer,
            optimizer_variables,
            [self._scaled(grad) for grad in grads],
            trainable_variables,
        )

    def _scaled(self, grad: Any) -> Any:
        if grad is None:
            return None
        if not self._share:  # `grad` is computed from a row of zeros, and may be nan
            return jnp.zeros_like(grad)
        return grad if self._is_loss_scaled else grad * jnp.asarray(self._share, grad.dtype)


def loss_with_sums(model: keras.Model, share: float) -> Callable[..., Any] | None:
    """Return a replacement of `model.compute_loss` that cancels the scaling of losses by sum.

    `share` is the replica's share of the rows. Returns None if `share` is 0, or no loss of the
    model is a sum.
    """
    losses = [loss for loss in keras.tree.flatten(model.loss) if loss is not None]
    if not any(_is_sum(loss) for loss in losses) or not share:
        return None
    compute_loss = model.compute_loss

    def compute(
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        outputs = keras.tree.flatten(y_pred)
        weights = keras.tree.flatten(sample_weight)
        weights = weights if len(weights) == len(outputs) else weights[:1] * len(outputs)
        weights = weights or [None] * len(outputs)
        kinds = losses if len(losses) == len(outputs) else losses[:1] * len(outputs)
        scaled = [
            _weights_over_share(weight, output, share) if _is_sum(kind) else weight
            for weight, output, kind in zip(weights, outputs, kinds, strict=True)
        ]
        packed = keras.tree.pack_sequence_as(y_pred, scaled)
        return compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=packed, training=training)

    return compute


def _is_sum(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == "sum"


def _weights_over_share(weight: Any, output: jax.Array, share: float) -> jax.Array:
    """Return the weights of an output's rows, divided by the replica's share of the rows."""
    weight = jnp.ones(output.shape[:1], output.dtype) if weight is None else weight
    return jnp.asarray(weight) / share


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
    with value_set(_are_summed, True):
        return original(optimizer, optimizer_variables, summed(list(grads)), trainable_variables)


def _is_to_sum() -> bool:
    return in_replica_context_of_a_run() and not _are_summed.get()


_are_added: ContextVar[bool] = ContextVar("graphdist_keras_losses_are_added", default=False)


def divided(loss: Any) -> Any:
    """Return a loss divided by the number of replicas, because its gradients will be summed.

    In steps of `fit`, and outside replica functions, return the loss as it is.
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
    value = original(loss, *args, **kwargs)
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
