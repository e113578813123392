"""Random training steps of stacked layers, with parameters in slices and in full: the same numbers.

A model is a chain of random steps a layer, run by a loop over the layers, by a loop in a loop, or
layer by layer, with `jax.checkpoint` or without. Values are small integers and factors powers of
two, so that no order of additions rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias  # Any: pytrees of arrays

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, SCAN, TAKE_PART
from graphdist.passes import Target, pipeline, pipelines
from graphdist.passes.manager import run_passes
from tests.passes.execution import execute
from tests.properties.effort import programs

Params: TypeAlias = dict[str, Any]
Layer: TypeAlias = Callable[[Any, Params], Any]

SLICES, LAYERS, WIDTH = 2, 4, 4
STRATEGIES = {
    groups: gd.MirroredStrategy([f"cpu:{i}" for i in range(SLICES * groups)]) for groups in (1, 2)
}
SHAPES = {"matrix": (WIDTH, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,)}
STEPS: dict[str, Layer] = {
    "product": lambda h, p: h @ p["matrix"],
    "transposed": lambda h, p: h @ p["matrix"].T,
    "narrow": lambda h, p: (h.astype("bfloat16") @ p["matrix"].astype("bfloat16")).astype("f"),
    "narrow rows": lambda h, p: h + p["matrix"].astype("bfloat16")[0].astype("f"),
    "scale": lambda h, p: h * p["scale"],
    "shift": lambda h, p: h + p["shift"],
    "negative": lambda h, p: -h + 2 * p["shift"],
    "rows": lambda h, p: h + p["matrix"][0],
    "clip": lambda h, p: jnp.clip(h, -4, 4),
    "larger": lambda h, p: jnp.maximum(h, p["shift"]),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "kept": lambda f: f,
    "recomputed": jax.checkpoint,
    "replayed": partial(jax.checkpoint, prevent_cse=False),
}
UPDATES: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "sgd": lambda w, m, g: (w - 0.5 * g, m),
    "momentum": lambda w, m, g: (w - (m * 0.5 + g), m * 0.5 + g),
    "signs": lambda w, m, g: (w - jnp.sign(g) * jnp.sign(jnp.vdot(g, g)), m + g),
    "average": lambda w, m, g: (w - g, (m + w) * 0.5),
}


def in_one_loop(layer: Layer, h: Any, params: Params) -> Any:
    return jax.lax.scan(lambda h, p: (layer(h, p), None), h, params)[0]


def in_two_loops(layer: Layer, h: Any, params: Params) -> Any:
    groups = jax.tree.map(lambda p: p.reshape(2, LAYERS // 2, *p.shape[1:]), params)
    return jax.lax.scan(lambda h, p: (in_one_loop(layer, h, p), None), h, groups)[0]


def one_by_one(layer: Layer, h: Any, params: Params) -> Any:
    for i in range(LAYERS):
        h = layer(h, jax.tree.map(lambda p, i=i: p[i], params))
    return h


def tied(layer: Layer, h: Any, params: Params) -> Any:
    return in_one_loop(layer, in_one_loop(layer, h, params), params)


def gradients(loss: Any, params: Params, x: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(gd.read(params), x)
    return value, gd.get_replica_context().all_reduce("SUM", grads)


def accumulated(loss: Any, params: Params, x: Any) -> Any:
    """Return what `gradients` does, for two microbatches that read the parameters themselves."""
    rows = jnp.stack([x, -x])
    function = gd.accumulate(lambda rows: gradients(loss, params, rows[0]), 2, reduce_op="SUM")
    return function(rows)


def accumulated_of_read(loss: Any, params: Params, x: Any) -> Any:
    """Return the same, of parameters that are read once."""
    old = gd.read(params)

    def function(rows: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(old, rows[0])
        return value, gd.get_replica_context().all_reduce("SUM", grads)

    return gd.accumulate(function, 2, reduce_op="SUM")(jnp.stack([x, -x]))


REPEATED = {
    "once": gradients,
    "accumulated": accumulated,
    "accumulated of read": accumulated_of_read,
}
IDEMPOTENT = {
    "accumulate_in_slices",
    "gathers_of_constants",
    "collectives_into_loops",
    "recompute_residuals",
    "gather_again",
    "narrow_gathers",
    "gather_ahead",
    "limit_gathered",
    "scatter_in_parts",
    "order_loops",
}
RUNS = {"loop": in_one_loop, "loops": in_two_loops, "apart": one_by_one, "tied": tied}


@pytest.fixture(autouse=True, scope="module")
def _all_sizes() -> Iterator[None]:
    """Move collectives of any size into loops."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "SMALLEST_IN_LOOPS", 0)
        yield


def traced(
    steps: list[str], run: str, wrapper: str, update: str, repeated: str = "once", groups: int = 1
) -> Graph:
    """Return the logical graph of a training step, for so many groups of replicas."""
    strategy = STRATEGIES[groups]
    with strategy.scope():
        shapes = {n: jax.ShapeDtypeStruct((LAYERS, *s), jnp.float32) for n, s in SHAPES.items()}
        state = gd.variables({"w": shapes, "m": shapes})
    params, slots = state["w"], state["m"]

    def layer(h: Any, p: Params) -> Any:
        for step in steps:
            h = STEPS[step](h, p)
        return h

    def loss(params: Params, x: Any) -> Any:
        return RUNS[run](WRAPPERS[wrapper](layer), x, params).sum()

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            old, kept = gd.read(params), gd.read(slots)
            value, grads = REPEATED[repeated](loss, params, x)
            for name in SHAPES:
                new, slot = UPDATES[update](old[name], kept[name], grads[name])
                params[name].assign(new)
                slots[name].assign(slot)
            return value

        return strategy.run(replica_fn, args=(x,))

    with strategy.scope():
        return step.trace(gd.PerReplicaSpec((WIDTH,), jnp.float32)).graph


