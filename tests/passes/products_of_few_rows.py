"""Steps with products of few rows: their losses, and what trains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.passes import pipelines
from graphdist.passes.cores.rows_of_replicas import NAME
from graphdist.program.stages import Lowered

WIDTH, CLASSES, ROWS = 64, 4096, 16
NUMBERS = np.random.default_rng(0)

Losses = Callable[[Any, Any], Any]
"""A function of parameters and a batch that returns the losses of the rows."""


def divide_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide small products, too."""
    monkeypatch.setattr(pipelines, "MORE_SAVED_ON_CPUS", 1)
    monkeypatch.setattr(pipelines, "FEWEST_SHARDED", 2**18)


def normal(*shape: int) -> np.ndarray:
    return NUMBERS.normal(0, 0.1, shape).astype("f")


def integers(end: int, *shape: int) -> np.ndarray:
    return NUMBERS.integers(0, end, shape).astype(np.int32)


SGD = optax.sgd(0.5, momentum=0.9)


def trained(
    losses: Losses,
    params: Any,
    batch: Any,
    strategy: gd.Strategy,
    optimizer: optax.GradientTransformation = SGD,
) -> tuple[Lowered, Any, float]:
    """Train for two steps; return the lowered step, the trained parameters and the last loss."""
    with strategy.scope():
        variables: Any = gd.variables(params)
        slots = gd.variables(optimizer.init(params))

    @gd.function
    def step(batch: Any) -> Any:
        def replica_fn(batch: Any) -> Any:
            def loss(params: Any) -> Any:
                return gd.nn.compute_average_loss(losses(params, batch))

            value, gradient = jax.value_and_grad(loss)(gd.read(variables))
            gradient = gd.get_replica_context().all_reduce("SUM", gradient)
            updates, new = optimizer.update(gradient, gd.read(slots), gd.read(variables))
            gd.assign(slots, new)
            gd.assign(variables, optax.apply_updates(gd.read(variables), updates))
            return value

        return strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)

    (distributed,) = strategy.experimental_distribute_dataset([batch])
    for _ in range(2):
        value = float(step(distributed))
    new = jax.tree.map(np.asarray, gd.read(variables))
    return step.trace(distributed).lower(), new, value


def alone(
    losses: Losses,
    params: Any,
    batch: Any,
    optimizer: optax.GradientTransformation = SGD,
) -> tuple[Any, float]:
    """Return the parameters that JAX trains for two steps on one device, and the last loss."""

    @jax.jit
    def step(params: Any, slots: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda params: jnp.mean(losses(params, batch)))(params)
        updates, slots = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), slots, value

    slots = optimizer.init(params)
    for _ in range(2):
        params, slots, value = step(params, slots)
    return params, float(value)


def sent_by(lowered: Lowered) -> int:
    """Return the bytes of the collectives of a step."""
    return sum(each.bytes for each in lowered.collectives)


def strategy_of(replicas: int, shards: bool | int = True) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], shard_parameters=shards)


def of_labels(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def head(losses: Losses) -> Losses:
    """Return losses of the logits of a head, of which the first operand is the batch's rows."""

    def of(params: Any, batch: Any) -> Any:
        return losses(jnp.tanh(batch[0] @ params["body"]) @ params["head"], batch[1])

    return of


def one_hot(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, CLASSES))


def smoothed(logits: Any, labels: Any) -> Any:
    targets = optax.smooth_labels(jax.nn.one_hot(labels, CLASSES), 0.1)
    return optax.softmax_cross_entropy(logits, targets)


