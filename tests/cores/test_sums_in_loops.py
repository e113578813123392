"""Terms that loops add up: they are reduced once behind the loop, unless it reads their sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir import ops
from graphdist.ir.analyses import walk
from tests.cores.training import strategy_on

CORES = 2
WIDTH = 8
STEPS = 4

Split = Callable[[jax.Array], jax.Array]


def loss(split: Split, weights: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.tanh(split(x) @ weights) ** 2)


def microbatches(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(sums: Any, x: jax.Array) -> Any:
        found = jax.value_and_grad(partial(loss, split))(weights, x)
        return jax.tree.map(jnp.add, sums, found), None

    return lax.scan(body, (jnp.float32(0), jnp.zeros_like(weights)), xs)[0]


def microbatches_by_index(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(i: jax.Array, total: jax.Array) -> jax.Array:
        return total + jax.grad(partial(loss, split))(weights, xs[i])

    return lax.fori_loop(0, STEPS, body, jnp.zeros_like(weights))


def accumulated(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    of_microbatch = jax.value_and_grad(partial(loss, split))
    return gd.accumulate(of_microbatch, STEPS)(weights, xs.reshape(-1, *xs.shape[2:]))


def chunks_of_a_loss(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def of_all(weights: jax.Array) -> jax.Array:
        @jax.checkpoint
        def body(total: jax.Array, x: jax.Array) -> Any:
            return total + loss(split, weights, x), None

        return lax.scan(body, jnp.float32(0), xs)[0]

    return jax.value_and_grad(of_all)(weights)


def one_weight_in_all_layers(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def of_all(weights: jax.Array) -> jax.Array:
        layers = lax.scan(lambda x, _: (jnp.tanh(x @ weights), None), split(xs[0]), None, STEPS)
        return jnp.mean(layers[0] ** 2)

    return jax.grad(of_all)(weights)


def loops_in_a_loop(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(total: jax.Array, x: jax.Array) -> Any:
        return total + one_weight_in_all_layers(split, weights, x[None]), None

    return lax.scan(body, jnp.zeros_like(weights), xs)[0]


def decaying_sum(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(total: jax.Array, x: jax.Array) -> Any:
        return 0.5 * total - jax.grad(partial(loss, split))(weights, x) / STEPS, None

    return lax.scan(body, jnp.zeros_like(weights), xs)[0]


def narrow_gradients(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(total: jax.Array, x: jax.Array) -> Any:
        found = jax.grad(partial(loss, split))(weights.astype(jnp.bfloat16), x.astype(jnp.bfloat16))
        return total + found.astype(jnp.float32) / STEPS, None

    return lax.scan(body, jnp.zeros_like(weights), xs)[0]


def updates_in_the_loop(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(carry: Any, x: jax.Array) -> Any:
        weights, momentum = carry
        momentum = 0.9 * momentum + jax.grad(partial(loss, split))(weights, x)
        return (weights - momentum, momentum), None

    return lax.scan(body, (weights, jnp.zeros_like(weights)), xs)[0]


def norms_of_sums(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(total: jax.Array, x: jax.Array) -> Any:
        total += jax.grad(partial(loss, split))(weights, x)
        return total, jnp.sum(total**2)

    return lax.scan(body, jnp.zeros_like(weights), xs)


def largest(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(most: jax.Array, x: jax.Array) -> Any:
        return jnp.maximum(most, jnp.max(split(x) @ weights, axis=(0, 1))), None

    return lax.scan(body, jnp.zeros(WIDTH), xs)[0]


def sums_of_a_while_loop(split: Split, weights: jax.Array, xs: jax.Array) -> Any:
    def body(carry: Any) -> Any:
        i, total = carry
        return i + 1, total + jax.grad(partial(loss, split))(weights, xs[i])

    start = (jnp.int32(0), jnp.zeros_like(weights))
    return lax.while_loop(lambda carry: carry[0] < STEPS, body, start)[1]


ONCE = (
    microbatches, microbatches_by_index, accumulated, chunks_of_a_loss, one_weight_in_all_layers,
    loops_in_a_loop, decaying_sum, narrow_gradients,
)  # fmt: skip
IN_EACH_ITERATION = (updates_in_the_loop, norms_of_sums, largest)
INSIDE = (sums_of_a_while_loop,)
"""Those that are reduced in the loop, whose number of iterations is not known."""


@pytest.mark.parametrize(
    "program", ONCE + IN_EACH_ITERATION + INSIDE, ids=lambda each: str(each.__name__)
)
def test_terms_are_reduced_once_behind_a_loop(program: Callable[..., Any]) -> None:
    numbers = np.random.default_rng(0)
    weights = numbers.normal(size=(WIDTH, WIDTH)).astype(np.float32)
    xs = numbers.normal(size=(STEPS, 6, 16, WIDTH)).astype(np.float32)
    strategy = strategy_on(1, CORES)

    def split(x: jax.Array) -> jax.Array:
        return strategy.experimental_split_to_logical_devices(x, [1, CORES, 1])

    step = gd.function(lambda *args: strategy.run(partial(program, split), args=args))
    wanted = jax.jit(partial(program, lambda x: x))(weights, xs)
    tolerance = 2e-2 if program is narrow_gradients else 1e-5
    for mine, theirs in zip(
        jax.tree.leaves(step(weights, xs)), jax.tree.leaves(wanted), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance / 10)
    lowered = step.trace(weights, xs).lower()
    times = {each.times for each in lowered.collectives if each.kind == "all_reduce_over_cores"}
    assert times == ({STEPS} if program in IN_EACH_ITERATION else {1})
    behind = {node.op for node in lowered.graph.nodes} & {ops.ALL_REDUCE_OVER_CORES}
    assert bool(behind) == (program in ONCE)


def test_sums_of_sharded_parameters_stay_in_shards() -> None:
    strategy = strategy_on(1, CORES)
    with strategy.scope():
        weights = gd.Variable(np.eye(WIDTH, dtype=np.float32), cores=(None, "sharded"))

    def replica_fn(xs: jax.Array) -> None:
        def split(x: jax.Array) -> jax.Array:
            return strategy.experimental_split_to_logical_devices(x, [1, CORES, 1])

        _, gradients = microbatches(split, weights.read_value(), xs)
        weights.assign_sub(gradients)

    step = gd.function(lambda xs: strategy.run(replica_fn, args=(xs,)))
    lowered = step.trace(np.ones((STEPS, 6, 16, WIDTH), np.float32)).lower()
    shapes = [
        value.type.shape
        for node in walk(lowered.graph)
        if node.op is ops.SCAN
        for value in node.results
    ]
    assert (WIDTH, WIDTH // CORES) in shapes
    assert (WIDTH, WIDTH) not in shapes


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_what_a_loop_only_moves_is_not_reduced(dtype: str) -> None:
    strategy = strategy_on(1, CORES)

    def replica_fn(x: jax.Array) -> Any:
        x = strategy.experimental_split_to_logical_devices(x, [1, CORES])

        def body(carry: Any, _: Any) -> Any:
            moved, x = carry
            return (jnp.reshape(moved[None], ()), jnp.tanh(x)), None

        moved, x = lax.scan(body, (jnp.zeros((), dtype), x), None, STEPS)[0]
        return moved, jnp.sum(x)

    step = gd.function(lambda x: strategy.run(replica_fn, args=(x,)))
    x = np.ones((2, WIDTH), np.float32)
    moved, total = step(x)
    assert (moved, moved.dtype) == (0, dtype)
    np.testing.assert_allclose(total, 16 * np.tanh(np.tanh(np.tanh(np.tanh(1)))), rtol=1e-5)
    (sent,) = step.trace(x).lower().collectives
    assert (sent.kind, sent.size, sent.dtype) == ("all_reduce_over_cores", 1, "f32")
