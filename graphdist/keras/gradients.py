"""Makes the step of a Keras model, run by a replica on its rows, a step for the global batch.

A replica's loss is a mean over its rows. So the gradient of the global batch is the sum of the
replicas' gradients, each times the replica's share of the rows; that is exact where replicas have
different numbers of rows. It is scaled where the optimizer gets it and sums it (`optimizers.py`):
in `stateless_apply`, which every `train_step` for the JAX backend calls, a custom one too.

A loss with reduction "sum" adds up rows. Weights of its rows undo the share.

While a step is traced, functions in the `__dict__` of the optimizer and of the model stand for the
methods of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any  # Any: arrays and objects of Keras

import jax
import jax.numpy as jnp
import keras


class ScaledGradients:
    """Scales the gradients that an optimizer sums over the replicas, while a step is traced."""

    def __init__(self, optimizer: Any, share: float) -> None:
        """Take the share that this replica has of the rows."""
        self._kind, self._optimizer, self._share = type(optimizer), optimizer, share
        self._is_loss_scaled = False
        self.was_called = False

    def scale_loss(self, loss: Any) -> Any:
        """Scale a loss to the replica's share of the global batch.

        Layers that add up over the replicas then pass on gradients of the global batch. A custom
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
        if not self._share:  # of a row that is no row: it may be nan
            return jnp.zeros_like(grad)
        return grad if self._is_loss_scaled else grad * jnp.asarray(self._share, grad.dtype)


@contextmanager
def replaced(owner: Any, **functions: Callable[..., Any] | None) -> Iterator[None]:
    """Let functions stand for methods of one object; None leaves a method."""
    own = vars(owner)
    given = {name: function for name, function in functions.items() if function is not None}
    before = {name: own[name] for name in given if name in own}
    own.update(given)
    try:
        yield
    finally:
        for name in given:
            del own[name]
        own.update(before)


def loss_with_sums(model: keras.Model, share: float) -> Callable[..., Any] | None:
    """Return what stands for `model.compute_loss`, None if no loss of the model is a sum.

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
        given = keras.tree.flatten(sample_weight)
        weights = given if len(given) == len(outputs) else given[:1] * len(outputs)
        weights = weights or [None] * len(outputs)
        kinds = losses if len(losses) == len(outputs) else losses[:1] * len(outputs)
        scaled = [
            _undone(weight, output, share) if _is_sum(kind) else weight
            for weight, output, kind in zip(weights, outputs, kinds, strict=True)
        ]
        packed = keras.tree.pack_sequence_as(y_pred, scaled)
        return compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=packed, training=training)

    return compute


def _is_sum(loss: Any) -> bool:
    return getattr(loss, "reduction", None) == "sum"


def _undone(weight: Any, output: jax.Array, share: float) -> jax.Array:
    """Return the weights of an output's rows, divided by the replica's share of the rows."""
    weight = jnp.ones(output.shape[:1], output.dtype) if weight is None else weight
    return jnp.asarray(weight) / share
