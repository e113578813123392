"""Losses of Keras in the user's own loop: their sum over the replicas is the global loss.

A loss that is a mean is divided by the number of replicas in a replica function, as Keras does on
TensorFlow: gradients are summed over the replicas. The steps of `fit` know how many rows each
replica has, and scale by that instead (`gradients.py`). Keras has no hook for losses, so that
`divide_losses_by_replicas` wraps `keras.Loss.__call__`. `keras.Model.compute_loss` adds the losses
of regularizers and of `add_loss`, which it finds in `losses`: both are wrapped too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any  # Any: arrays

import jax.numpy as jnp
import keras

from graphdist.context import in_replica_context_of_a_run, num_replicas_running
from graphdist.keras.parts import current_part

_are_added: ContextVar[bool] = ContextVar("graphdist_keras_losses_are_added", default=False)


def divided(loss: Any) -> Any:
    """Return a replica's part of a loss that counts once, not once a replica."""
    if current_part() is not None or not in_replica_context_of_a_run():
        return loss
    replicas = num_replicas_running()
    return loss if replicas == 1 else loss / jnp.asarray(replicas, loss.dtype)


def divide_losses_by_replicas() -> None:
    """Make the losses of Keras that are means count once in replica functions."""
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
        found = original.fget(self)
        return [divided(loss) for loss in found] if _are_added.get() else found

    return property(losses)
