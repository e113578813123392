"""Sums of scaled reductions, in loops and out of them: fewer collectives, the same numbers.

Values are small integers and factors powers of two, so that no order of additions rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.cost import trip_count
from graphdist.ir.graph import Graph
from graphdist.passes import pipeline
from graphdist.passes.manager import Pass, run_passes
from tests.passes.execution import execute
from tests.properties.effort import programs

Term: TypeAlias = Callable[[Any, Any], Any]

STRATEGY = gd.MirroredStrategy([f"cpu:{i}" for i in range(4)])
SHAPE = (2, 3)


def reduced(kind: str) -> Term:
    def term(x: Any, shared: Any) -> Any:
        return gd.get_replica_context().all_reduce(kind, x)

    return term


def own(x: Any, shared: Any) -> Any:
    return x * 1


def scaled(inner: Term, factor: float, how: str) -> Term:
    def term(x: Any, shared: Any) -> Any:
        value = inner(x, shared)
        return value / factor if how == "div" else value * factor if how == "mul" else -value

    return term


def by_shared(inner: Term) -> Term:
    return lambda x, shared: inner(x, shared) * shared


def by_own(inner: Term) -> Term:
    """Multiply by what differs between replicas: the product is not what any reduction gives."""
    return lambda x, shared: inner(x, shared) * jnp.sign(x)


def turned(inner: Term) -> Term:
    return lambda x, shared: inner(x.T, shared.T).T


def reduced_after(inner: Term, kind: str) -> Term:
    return lambda x, shared: gd.get_replica_context().all_reduce(kind, inner(x, shared))


def added(left: Term, right: Term, sign: int) -> Term:
    return lambda x, shared: left(x, shared) + sign * right(x, shared)


KINDS = st.sampled_from(["SUM", "MEAN"])
FACTORS = st.sampled_from([0.25, 0.5, 2.0, 4.0])
LEAVES = st.one_of(KINDS.map(reduced), st.just(own))
TERMS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(scaled, inner, FACTORS, st.sampled_from(["mul", "div", "neg"])),
        st.builds(by_shared, inner),
        st.builds(by_own, inner),
        st.builds(turned, inner),
        st.builds(reduced_after, inner, KINDS),
        st.builds(added, inner, inner, st.sampled_from([1, -1])),
    ),
    max_leaves=5,
)


def in_a_loop(term: Term) -> Term:
    def accumulated(x: Any, shared: Any) -> Any:
        def body(total: Any, turn: Any) -> Any:
            return total + term(x * turn, shared), None

        return jax.lax.scan(body, jnp.ones(SHAPE), jnp.arange(1.0, 4.0))[0]

    return accumulated


def count(graph: Graph) -> int:
    """Return how many collectives a replica runs, those of a loop once a turn."""
    total = 0
    for node in graph.nodes:
        turns = trip_count(node)
        total += node.op.is_collective + turns * sum(map(count, node.graphs))
    return total


def lowered(graph: Graph, passes: Sequence[Pass]) -> Graph:
    return run_passes(graph, passes)[-1].graph


@pytest.mark.long
@programs(400)
@given(TERMS, st.booleans(), st.integers(0, 99))
def test_fewer_collectives_and_the_same_numbers(term: Term, loops: bool, seed: int) -> None:
    numbers = np.random.default_rng(seed)
    x = [numbers.integers(-8, 9, SHAPE).astype("f") for _ in range(4)]
    shared = numbers.integers(-2, 3, SHAPE).astype("f")
    body = in_a_loop(term) if loops else term

    @gd.function
    def function(x: Any, shared: Any) -> Any:
        return STRATEGY.run(body, args=(x, shared))

    with STRATEGY.scope():
        specs = gd.PerReplicaSpec(SHAPE, jnp.float32), jax.ShapeDtypeStruct(SHAPE, jnp.float32)
        traced = function.trace(*specs)
    held = [x, [shared] * 4]
    expected = execute(traced.graph, held, {})
    plain = lowered(traced.graph, pipeline("cpu", allow_reassociation=False))
    joined = lowered(traced.graph, pipeline("cpu"))
    for graph in (plain, joined):
        for ours, theirs in zip(execute(graph, held, {}).outputs, expected.outputs, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(one.reshape(other.shape), other)
    assert count(joined) <= count(plain)
