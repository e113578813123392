"""Losses in chunks: what a step computes with them, and what is told where there are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any  # Any: arrays and distributed values

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.loops import Scan
from graphdist.ir.operation_table import factors_of
from graphdist.ir.ops import SCAN
from graphdist.passes import pipeline, pipelines
from graphdist.passes.order import compute_in_chunks
from graphdist.passes.order.compute_in_chunks import ComputeInChunks
from tests.passes.execution import check_same_meaning

ROWS, LENGTH, WIDTH, CLASSES = 4, 8, 4, 32
STRATEGY = gd.MirroredStrategy(["cpu:0", "cpu:1"])
SHARDED = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters=True)
PASS = ComputeInChunks(largest=1024)
Loss = Callable[[Any, Any, Any], Any]


def loss_of(hidden: Any, weights: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ weights, labels).mean()


def printed(hidden: Any, weights: Any, labels: Any) -> Any:
    loss = loss_of(hidden, weights, labels)
    jax.debug.print("loss {}", loss)
    return loss


def of_next(hidden: Any, weights: Any, labels: Any) -> Any:
    scores = (hidden @ weights)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels[:, 1:]).mean()


def with_accuracy(hidden: Any, weights: Any, labels: Any) -> Any:
    scores = hidden @ weights
    right = jnp.mean(jnp.argmax(jax.lax.stop_gradient(scores), axis=-1) == labels)
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean() + 0 * right


def training(strategy: gd.Strategy, loss: Loss, microbatches: int = 1) -> Callable[[], Any]:
    """Return a function that runs three steps and returns losses and weights."""
    numbers = np.random.default_rng(0)
    with strategy.scope():
        weights = gd.Variable(numbers.standard_normal((WIDTH, CLASSES)).astype("f"))
    batch = (
        numbers.standard_normal((2 * ROWS, LENGTH, WIDTH)).astype("f"),
        numbers.integers(0, CLASSES, (2 * ROWS, LENGTH)).astype("i"),
    )
    (batch,) = strategy.experimental_distribute_dataset([batch])

    def replica_fn(hidden: Any, labels: Any) -> Any:
        def of_microbatch(part: Any) -> Any:
            value, gradient = jax.value_and_grad(loss, argnums=1)(part[0], weights[...], part[1])
            return value, gd.get_replica_context().all_reduce("MEAN", gradient)

        accumulated = gd.accumulate(of_microbatch, microbatches)
        value, gradient = accumulated((hidden, labels))
        weights.assign_sub(0.5 * gradient)
        return value

    @gd.function
    def step(batch: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(replica_fn, args=batch), axis=None)

    def run() -> Any:
        losses = [float(step(batch)) for _ in range(3)]
        return losses, np.asarray(weights.value()), str(step.trace(batch).lower().graph)

    return run


@pytest.mark.parametrize("loss", [loss_of, of_next, printed, with_accuracy])
@pytest.mark.parametrize("strategy", [STRATEGY, SHARDED])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_training_is_the_same(
    strategy: gd.Strategy, loss: Loss, microbatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses, weights, text = training(strategy, loss, microbatches)()
    assert "take_part" not in text
    monkeypatch.setattr(pipelines, "LARGEST_CHUNK", 1024 // pipelines.MORE_ON_CPUS)
    in_chunks, of_chunks, text = training(strategy, loss, microbatches)()
    assert "take_part" in text
    np.testing.assert_allclose(in_chunks, losses, rtol=1e-5)
    np.testing.assert_allclose(of_chunks, weights, rtol=1e-5, atol=1e-6)


def test_a_loss_is_found_from_the_nodes_of_its_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer has scores of its own, and the rows of the batch pass through all layers."""

    @jax.checkpoint
    def layer(x: Any, w: Any) -> Any:
        scores = jnp.einsum("nqd,nkd->nqk", x @ w, x)
        return x + jnp.einsum("nqk,nkd->nqd", jax.nn.softmax(scores), x) @ w

    def loss(x: Any, w: Any) -> Any:
        for _ in range(8):
            x = layer(x, w)
        return jnp.sum(x)

    def factors(node: Any) -> Any:
        asked.append(node)
        return factors_of(node)

    asked: list[Any] = []
    step = gd.function(jax.grad(loss)).trace(jnp.ones((3, 32, 4)), jnp.ones((4, 4)))
    graph = step.lower().graph
    monkeypatch.setattr(compute_in_chunks, "factors_of", factors)
    assert ComputeInChunks(largest=4096)(graph) is not graph
    assert len(asked) < 40 * len(graph.nodes), (len(asked), len(graph.nodes))


