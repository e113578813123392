"""Steps whose largest values are the scores of a loss, [rows, length, classes], in usual forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias  # Any: arrays, and distributed values

import jax
import jax.numpy as jnp
import optax

import graphdist as gd
from graphdist.ir.graph import Graph

ROWS, LENGTH, CLASSES = 2, 8, 24
WIDTHS = 4, 12
"""With the second the weights are larger than the scores."""
Loss: TypeAlias = Callable[[Any, Any], Any]
"""Takes scores [rows, length, classes] and labels [rows, length]; returns losses by row."""


def by_hand(scores: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - chosen


def of_one_hot(scores: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy(scores, jax.nn.one_hot(labels, CLASSES))


def smoothed(scores: Any, labels: Any) -> Any:
    targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)
    return -jnp.sum(targets * jax.nn.log_softmax(scores), axis=-1)


def with_square(scores: Any, labels: Any) -> Any:
    return by_hand(scores, labels) + 1e-2 * jax.nn.logsumexp(scores, axis=-1) ** 2


LOSSES: dict[str, Loss] = {
    "optax": optax.softmax_cross_entropy_with_integer_labels,
    "by hand": by_hand,
    "one hot": of_one_hot,
    "smoothed": smoothed,
    "with the square of the normalizer": with_square,
}
SCORES: dict[str, Callable[[Any], Any]] = {
    "as they are": lambda scores: scores,
    "capped": lambda scores: 3 * jnp.tanh(scores / 3),
    "moved": lambda scores: scores + jnp.arange(CLASSES, dtype=jnp.float32) / CLASSES,
    "without a column": lambda scores: jnp.where(jnp.arange(CLASSES) == 1, -1e9, scores),
}
MEANS: dict[str, Callable[[Any, Any], Any]] = {
    "of all": lambda losses, labels: jnp.mean(losses),
    "of some": lambda losses, labels: jnp.sum(losses * (labels > 3)) / jnp.sum(labels > 3),
    "of rows": lambda losses, labels: jnp.mean(jnp.sum(losses, axis=1) / losses.shape[1]),
}
AROUND: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "nothing": lambda loss: loss,
    "checkpoint": jax.checkpoint,
    "vmap": lambda loss: (
        lambda hidden, weights, labels: jnp.mean(
            jax.vmap(lambda h, y: loss(h[None], weights, y[None]))(hidden, labels)
        )
    ),
}

PREDICTED: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "at each": lambda scores, labels: (scores, labels),
    "the next": lambda scores, labels: (scores[:, :-1], labels[:, 1:]),
    "of the middle": lambda scores, labels: (scores[:, 1:-1], labels[:, 2:]),
}

FORMS = LOSSES, SCORES, MEANS, AROUND, PREDICTED
"""The choices for the first arguments of `traced`."""


def traced(
    loss: str,
    scores: str,
    mean: str,
    around: str,
    predicted: str,
    dtype: str,
    width: int,
    tied: bool,
) -> Graph:
    """Return the graph of a step that returns a loss and the gradients of both operands."""

    def loss_of(hidden: Any, weights: Any, labels: Any) -> Any:
        product = (hidden @ (weights.T if tied else weights)).astype(jnp.float32)
        product, labels = PREDICTED[predicted](product, labels)
        losses = LOSSES[loss](SCORES[scores](product), labels)
        return MEANS[mean](losses, labels)

    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])

    def replica_fn(hidden: Any, weights: Any, labels: Any) -> Any:
        differentiated = jax.value_and_grad(AROUND[around](loss_of), argnums=(0, 1))
        # Labels of the example are any integers.
        value, (of_hidden, of_weights) = differentiated(hidden, weights, labels % CLASSES)
        return value, of_hidden, gd.get_replica_context().all_reduce("MEAN", of_weights)

    step = gd.function(lambda *args: strategy.run(replica_fn, args=args))
    shape = (CLASSES, width) if tied else (width, CLASSES)
    with strategy.scope():
        return step.trace(
            gd.PerReplicaSpec((ROWS, LENGTH, width), dtype),
            jax.ShapeDtypeStruct(shape, dtype),
            gd.PerReplicaSpec((ROWS, LENGTH), jnp.int32),
        ).graph
