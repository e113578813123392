"""Losses of Keras in replica functions, and means of scalars, scaled to a replica's share.

A loss that is a mean is divided by the number of replicas in a replica function, as Keras does on
TensorFlow: gradients are summed over the replicas. The steps of `fit` know how many rows each
replica has, and scale by that instead (`gradients.py`). Keras has no hook for losses, so that
`divide_losses_by_replicas` wraps `keras.Loss.__call__`. `keras.Model.compute_loss` adds the losses
of regularizers and of `add_loss`, which it finds in `losses`: both are wrapped too.

`keras.metrics.Mean`, and every metric that is made of a function, counts rows if it gets a value
for each row. A scalar, such as the loss that a custom `train_step` passes on, is a mean over rows
and counts once for each batch. In steps of `fit` each replica has a scalar for its part of the
batch: these are weighted by the parts' shares of the rows, which add up to one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any  # Any: arrays

import jax.numpy as jnp
import keras
import numpy as np

from graphdist.context import in_replica_context_of_a_run, num_replicas_running
from graphdist.keras.parts import current_part

_are_added: ContextVar[bool] = ContextVar("graphdist_keras_losses_are_added", default=False)


def divided(loss: Any) -> Any:
    """Return a loss divided by the number of replicas, over which its gradients are summed."""
    if current_part() is not None or not in_replica_context_of_a_run():
        return loss
    replicas = num_replicas_running()
    return loss if replicas == 1 else loss / jnp.asarray(replicas, loss.dtype)


def divide_losses_by_replicas() -> None:
    """Divide losses of Keras that are means by the number of replicas, in replica functions."""
    if not vars(keras.Loss.__call__).get("divides_by_replicas"):
        keras.Loss.__call__ = _dividing(keras.Loss.__call__)
        keras.Model.compute_loss = _adding(keras.Model.compute_loss)
        keras.Model.losses = _dividing_added(keras.Model.losses)


def _dividing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, *args, **kwargs)
        return loss if self.reduction in (None, "none", "sum") else divided(loss)

    vars(call)["divides_by_replicas"] = True
    return call


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def compute_loss(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _are_added.set(True)
        try:
            return original(self, *args, **kwargs)
        finally:
            _are_added.reset(token)

    return compute_loss


def _dividing_added(original: Any) -> property:
    @wraps(original.fget)
    def losses(self: Any) -> Any:
        added = original.fget(self)
        return [divided(loss) for loss in added] if _are_added.get() else added

    return property(losses)


def weigh_scalars_by_rows() -> None:
    """Weight a replica's scalar in `keras.metrics.Mean` by its share of the rows."""
    kind = keras.metrics.Mean
    if not vars(kind.update_state).get("weighs_by_rows"):
        kind.update_state = _weighing(kind.update_state)
        vars(kind.update_state)["weighs_by_rows"] = True


def _weighing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        part = current_part()
        if part is not None and sample_weight is None and np.ndim(values) == 0:
            sample_weight = part.share
        return original(self, values, sample_weight)

    return update_state