def test_a_value_beside_the_rows_is_computed_once() -> None:
    """A barrier, as of `jax.checkpoint`, takes values with rows and values without any."""

    def tail(scores: Any, others: Any) -> Any:
        return jnp.mean(jax.nn.logsumexp(scores, 1) ** 2) + jnp.sum(jnp.sin(jnp.sin(others)))

    def loss(hidden: Any, weights: Any, others: Any) -> Any:
        return jax.checkpoint(tail)(hidden @ weights, others)

    numbers = np.random.default_rng(0)
    args = [numbers.standard_normal(shape).astype("f") for shape in ((32, 4), (4, 32), (4,))]
    graph = gd.function(jax.grad(loss, argnums=(0, 1, 2))).trace(*args).lower().graph
    check_same_meaning(graph, PASS(graph), "beside", to_the_bit=False)


def lowered(loss: Loss, rows: int = ROWS) -> Any:
    """Return the graph of a loss with its gradients, as the pass takes it."""
    shapes = (rows, LENGTH, WIDTH), (WIDTH, CLASSES)
    hidden, weights = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    labels = jax.ShapeDtypeStruct((rows, LENGTH), jnp.int32)
    before = tuple(takewhile(lambda entry: entry.name != "compute_in_chunks", pipeline("cpu")))
    step = gd.function(jax.value_and_grad(loss, argnums=(0, 1)), passes=before)
    return step.trace(hidden, weights, labels).lower().graph


def test_the_fewest_chunks_that_are_small_enough() -> None:
    (loop,) = (node for node in PASS(lowered(loss_of)).nodes if node.op is SCAN)
    assert Scan(loop).length == 4  # of 4,096 bytes


def with_biases(x: Any, w: Any, b: Any) -> Any:
    return jax.nn.gelu(x @ w + b) @ w.T


def gated(x: Any, w: Any, b: Any) -> Any:
    return (jax.nn.silu(x @ w + b) * (x @ (2 * w))) @ w.T


def gated_in_one(x: Any, w: Any, b: Any) -> Any:
    up, gate = jnp.split(x @ w + b, 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ w[:, : CLASSES // 2].T


@pytest.mark.parametrize("layer", [with_biases, gated, gated_in_one])
@pytest.mark.parametrize("is_replayed", [False, True])
@pytest.mark.parametrize("is_scanned", [False, True])
def test_a_layer_with_large_hidden_values_is_no_loss(
    layer: Loss, is_replayed: bool, is_scanned: bool
) -> None:
    layer = jax.checkpoint(layer) if is_replayed else layer

    def loss(x: Any, w: Any, b: Any) -> Any:
        if is_scanned:
            x, _ = jax.lax.scan(lambda x, p: (x + layer(x, *p), None), x, (w, b))
        else:
            x = x + layer(x, w[0], b[0])
        return jnp.mean(x**2)

    shapes = (ROWS, LENGTH, WIDTH), (3, WIDTH, CLASSES), (3, CLASSES)
    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    graph = gd.function(jax.grad(loss, argnums=(0, 1, 2))).trace(*args).lower().graph
    assert PASS(graph) is graph


@pytest.mark.parametrize(
    ("loss", "rows", "why"),
    [
        (lambda h, w, y: loss_of(h, w, y) ** 2, ROWS, "not computed in chunks"),
        (
            lambda h, w, y: optax.softmax_cross_entropy_with_integer_labels(
                (h @ w)[:, ::2], y[:, ::2]
            ).mean(),
            1,
            "jax.slice at .* needs all rows",
        ),
        (lambda h, w, y: jnp.max(jnp.cumsum((h @ w).ravel())), 1, "needs all rows"),
    ],
)
def test_a_product_that_is_computed_at_once_is_told(loss: Loss, rows: int, why: str) -> None:
    graph, run = lowered(loss, rows), ComputeInChunks(largest=256)
    assert run(graph) is graph
    (reason, *_) = run.declined(graph)
    assert reason.startswith(f"{rows * LENGTH * CLASSES * 4:,} bytes at ")
    assert re.search(why, reason), reason
