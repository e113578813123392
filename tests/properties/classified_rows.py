"""Steps that classify rows of a batch, in the forms in which programs say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any  # Any: arrays

import jax
import jax.numpy as jnp

import graphdist as gd
from graphdist.ir.graph import Graph

Logits = Callable[[Any, Any], Any]
"""Takes rows [.., width] and weights [width, classes]; returns logits [.., classes]."""
Loss = Callable[[Any, Any], Any]
"""Takes logits and labels; returns a number, or numbers for the rows."""


def normalized(rows: Any, weights: Any) -> Any:
    lengths = jnp.sqrt(jnp.sum(weights**2, axis=0) + 1)
    return 4 * (rows @ (weights / lengths))


def in_layers(rows: Any, weights: Any) -> Any:
    hidden = jax.nn.gelu(rows @ weights)
    return hidden @ (weights.T @ weights) / weights.shape[1]


def narrow(rows: Any, weights: Any) -> Any:
    logits = rows.astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16)
    return logits.astype(jnp.float32)


def of_own_rows(rows: Any, weights: Any) -> Any:
    """Return logits divided by what only the replica's own rows say."""
    logits = rows @ weights
    return logits / (1 + jnp.mean(logits**2))


LOGITS: dict[str, Logits] = {
    "product": lambda rows, weights: rows @ weights,
    "einsum": lambda rows, weights: jnp.einsum("vd,...d->...v", weights.T, rows),
    "activated": lambda rows, weights: jnp.tanh(rows @ jnp.exp(weights)),
    "shifted": lambda rows, weights: rows @ weights + jnp.arange(weights.shape[1]) / 8,
    "cut": lambda rows, weights: (rows @ weights)[..., : weights.shape[1] - 2],
    "recomputed": jax.checkpoint(lambda rows, weights: jnp.sin(rows @ weights)),
    "in layers": in_layers,
    "narrow": narrow,
    "normalized": normalized,
    "of own rows": of_own_rows,
    "of unit norm": lambda rows, weights: rows @ (weights / jnp.sqrt(1 + jnp.sum(weights**2))),
    "twice": lambda rows, weights: (rows @ weights) * (jnp.cos(rows) @ weights),
}


def of_labels(logits: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def indexed(logits: Any, labels: Any) -> Any:
    rows = jax.nn.log_softmax(logits).reshape(-1, logits.shape[-1])
    return -rows[jnp.arange(rows.shape[0]), labels.reshape(-1)]


def of_each(logits: Any, labels: Any) -> Any:
    flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    return jax.vmap(lambda row, label: jax.nn.logsumexp(row) - row[label])(*flat)


def smoothed(logits: Any, labels: Any) -> Any:
    targets = 0.9 * jax.nn.one_hot(labels, logits.shape[-1]) + 0.1 / logits.shape[-1]
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1)


def of_the_best(logits: Any, labels: Any) -> Any:
    values, best = jax.lax.top_k(logits, 2)
    return jnp.sum(values * (best == labels[..., None]))


LOSSES: dict[str, Loss] = {
    "labels": of_labels,
    "indexed": indexed,
    "of each": of_each,
    "smoothed": smoothed,
    "the best": of_the_best,
    "hits": lambda logits, labels: of_labels(logits, labels) * (jnp.argmax(logits, -1) != labels),
    "margin": lambda logits, labels: jnp.max(logits, axis=-1) - jnp.min(logits, axis=-1),
    "squares": lambda logits, labels: jnp.mean(logits**2),
    "masked": lambda logits, labels: of_labels(logits, labels) * (labels > 1) / (1 + labels.sum()),
    "sorted": lambda logits, labels: jnp.sort(logits, axis=-1)[..., 1],
    "cumulative": lambda logits, labels: jnp.cumsum(logits, axis=-1)[..., 2],
    "of the batch": lambda logits, labels: jnp.max(logits, axis=0),
}
CLASSES: Sequence[int] = (8, 64, 96, 7)
ROWS: Sequence[tuple[int, ...]] = ((3,), (1,), (1, 3), (2, 2), (4, 1))


@dataclass(frozen=True)
class Program:
    """The names of logits and loss, and the shape of the rows of a microbatch.

    `is_by_class` says whether the weights have a row for each class.
    """

    logits: str
    loss: str
    classes: int
    rows: tuple[int, ...]
    is_by_class: bool
    microbatches: int = 1
    decay: float = 0


def traced(program: Program, reducer: str, strategy: gd.Strategy) -> Graph:
    """Return the graph of a step that moves weights by the loss of a batch's rows."""
    classes = program.classes
    shape = (classes, 4) if program.is_by_class else (4, classes)
    with strategy.scope():
        weights: Any = gd.variables(jax.ShapeDtypeStruct(shape, jnp.float32))

    def replica_fn(batch: Any, labels: Any) -> Any:
        def reduced(part: Any) -> Any:
            def loss_of(weights: Any) -> Any:
                rows, labels = part
                found = LOGITS[program.logits](rows, weights.T if program.is_by_class else weights)
                losses = LOSSES[program.loss](found, jnp.abs(labels) % (classes - 2))
                return jnp.mean(losses) + program.decay * jnp.sum(weights**2)

            value, gradient = jax.value_and_grad(loss_of)(weights[...])
            return value, gd.get_replica_context().all_reduce(reducer, gradient)

        step = gd.accumulate(reduced, program.microbatches) if program.microbatches > 1 else reduced
        value, gradient = step((batch, labels))
        weights.assign(weights[...] - 0.1 * gradient)
        return value

    step = gd.function(lambda *given: strategy.run(replica_fn, args=given))
    rows = program.microbatches * program.rows[0], *program.rows[1:]
    given = gd.PerReplicaSpec((*rows, 4), jnp.float32), gd.PerReplicaSpec(rows, jnp.int32)
    with strategy.scope():
        return step.trace(*given).graph
