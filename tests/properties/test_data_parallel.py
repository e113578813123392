"""The data-parallel law: on shards of a batch, what one device does on the whole batch.

The mean of the gradients of a mean loss is the gradient of the mean loss of the whole batch, and
gradients taken across `run` and `reduce` or `gather` are those of plain JAX on the concatenated
batch. Losses are random programs over small integers. What is divided by 3 is no integer, and the
mean of means is rounded elsewhere than the mean of all: hence a tolerance of some ulps.
"""

from __future__ import annotations

from functools import cache
from typing import Any  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from tests.properties.exact import SIZE, Array, Kind, random_arrays
from tests.properties.programs import Maker
from tests.properties.steps import Body

TOLERANCE = 1e-5
WEIGHTS: tuple[Kind, ...] = (("f32", 2), ("f32", 1))
EXAMPLE: tuple[Kind, ...] = (("f32", 1), ("i32", 0))


@cache
def strategy_of(num_replicas: int) -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{number}" for number in range(num_replicas)])


@st.composite
def losses(draw: st.DrawFn) -> Body:
    """Draw the loss of one example: a program of weights and of the example."""
    maker = Maker(draw, (*WEIGHTS, *EXAMPLE), 1, in_reverse=True)
    maker.dot()
    maker.grow(1, 6)
    return maker.finished([maker.of(("f32", 0))])


def mean_loss(loss: Body, weights: Any, batch: Any) -> Array:
    return jnp.mean(of_each(loss, weights, batch))


def of_each(loss: Body, weights: Any, batch: Any) -> Array:
    """Return the loss of each example."""
    return jax.vmap(lambda *example: loss(*weights, *example)[0])(*batch)


class Batch:
    """Random weights, and a batch whole and in shards."""

    def __init__(self, num_replicas: int, seed: int) -> None:
        self.strategy = strategy_of(num_replicas)
        self.weights = random_arrays(WEIGHTS, seed)
        grown = [(dtype, rank + 1) for dtype, rank in EXAMPLE]
        shards = [random_arrays(grown, seed, replica) for replica in range(num_replicas)]
        self.whole = [jnp.concatenate(parts) for parts in zip(*shards, strict=True)]
        self.shards = self.strategy.experimental_distribute_values_from_function(
            lambda context: shards[context.replica_id_in_sync_group]
        )


def check_close(given: Any, expected: Any, loss: Body) -> None:
    # In bfloat16 the rows of each replica are rounded, and 1/n is, before they come together.
    tolerance = 1e-2 if "bf16" in str(loss) else TOLERANCE
    for one, other in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        largest = np.abs(other).max(initial=1)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


replicas, seeds = st.integers(1, 4), st.integers(0, 9)


@pytest.mark.long
@given(losses(), replicas, seeds)
def test_the_mean_of_gradients_is_the_gradient_of_the_mean(
    loss: Body, num_replicas: int, seed: int
) -> None:
    batch = Batch(num_replicas, seed)

    def replica_fn(weights: Any, shard: Any) -> Any:
        value, gradient = jax.value_and_grad(mean_loss, 1)(loss, weights, shard)
        return gd.get_replica_context().all_reduce("MEAN", (value, gradient))

    step = gd.function(lambda *inputs: batch.strategy.run(replica_fn, inputs))
    results = step(batch.weights, batch.shards)
    given = jax.tree.map(lambda leaf: leaf.values[-1], results) if num_replicas > 1 else results
    plain = jax.jit(jax.value_and_grad(lambda weights: mean_loss(loss, weights, batch.whole)))
    check_close(given, plain(batch.weights), loss)


@pytest.mark.long
@given(losses(), replicas, seeds)
def test_gradients_across_run(loss: Body, num_replicas: int, seed: int) -> None:
    batch = Batch(num_replicas, seed)
    strategy = batch.strategy
    scale = jnp.arange(SIZE * num_replicas, dtype=jnp.float32)

    def replica_fn(weights: Any, shard: Any) -> Any:
        each = of_each(loss, weights, shard)
        return each, jnp.mean(each)

    def total(weights: Any, shards: Any) -> Array:
        each, mean = strategy.run(replica_fn, (weights, shards))
        gathered = jnp.sum(strategy.gather(each, 0) * scale)
        summed = strategy.reduce("SUM", each, 0)
        return gathered + 2 * strategy.reduce("MEAN", mean, None) + 3 * summed

    def plain(weights: Any) -> Array:
        each = of_each(loss, weights, batch.whole)
        return jnp.sum(each * scale) + 2 * jnp.mean(each) + 3 * jnp.sum(each)

    given = gd.function(jax.value_and_grad(total))(batch.weights, batch.shards)
    check_close(given, jax.jit(jax.value_and_grad(plain))(batch.weights), loss)
