"""Replicas of unequal batch sizes, zero among them, against one device on the whole batch.

What the replicas compute of their rows, reduce, gather and differentiate must be what plain JAX
computes of the concatenated rows: values, gradients inside the replica function and gradients taken
across `run` and `reduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import graphdist as gd
from tests.properties.effort import programs
from tests.properties.exact import Array, random_arrays
from tests.properties.steps import Body
from tests.properties.test_data_parallel import (
    EXAMPLE,
    TOLERANCE,
    WEIGHTS,
    check_close,
    losses,
    of_each,
    strategy_of,
)

SIZES = st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(any)
WIDTH = 3


def split(strategy: gd.Strategy, whole: Any, sizes: Sequence[int]) -> Any:
    ends = np.cumsum(sizes)
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.asarray(whole)[
            ends[context.replica_id_in_sync_group] - sizes[context.replica_id_in_sync_group] :
        ][: sizes[context.replica_id_in_sync_group]]
    )


@pytest.mark.long
@programs(6)  # each compiles a function of up to eight classes
@given(losses(), SIZES, st.integers(0, 2**16))
def test_losses_of_unequal_batches(loss: Body, sizes: Sequence[int], seed: int) -> None:
    strategy = strategy_of(len(sizes))
    weights = random_arrays(WEIGHTS, seed)
    rows = [random_arrays(EXAMPLE, seed, row) for row in range(sum(sizes))]
    batch = tuple(np.stack(leaves) for leaves in zip(*rows, strict=True))
    parts = tuple(split(strategy, leaf, sizes) for leaf in batch)

    def total(weights: Any, batch: Any) -> Array:
        return jnp.sum(of_each(loss, weights, batch))

    @gd.function
    def step(weights: Any, *batch: Any) -> Any:
        def replica_fn(weights: Any, *batch: Any) -> Any:
            value_and_gradient = jax.value_and_grad(total)(weights, batch)
            return gd.get_replica_context().all_reduce("SUM", value_and_gradient)

        def mean(weights: Any) -> Array:
            of_replicas = strategy.run(
                lambda weights, *batch: of_each(loss, weights, batch), args=(weights, *batch)
            )
            return strategy.reduce("MEAN", of_replicas, axis=0)

        inside = strategy.run(replica_fn, args=(weights, *batch))
        gathered = [strategy.gather(leaf, 0) for leaf in batch]
        return strategy.experimental_local_results(inside)[-1], jax.grad(mean)(weights), gathered

    inside, across, gathered = step(weights, *parts)
    check_close(inside, jax.value_and_grad(total)(weights, batch), loss)
    by_hand = jax.grad(lambda weights: total(weights, batch) / sum(sizes))(weights)
    check_close(across, by_hand, loss)
    jax.tree.map(np.testing.assert_array_equal, gathered, list(batch))


def close(ours: Array, expected: Array) -> None:
    scale = max(1.0, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(ours, expected, rtol=TOLERANCE, atol=TOLERANCE * scale)


Stage = Callable[[Array, Array, Any], Array]
"""A stage of a program: of the rows, a weight, and what the rows of all replicas give together."""


class Alone:
    """One device: its rows are all rows."""

    def all_reduce(self, reduce_op: str, value: Array) -> Array:
        return value

    def all_gather(self, value: Array, axis: int) -> Array:
        return value


def dense(x: Array, w: Array, together: Any) -> Array:
    return jnp.tanh(x @ w)


def normalised(x: Array, w: Array, together: Any) -> Array:
    count = together.all_reduce("SUM", jnp.float32(x.shape[0]))
    mean = together.all_reduce("SUM", x.sum(0)) / count
    variance = together.all_reduce("SUM", ((x - mean) ** 2).sum(0)) / count
    return (x - mean) * lax.rsqrt(variance + 1) @ w


def attended(x: Array, w: Array, together: Any) -> Array:
    keys = together.all_gather(x @ w, axis=0)
    return jax.nn.softmax(x @ keys.T) @ keys


def repeated(x: Array, w: Array, together: Any) -> Array:
    def body(carry: Array, scale: Array) -> tuple[Array, Array]:
        # A tenth: the sum of all rows alone would make a last bit a thousand times larger.
        moved = carry + 0.1 * scale * together.all_reduce("SUM", (carry @ w).sum(0))
        return jnp.tanh(moved), moved.sum()

    return lax.scan(body, x, jnp.array([0.5, 0.25]))[0]


def chosen(x: Array, w: Array, together: Any) -> Array:
    # Of squares: the plain sum of what is normalised is rounding alone, which would choose.
    total = together.all_reduce("SUM", (x**2).sum())
    return lax.cond(
        total > 3, lambda: x - 0.1 * together.all_reduce("SUM", (x @ w).sum(0)), lambda: x @ w
    )


STAGES = st.lists(
    st.sampled_from([dense, normalised, attended, repeated, chosen]), min_size=1, max_size=3
)


@pytest.mark.long
@programs(8)
@given(STAGES, SIZES, st.integers(0, 2**16))
def test_programs_that_meet(stages: Sequence[Stage], sizes: Sequence[int], seed: int) -> None:
    strategy = strategy_of(len(sizes))
    random = np.random.default_rng(seed)
    whole = jnp.asarray(random.standard_normal((sum(sizes), WIDTH)), jnp.float32)
    weights = [jnp.asarray(random.standard_normal((WIDTH, WIDTH)) / 2, jnp.float32) for _ in stages]

    def program(x: Array, weights: Sequence[Array], together: Any) -> Array:
        for stage, w in zip(stages, weights, strict=True):
            x = stage(x, w, together)
        return x

    def loss(x: Array, weights: Sequence[Array], together: Any) -> Array:
        return (program(x, weights, together) ** 2).sum()

    def replica_fn(x: Array, weights: Sequence[Array]) -> Any:
        context = gd.get_replica_context()
        by_rows, by_weights = jax.grad(loss, argnums=(0, 1))(x, weights, context)
        return program(x, weights, context), by_rows, context.all_reduce("SUM", by_weights)

    @gd.function
    def step(x: Any, weights: Sequence[Array]) -> Any:
        values, by_rows, by_weights = strategy.run(replica_fn, args=(x, weights))
        first = strategy.experimental_local_results(by_weights)[0]
        return strategy.gather(values, 0), strategy.gather(by_rows, 0), first

    ours = step(split(strategy, whole, sizes), weights)
    by_rows, by_weights = jax.grad(loss, argnums=(0, 1))(whole, weights, Alone())
    jax.tree.map(close, ours, (program(whole, weights, Alone()), by_rows, by_weights))
