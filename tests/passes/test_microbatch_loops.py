"""Products of few rows in loops over microbatches: computed on shards, with equal results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.program.stages import Lowered
from tests.passes.products_of_few_rows import (
    BODY,
    CLASSES,
    FEATURES,
    HEAD,
    LABELS,
    WIDTH,
    Losses,
    divide_small_products,
    head,
    is_divided,
    normal,
    of_labels,
    of_two_batches,
    recomputed,
    strategy_of,
    with_bias,
    with_decay,
)


@pytest.fixture(autouse=True)
def _small_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    divide_small_products(monkeypatch)


Gradient = Callable[[Any, Any], Any]
"""A function of parameters and a batch that returns the gradient."""
PARTS = 2


def accumulated(gradient: Gradient) -> Gradient:
    """Return the mean gradient of microbatches, each reduced."""

    def reduced(params: Any, part: Any) -> Any:
        return gd.get_replica_context().all_reduce("MEAN", gradient(params, part))

    return gd.accumulate(reduced, PARTS)


def reduced_after(gradient: Gradient) -> Gradient:
    def of(params: Any, batch: Any) -> Any:
        total = gd.accumulate(gradient, PARTS)(params, batch)
        return gd.get_replica_context().all_reduce("MEAN", total)

    return of


def scanned(gradient: Gradient) -> Gradient:
    """Return what a loop of the user's own makes, which reduces a sum of narrow gradients."""

    def of(params: Any, batch: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(lambda t, g: t + g / PARTS, total, gradient(params, part)), None

        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), batch)
        total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), parts)
        return gd.get_replica_context().all_reduce("MEAN", total)

    return of


def counted(gradient: Gradient) -> Gradient:
    def of(params: Any, batch: Any) -> Any:
        def add(number: Any, total: Any) -> Any:
            size = batch[0].shape[0] // PARTS
            part = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, number * size, size), batch
            )
            new = gd.get_replica_context().all_reduce("MEAN", gradient(params, part))
            return jax.tree.map(lambda t, g: t + g / PARTS, total, new)

        return jax.lax.fori_loop(0, PARTS, add, jax.tree.map(jnp.zeros_like, params))

    return of


def by_jax(losses: Losses) -> Losses:
    """Return losses whose products JAX has in one loop, and their gradients in another."""

    def of(params: Any, batch: Any) -> Any:
        parts = jax.tree.map(lambda x: x.reshape(PARTS, -1, *x.shape[1:]), batch)
        return jax.lax.map(lambda part: losses(params, part), parts).reshape(-1)

    return of


def of_two_products(params: Any, batch: Any) -> Any:
    hidden = jnp.tanh(batch[0] @ params["in"])
    return of_labels(hidden @ params["head"], batch[1])


LAYERS = {"in": normal(WIDTH, CLASSES), "head": normal(CLASSES, 2 * CLASSES)}


def descended(
    losses: Losses, params: Any, replicas: int, loop: Callable[[Gradient], Gradient], shards: bool
) -> tuple[Lowered, Any]:
    """Return a lowered step and the parameters that it makes with the gradient of a loop."""
    strategy = strategy_of(replicas, shards)
    with strategy.scope():
        variables: Any = gd.variables(params)

    @gd.function
    def step(batch: Any) -> None:
        def replica_fn(batch: Any) -> None:
            gradient = jax.grad(lambda params, part: jnp.mean(losses(params, part)))
            held = gd.read(variables)
            change = loop(gradient)(held, batch)
            gd.assign(variables, jax.tree.map(lambda p, g: p - g, held, change))

        strategy.run(replica_fn, args=(batch,))

    (batch,) = strategy.experimental_distribute_dataset([(FEATURES, LABELS)])
    step(batch)
    return step.trace(batch).lower(), jax.tree.map(np.asarray, gd.read(variables))


def expected_descent(losses: Losses, params: Any) -> Any:
    gradient = jax.grad(lambda params: jnp.mean(losses(params, (FEATURES, LABELS))))(params)
    return jax.tree.map(lambda p, g: p - g, params, gradient)


@pytest.mark.parametrize("shards", [True, False], ids=["sharded", "mirrored"])
@pytest.mark.parametrize("loop", [accumulated, reduced_after, scanned, counted])
@pytest.mark.parametrize(
    ("losses", "params"),
    [
        pytest.param(head(of_labels), BODY, id="labels"),
        pytest.param(recomputed, BODY, id="recomputed"),
        pytest.param(with_bias, {**HEAD, "bias": normal(CLASSES)}, id="bias"),
        pytest.param(of_two_batches, HEAD, id="two batches"),
        pytest.param(of_two_products, LAYERS, id="two products"),
    ],
)
def test_microbatches_are_computed_on_shards(
    losses: Losses, params: Any, loop: Callable[[Gradient], Gradient], shards: bool
) -> None:
    """Neither weights nor gradients are sent, in the loop or beside it."""
    lowered, new = descended(losses, params, 4, loop, shards)
    expected = expected_descent(losses, params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), new, expected)
    assert is_divided(lowered)
    assert sum(each.times * each.bytes for each in lowered.collectives) < HEAD["head"].nbytes // 2


@pytest.mark.parametrize("losses", [with_decay, by_jax(head(of_labels))], ids=["decay", "map"])
def test_weights_of_loops_stay_unsharded_where_products_are_not_divided(losses: Losses) -> None:
    """The decay uses the weights for more than products.

    Columns would be gathered and reduced, which takes longer than rows.
    """
    lowered, new = descended(losses, BODY, 4, accumulated, shards=False)
    expected = expected_descent(losses, BODY)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5), new, expected)
    assert not is_divided(lowered)
    assert {each.sharded_along for each in lowered.graph.variables} == {None}
