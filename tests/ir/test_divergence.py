"""What makes a value differ is found through loops, branches and cells."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.divergence import cause
from graphdist.ir.graph import Graph
from graphdist.passes.logical.infer_layouts import infer_layouts


def scanned(x: jax.Array) -> jax.Array:
    # The carry enters mirrored, and is per replica from the second step on.
    return jax.lax.scan(lambda carry, row: (carry + row, None), jnp.zeros(()), x)[0]


def looped(x: jax.Array) -> jax.Array:
    # The value is a count: only how often the body runs differs.
    return jax.lax.while_loop(
        lambda c: c[1] < x[0], lambda c: (c[0] + 1, c[1] + 1), (jnp.zeros(()), 0.0)
    )[0]


def unlooped(x: jax.Array) -> jax.Array:
    # The body forgets what enters, but it may never run.
    return jax.lax.while_loop(lambda c: c < 0.0, lambda c: jnp.float32(1), x[0])


def branched(x: jax.Array) -> jax.Array:
    return jax.lax.cond(x[0] > 0, lambda: jnp.float32(1), lambda: jnp.float32(2))


def in_a_branch(x: jax.Array) -> jax.Array:
    return jax.lax.cond(jnp.bool_(True), lambda: x.sum(), lambda: jnp.float32(2))


def in_a_cell(x: jax.Array) -> jax.Array:
    cell = jax.new_ref(jnp.zeros(3))
    cell[...] = x
    return cell[...] + 1


def inferred(replica_fn: Callable[..., jax.Array]) -> Graph:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
    x = strategy.experimental_distribute_values_from_function(lambda _: np.ones(3, np.float32))
    traced = gd.function(lambda x: strategy.run(replica_fn, args=(x,))).trace(x)
    return infer_layouts(traced.graph)


@pytest.mark.parametrize(
    "replica_fn", [scanned, looped, unlooped, branched, in_a_branch, in_a_cell]
)
def test_the_input_is_found(replica_fn: Callable[..., jax.Array]) -> None:
    graph = inferred(replica_fn)
    assert cause(graph, graph.outputs[0]).text == "the per-replica input 'x'"


def test_a_mirrored_value_has_no_cause() -> None:
    graph = inferred(lambda x: gd.get_replica_context().all_reduce("SUM", x))
    assert cause(graph, graph.outputs[0]).text == ""
