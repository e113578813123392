"""Gradients of Keras models on replicas: scaled to the global batch, and summed over the replicas.

Every optimizer of Keras gets its gradients in `apply` or `stateless_apply`. Keras has no hook for
either, so `sum_gradients_of_replicas` wraps them. Clipping, accumulation and loss scaling then see
the sum.

A replica's loss is a mean over its rows. So the gradient of the global batch is the sum of the
replicas' gradients, each times the replica's share of the rows, also where replicas have different
numbers of rows. In steps of `fit` they are scaled in `stateless_apply`, which every `train_step`
for the JAX backend calls, a custom one too. A loss with reduction "sum" needs no scaling: its rows
are weighted by one over the share.

While a step is traced, functions in the `__dict__` of the optimizer and of the model replace their
methods of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any  # Any: arrays and objects of Keras

import jax
import jax.numpy as jnp
import keras

from graphdist.context import in_replica_context_of_a_run
from graphdist.strategies.current import get_replica_context


class ScaledGradients:
    """Scales the gradients that an optimizer sums over the replicas, while a step is traced."""

    def __init__(self, optimizer: Any, share: float) -> None:
        """Take the optimizer and this replica's share of the rows."""
        self._kind, self._optimizer, self._share = type(optimizer), optimizer, share
        self._is_loss_scaled = False
        self.was_called = False

    def scale_loss(self, loss: Any) -> Any:
        """Scale a loss to the replica's share of the global batch.

        Layers that sum over the replicas then propagate gradients of the global batch. A custom
        `train_step` may leave the loss as it is: then the gradients are scaled.
        """
        self._is_loss_scaled = True
        scaled = self._kind.scale_loss(self._optimizer, loss)
        return scaled * jnp.asarray(self._share, scaled.dtype)

    def stateless_apply(
        self, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        """Apply the gradients of the global batch."""
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
        if not self._share:  # computed from a row of zeros: it may be nan
            return jnp.zeros_like(grad)
        return grad if self._is_loss_scaled else grad * jnp.asarray(self._share, grad.dtype)


@contextmanager
def replaced(owner: Any, **functions: Callable[..., Any] | None) -> Iterator[None]:
    """Replace methods of one object in a `with` block; None keeps a method."""
    own = vars(owner)
    new = {name: function for name, function in functions.items() if function is not None}
    before = {name: own[name] for name in new if name in own}
    own.update(new)
    try:
        yield
    finally:
        for name in new:
            del own[name]
        own.update(before)


def loss_with_sums(model: keras.Model, share: float) -> Callable[..., Any] | None:
    """Return the replacement of `model.compute_loss`; None if no loss of the model is a sum.

    `share` is the replica's share of the rows.
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


_KINDS = (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer)
_are_summed: ContextVar[bool] = ContextVar("graphdist_keras_gradients_are_summed", default=False)


def summed(grads: Any) -> Any:
    """Return gradients summed over the replicas; a missing one stays None."""
    present = {index: grad for index, grad in enumerate(grads) if grad is not None}
    sums = get_replica_context().all_reduce("SUM", present)
    return [sums.get(index) for index in range(len(grads))]


@contextmanager
def gradients_summed() -> Iterator[None]:
    """Let optimizers take gradients that are summed already, in a `with` block."""
    token = _are_summed.set(True)
    try:
        yield
    finally:
        _are_summed.reset(token)


def are_gradients_summed() -> bool:
    """Return whether an optimizer is at work on gradients that are summed already."""
    return _are_summed.get()


def sum_gradients_of_replicas() -> None:
    """Make the optimizers of Keras sum gradients over the replicas that apply them."""
    for kind in _KINDS:
        for method, wrap in (("apply", _apply), ("stateless_apply", _stateless_apply)):
            original = vars(kind).get(method) or getattr(kind, method)
            if not vars(original).get("sums_gradients"):
                wrapped = wrap(original)
                vars(wrapped)["sums_gradients"] = True
                setattr(kind, method, wrapped)


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if not _is_to_sum():
            return original(self, grads, trainable_variables)
        with gradients_summed():
            return original(self, summed(list(grads)), trainable_variables)

    return apply


def _stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def stateless_apply(
        self: Any, optimizer_variables: Any, grads: Any, trainable_variables: Any
    ) -> Any:
        if not _is_to_sum():
            return original(self, optimizer_variables, grads, trainable_variables)
        with gradients_summed():
            return original(self, optimizer_variables, summed(list(grads)), trainable_variables)

    return stateless_apply


def _is_to_sum() -> bool:
    return in_replica_context_of_a_run() and not _are_summed.get()