def in_slices(graph: Graph, dimensions: list[int | None], groups: int = 1) -> Graph:
    """Return the graph with its variables stored along these dimensions, where they have them."""
    along = [
        None if dimension is None else dimension % len(variable.type.shape)
        for variable, dimension in zip(graph.variables, dimensions, strict=False)
    ]
    stored = zip(graph.variables, along, strict=True)
    variables = tuple(
        replace(variable, sharded_along=dimension, num_copies=groups)
        for variable, dimension in stored
    )
    return graph.replace(variables=variables)


@programs(60)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.sampled_from(sorted(RUNS)),
    st.sampled_from(sorted(WRAPPERS)),
    st.sampled_from(sorted(UPDATES)),
    st.sampled_from(sorted(REPEATED)),
    st.lists(st.sampled_from([None, 0, 1, 1, 1, 2]), min_size=6, max_size=6),
    st.sampled_from([0, 100, 2**20]),
    st.sampled_from([4, 16, 64, 2**20]),
    st.sampled_from(["cpu", "gpu", "tpu"]),
    st.sampled_from(sorted(STRATEGIES)),
    st.integers(0, 99),
)
def test_steps_mean_the_same_in_slices(
    steps: list[str],
    run: str,
    wrapper: str,
    update: str,
    repeated: str,
    dimensions: list[int | None],
    gathered_bytes: int,
    largest_widened: int,
    platform: str,
    groups: int,
    seed: int,
) -> None:
    graph = traced(steps, run, wrapper, update, repeated, groups)
    numbers = np.random.default_rng(seed)
    replicas = SLICES * groups
    held: list[Any] = [[numbers.integers(-2, 3, WIDTH).astype("f") for _ in range(replicas)]]
    state: dict[str, Any] = {
        variable.name: [numbers.integers(-2, 3, variable.type.shape).astype("f")] * replicas
        for variable in graph.variables
    }
    expected = execute(graph, held, state)
    largest = max(np.abs(array).max() for arrays in expected.state.values() for array in arrays)
    assume(largest <= 2**22)  # sums of larger numbers round
    target = Target(
        platform, True, packs_variables=False, shard_parameters=True, gathered_bytes=gathered_bytes
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "LARGEST_WIDENED", largest_widened)
        passes = pipeline(target)
    history = run_passes(in_slices(graph, dimensions, groups), passes)
    by_name = {entry.name: entry for entry in passes if entry.name in IDEMPOTENT}
    for entry in history:
        if entry.pass_name in by_name:
            assert by_name[entry.pass_name](entry.graph) is entry.graph
    given = execute(history[-1].graph, held, state)
    for ours, theirs in zip(given.outputs[0], expected.outputs[0], strict=True):
        np.testing.assert_array_equal(ours.reshape(theirs.shape), theirs)
    for name, arrays in expected.state.items():
        for ours, theirs in zip(given.state[name], arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
def test_no_stack_is_ever_in_full(wrapper: str) -> None:
    graph = in_slices(traced(["product", "narrow"], "loop", wrapper, "momentum"), [1] * 6)
    target = Target("cpu", True, packs_variables=False, shard_parameters=True)
    final = run_passes(graph, pipeline(target))[-1].graph
    stack = LAYERS * WIDTH * WIDTH
    values = [value for node in walk(final) for value in node.results]
    assert all(value.type.size < stack for value in values)
    loops = [node.graphs[0] for node in final.nodes if node.op is SCAN]
    assert len(loops) == 2
    inside = [node.op for loop in loops for node in loop.nodes]
    assert inside.count(ALL_GATHER) >= 2
    assert REDUCE_SCATTER in inside


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_widened_gradients_are_scattered_in_parts(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "LARGEST_WIDENED", 2 * WIDTH * WIDTH)
    graph = in_slices(traced(["narrow rows", "clip"], "loop", "recomputed", "sgd"), [1] * 6)
    target = Target(platform, True, packs_variables=False, shard_parameters=True)
    final = run_passes(graph, pipeline(target))[-1].graph
    widened = [node for node in walk(final) if node.op.name == "jax.convert_element_type"]
    sizes = {node.results[0].type.size for node in widened if node.results[0].type.dtype == "f32"}
    assert max(sizes) <= WIDTH * WIDTH // 2
    assert any(node.op is TAKE_PART for node in walk(final))


@pytest.mark.parametrize("repeated", ["accumulated", "accumulated of read"])
def test_no_stack_is_in_full_over_microbatches(repeated: str) -> None:
    graph = in_slices(traced(["product"], "loop", "recomputed", "sgd", repeated), [1] * 6)
    target = Target("cpu", True, packs_variables=False, shard_parameters=True, gathered_bytes=0)
    final = run_passes(graph, pipeline(target))[-1].graph
    stack = LAYERS * WIDTH * WIDTH
    large = [node for node in walk(final) if any(v.type.size >= stack for v in node.results)]
    assert large == []
