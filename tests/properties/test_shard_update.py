"""Random updates of variables, shared out over the replicas and not: the same numbers.

An update is a random expression of a reduced gradient, of the variables and of reductions of them,
partly element by element and partly not, with guards and branches on numbers. Values are small
integers and factors powers of two, so that no order of additions rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: distributed values

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph, GraphVariable
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE
from graphdist.passes import Target, pipeline
from graphdist.passes.layouts.place_conversions import PlaceConversions
from graphdist.passes.layouts.sharded_updates import UpdateSharding
from graphdist.passes.manager import run_passes
from tests.passes.execution import execute
from tests.properties.effort import programs

Expression: TypeAlias = Callable[[Sequence[Any]], Any]

REPLICAS = 4
STRATEGY = gd.MirroredStrategy([f"cpu:{i}" for i in range(REPLICAS)])
SHAPES = [(8,), (4, 3), (3, 8), (3,), (), (2, 4, 4)]
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "larger": jnp.maximum,
    "where": lambda a, b: jnp.where(a > b, a, -b),
}
SCALARS: dict[str, Callable[[Any], Any]] = {
    "sum": jnp.sum,
    "max": jnp.max,
    "min": lambda x: x.min(),
    "first": lambda x: x.ravel()[0],
    "all": lambda x: jnp.all(x > -3).astype(x.dtype),
    "any": lambda x: (x > 6).any().astype(x.dtype),
    "product": lambda x: jnp.vdot(jnp.sign(x), x),
}
WHOLE: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: jnp.sort(x, axis=0) if x.ndim else x,
    "turn": lambda x: x[::-1] if x.ndim else x,
    "cumulative": lambda x: jnp.cumsum(x, axis=0) if x.ndim else x,
    "rows": lambda x: x - x.sum(axis=0, keepdims=True) if x.ndim else x,
    "columns": lambda x: x - x.max(axis=-1, keepdims=True) if x.ndim else x,
    "branch": lambda x: jax.lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x, x),
}


def two(name: str, left: Expression, right: Expression) -> Expression:
    return lambda values: ELEMENTWISE[name](left(values), right(values))


def scalar(name: str, inner: Expression, of: Expression) -> Expression:
    return lambda values: inner(values) + SCALARS[name](of(values))


def whole(name: str, inner: Expression) -> Expression:
    return lambda values: WHOLE[name](inner(values))


def product(inner: Expression, left: Expression, right: Expression) -> Expression:
    return lambda values: inner(values) + jnp.vdot(jnp.sign(left(values)), right(values))


def guarded(name: str, of: Expression, left: Expression, right: Expression) -> Expression:
    """Return one of two values, chosen by a number on all replicas."""
    return lambda values: jnp.where(SCALARS[name](of(values)) > 0, left(values), right(values))


def branches(name: str, of: Expression, *choices: Expression) -> Expression:
    """Return what one of several branches makes of the values."""

    def choose(values: Sequence[Any]) -> Any:
        index = SCALARS[name](of(values)).astype(jnp.int32)
        return jax.lax.switch(index, list(choices), tuple(values))

    return choose


def halved(inner: Expression) -> Expression:
    return lambda values: inner(values) * 0.5


def value(number: int) -> Expression:
    return lambda values: values[number % len(values)]


def all_of(number: float) -> Expression:
    return lambda values: jnp.full_like(values[0], number)


def expressions(scalars: list[str], wholes: list[str]) -> st.SearchStrategy[Expression]:
    """Return expressions of these reductions to a number, and operations that need wholes."""
    names = st.sampled_from(scalars)

    def grown(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        grown = [
            st.builds(two, st.sampled_from(sorted(ELEMENTWISE)), inner, inner),
            st.builds(halved, inner),
            st.builds(scalar, names, inner, inner),
            st.builds(product, inner, inner, inner),
            st.builds(guarded, names, inner, inner, inner),
            st.builds(branches, names, inner, inner, inner),
            st.builds(branches, names, inner, inner, inner, inner),
        ]
        if wholes:
            grown.append(st.builds(whole, st.sampled_from(wholes), inner))
        return st.one_of(grown)

    leaves = st.one_of(st.integers(0, 3).map(value), st.sampled_from([0.0, 2.0]).map(all_of))
    return st.recursive(leaves, grown, max_leaves=6)


EXPRESSIONS = expressions(sorted(SCALARS), sorted(WHOLE))
SHARED_OUT = expressions(sorted({*SCALARS} - {"first"}), [])
"""What can be computed of slices alone."""


@pytest.mark.long
@programs(450)
@given(
    st.sampled_from(SHAPES),
    st.sampled_from(["SUM", "MEAN"]),
    st.lists(EXPRESSIONS, min_size=3, max_size=3),
    st.integers(0, 2**7 - 1),
    st.integers(0, 99),
)
@example(  # an operand that no branch takes says nothing of how its value is needed
    shape=(8,),
    kind="SUM",
    updates=[
        value(0),
        branches("all", value(0), value(1), all_of(0.0)),
        guarded("first", two("add", value(0), value(0)), value(0), value(0)),
    ],
    bits=0b0110010,
    seed=0,
)
def test_updates_mean_the_same_shared_out(
    shape: tuple[int, ...], kind: str, updates: list[Expression], bits: int, seed: int
) -> None:
    is_stored = [bool(bits >> i & 1) for i in range(3)]
    is_assigned = [bool(bits >> i & 1) for i in range(3, 6)]
    with STRATEGY.scope():
        variables = [gd.Variable(jnp.zeros(shape), name=f"v{i}") for i in range(3)]

    @gd.function
    def function(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            values = [gd.get_replica_context().all_reduce(kind, x)]
            values += [variable.read_value() for variable in variables]
            for variable, update, assigns in zip(variables, updates, is_assigned, strict=True):
                if assigns:
                    variable.assign(update(values))
            return values[0] if bits >> 6 else values[1]

        return STRATEGY.run(replica_fn, args=(x,))

    with STRATEGY.scope():
        graph = function.trace(gd.PerReplicaSpec(shape, jnp.float32)).graph
    dimension = next((i for i, size in enumerate(shape) if size % REPLICAS == 0), None)
    stored = tuple(
        one.stored_along(dimension if is_stored[int(one.name[1])] else None)
        for one in graph.variables
    )
    check(graph, stored, shape, seed)


@pytest.mark.long
@programs(150)
@given(
    st.sampled_from([(8,), (4, 3), (3, 8), (2, 4, 4)]),
    st.lists(SHARED_OUT, min_size=2, max_size=2),
    st.integers(0, 99),
)
def test_what_can_be_is_shared_out(
    shape: tuple[int, ...], updates: list[Expression], seed: int
) -> None:
    with STRATEGY.scope():
        variables = [gd.Variable(jnp.zeros(shape), name=f"v{i}") for i in range(2)]

    @gd.function
    def function(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            gradient = gd.get_replica_context().all_reduce("SUM", x)
            values = [gradient, *(variable.read_value() for variable in variables)]
            for variable, update in zip(variables, updates, strict=True):
                variable.assign(update(values) + gradient)

        STRATEGY.run(replica_fn, args=(x,))

    with STRATEGY.scope():
        graph = function.trace(gd.PerReplicaSpec(shape, jnp.float32)).graph
    shared_out = check(graph, graph.variables, shape, seed)
    assert all(one.sharded_along is not None for one in shared_out.assigned)
    sent_to_all = [node for node in walk(shared_out) if node.op in (ALL_REDUCE, ALL_GATHER)]
    assert all(node.results[0].type.shape == () for node in sent_to_all)


def check(
    graph: Graph, stored: tuple[GraphVariable, ...], shape: tuple[int, ...], seed: int
) -> Graph:
    """Compare what a graph means with what passes make of it; return it shared out.

    Its variables are stored as it says, and then as `stored` does, over all replicas or in groups.
    """
    numbers = np.random.default_rng(seed)
    held: list[Any] = [[numbers.integers(-8, 9, shape).astype("f") for _ in range(REPLICAS)]]
    state: dict[str, Any] = {
        one.name: [numbers.integers(-8, 9, shape).astype("f")] * REPLICAS for one in graph.variables
    }
    expected = execute(graph, held, state)
    for along in (graph.variables, stored):
        grouped = graph.replace(variables=tuple(along), num_groups=1 + seed % 2)
        history = run_passes(grouped, pipeline(Target("cpu", True)))
        (shared_out,) = [one.graph for one in history if one.pass_name == "place_conversions"]
        assert PlaceConversions(UpdateSharding())(shared_out) is shared_out
        given = execute(history[-1].graph, held, state)
        for one, other in zip(given.outputs, expected.outputs, strict=True):
            for ours, theirs in zip(one, other, strict=True):
                np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)
        for name, arrays in expected.state.items():
            for ours, theirs in zip(given.state[name], arrays, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    return shared_out


def test_what_these_programs_are_made_of_is_shared_out_at_times() -> None:
    with STRATEGY.scope():
        w = gd.Variable(jnp.zeros(8), name="v0")

    @gd.function
    def function(x: Any) -> None:
        def replica_fn(x: Any) -> None:
            g = gd.get_replica_context().all_reduce("SUM", x)
            w.assign(scalar("sum", value(0), value(1))([w.read_value(), g]) + g)

        STRATEGY.run(replica_fn, args=(x,))

    with STRATEGY.scope():
        graph = function.trace(gd.PerReplicaSpec((8,), jnp.float32)).graph
    text = str(run_passes(graph, pipeline(Target("cpu", True)))[-1].graph)
    assert "reduce_scatter" in text
    assert text.count("all_reduce") == 1
    assert "sharded_along=0" in text