def taken(logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def indexed(logits: Any, labels: Any) -> Any:
    return -jax.nn.log_softmax(logits)[jnp.arange(labels.shape[0]), labels]


def with_z_loss(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + 1e-2 * jax.nn.logsumexp(logits, axis=-1) ** 2


def with_squares(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + jnp.mean(logits**2)


def with_hits(logits: Any, labels: Any) -> Any:
    return of_labels(logits, labels) + (jnp.argmax(logits, axis=-1) == labels)


def among_the_best(logits: Any, labels: Any) -> Any:
    _, best = jax.lax.top_k(jax.lax.stop_gradient(logits), 5)
    return of_labels(logits, labels) + jnp.any(best == labels[:, None], axis=-1)


def of_each(logits: Any, labels: Any) -> Any:
    return jax.vmap(lambda row, label: jax.nn.logsumexp(row) - row[label])(logits, labels)


def recomputed(params: Any, batch: Any) -> Any:
    return jax.checkpoint(head(of_labels))(params, batch)


def narrow(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch[0] @ params["body"]).astype(jnp.bfloat16)
    logits = hidden @ params["head"].astype(jnp.bfloat16)
    return of_labels(logits.astype(jnp.float32), batch[1])


def with_bias(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ params["head"] + params["bias"], batch[1])


def of_rows(params: Any, batch: Any) -> Any:
    return of_labels(jnp.einsum("bd,vd->bv", batch[0], params["table"]), batch[1])


def tied(params: Any, batch: Any) -> Any:
    words, labels = batch
    return of_labels(jnp.tanh(params["table"][words]) @ params["table"].T, labels)


def next_words(params: Any, batch: Any) -> Any:
    (words,) = batch
    logits = jnp.tanh(params["table"][words]) @ params["head"]
    return jnp.mean(of_labels(logits[:, :-1], words[:, 1:]), axis=-1)


def masked(params: Any, batch: Any) -> Any:
    rows, labels = batch
    mask = (labels % 3 > 0).astype(jnp.float32)
    return of_labels(rows @ params["head"], labels) * mask


def with_temperature(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ params["head"] / params["temperature"], batch[1])


def with_margins(params: Any, batch: Any) -> Any:
    rows, labels = batch
    rows = rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    weights = params["head"] / jnp.linalg.norm(params["head"], axis=0)
    margins = 0.3 * jax.nn.one_hot(labels, CLASSES)
    return of_labels(16 * (rows @ weights - margins), labels)


def of_targets(params: Any, batch: Any) -> Any:
    logits = batch[0] @ params["head"]
    return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, batch[1]), axis=-1)


def of_layers(params: Any, batch: Any) -> Any:
    hidden = jax.nn.gelu(batch[0] @ params["in"])
    return jnp.sum((hidden @ params["out"] - batch[0]) ** 2, axis=-1)


def of_two_heads(params: Any, batch: Any) -> Any:
    teacher = jax.nn.softmax(jax.lax.stop_gradient(batch[0] @ params["teacher"]))
    return optax.softmax_cross_entropy(batch[0] @ params["head"], teacher)


def of_several(params: Any, batch: Any) -> Any:
    logits = jnp.einsum("bd,hdv->bhv", batch[0], params["heads"])
    return of_labels(logits, jnp.stack([batch[1], batch[1] + 1], 1) % 2048).sum(1)


def with_decay(params: Any, batch: Any) -> Any:
    losses = head(of_labels)(params, batch)
    return losses + 1e-2 * sum(jnp.sum(each**2) for each in jax.tree.leaves(params))


def of_unit_norm(params: Any, batch: Any) -> Any:
    return of_labels(batch[0] @ (4 * params["head"] / jnp.linalg.norm(params["head"])), batch[1])


def of_two_batches(params: Any, batch: Any) -> Any:
    """Return losses as of real and of generated rows, with the same weights."""
    real, generated = (jax.nn.relu(rows @ params["head"]) for rows in (batch[0], batch[0] ** 2))
    return jax.nn.softplus(-real.mean(-1)) + jax.nn.softplus(generated.mean(-1))


def of_two_views(params: Any, batch: Any) -> Any:
    views = (jax.nn.log_softmax(rows @ params["head"]) for rows in (batch[0], batch[0] ** 2))
    one, other = views
    return jnp.sum(jnp.exp(one) * (one - other), axis=-1)


FEATURES = normal(ROWS, WIDTH)
LABELS = integers(CLASSES, ROWS)
BODY = {"body": normal(WIDTH, WIDTH), "head": normal(WIDTH, CLASSES)}
HEAD = {"head": normal(WIDTH, CLASSES)}
TABLE = {"table": normal(CLASSES, WIDTH)}

PROGRAMS: dict[str, tuple[Losses, Any, Any]] = {
    "labels": (head(of_labels), BODY, (FEATURES, LABELS)),
    "one hot": (head(one_hot), BODY, (FEATURES, LABELS)),
    "smoothed": (head(smoothed), BODY, (FEATURES, LABELS)),
    "taken": (head(taken), BODY, (FEATURES, LABELS)),
    "indexed": (head(indexed), BODY, (FEATURES, LABELS)),
    "z loss": (head(with_z_loss), BODY, (FEATURES, LABELS)),
    "squares": (head(with_squares), BODY, (FEATURES, LABELS)),
    "hits": (head(with_hits), BODY, (FEATURES, LABELS)),
    "among the best": (head(among_the_best), BODY, (FEATURES, LABELS)),
    "of each": (head(of_each), BODY, (FEATURES, LABELS)),
    "recomputed": (recomputed, BODY, (FEATURES, LABELS)),
    "narrow": (narrow, BODY, (FEATURES, LABELS)),
    "bias": (with_bias, {**HEAD, "bias": normal(CLASSES)}, (FEATURES, LABELS)),
    "rows": (of_rows, TABLE, (FEATURES, LABELS)),
    "tied": (tied, TABLE, (LABELS, LABELS[::-1].copy())),
    "next words": (next_words, {**TABLE, **HEAD}, (integers(CLASSES, ROWS // 2, 8),)),
    "masked": (masked, HEAD, (FEATURES, LABELS)),
    "temperature": (with_temperature, {**HEAD, "temperature": np.float32(2)}, (FEATURES, LABELS)),
    "margins": (with_margins, HEAD, (FEATURES, LABELS)),
    "targets": (of_targets, HEAD, (FEATURES, (normal(ROWS, CLASSES) > 0).astype("f"))),
    "layers": (
        of_layers,
        {"in": normal(WIDTH, CLASSES), "out": normal(CLASSES, WIDTH)},
        (FEATURES, LABELS),
    ),
    "two heads": (of_two_heads, {**HEAD, "teacher": normal(WIDTH, CLASSES)}, (FEATURES, LABELS)),
    "decay": (with_decay, BODY, (FEATURES, LABELS)),
    "unit norm": (of_unit_norm, HEAD, (FEATURES, LABELS)),
    "two batches": (of_two_batches, HEAD, (FEATURES, LABELS)),
    "two views": (of_two_views, HEAD, (FEATURES, LABELS)),
    "several": (of_several, {"heads": normal(2, WIDTH, CLASSES // 2)}, (FEATURES, LABELS)),
}


def is_divided(lowered: Lowered) -> bool:
    return any(step.name == NAME and step.changed for step in lowered.explain().steps)
