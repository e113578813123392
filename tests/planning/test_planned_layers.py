"""Plans for layers of many kinds: each compiles for a TPU's passes, and computes what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.ops import SCAN
from graphdist.ir.residual_loops import outermost_loops, residual_loops
from graphdist.passes import Target, pipeline
from graphdist.passes.logical.choose_residuals import ChooseResiduals
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.passes.manager import run_passes
from tests.passes.execution import check_same_meaning

Layer = Callable[[Any, Any], tuple[Any, Any]]
ROWS, WIDTH, LAYERS = 4, 8, 3
WEIGHTS = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH)) * 0.5
X = jnp.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)


def chosen(x: Any, w: Any) -> tuple[Any, Any]:
    hidden = jax.lax.cond(x.sum() > 0, lambda: jnp.tanh(jnp.sin(x @ w) @ w), lambda: x * 0.5)
    return hidden, None


def repeated(x: Any, w: Any) -> tuple[Any, Any]:
    hidden = jnp.tanh(jnp.sin(x @ w) @ w)
    inner = jax.checkpoint(lambda h, _: (jnp.tanh(h * 1.5), None))
    return jax.lax.scan(inner, hidden, None, length=2)[0], None


def counted(x: Any, w: Any) -> tuple[Any, Any]:
    return jax.lax.fori_loop(0, 2, lambda i, h: jnp.sin(h @ w) + i, x), None


def dropped(carry: Any, w: Any) -> tuple[Any, Any]:
    x, key = carry
    key, own = jax.random.split(key)
    kept = jax.random.bernoulli(own, 0.7, x.shape)
    return (jnp.where(kept, jnp.tanh(x @ w), 0.0), key), None


def returned(x: Any, w: Any) -> tuple[Any, Any]:
    hidden = checkpoint_name(jnp.tanh(x @ w), "hid")
    return jnp.sin(hidden), hidden


def twice(x: Any, w: Any) -> tuple[Any, Any]:
    first = jnp.tanh(x @ w)
    second = checkpoint_name(jnp.tanh(x @ w), "hid")
    return jnp.sin(first) * second, None


def attention(query: Any, key: Any, value: Any) -> Any:
    """Return the attention of rows to chunks of rows, one after the other."""

    def chunk(carry: Any, rows: Any) -> Any:
        most, total, weighted = carry
        scores = query @ rows[0].T
        larger = jnp.maximum(most, scores.max(-1))
        before, weights = jnp.exp(most - larger), jnp.exp(scores - larger[:, None])
        total = total * before + weights.sum(-1)
        return (larger, total, weighted * before[:, None] + weights @ rows[1]), None

    chunks = (key.reshape(2, -1, WIDTH), value.reshape(2, -1, WIDTH))
    nothing = jnp.zeros(ROWS)
    first = (nothing - jnp.inf, nothing, jnp.zeros_like(query))
    (_, total, weighted), _ = jax.lax.scan(chunk, first, chunks)
    return weighted / total[:, None]


def chunked(x: Any, w: Any) -> tuple[Any, Any]:
    hidden = jax.nn.silu(x @ w)
    context = checkpoint_name(attention(hidden, hidden * 2, hidden + 1), "context")
    gated = jax.lax.cond(context.sum() > 0, lambda: jax.nn.gelu(context @ w), lambda: context)
    return x + jax.nn.relu(gated), None


KINDS: dict[str, tuple[Layer, Any]] = {
    "cond": (chosen, X),
    "inner scan": (repeated, X),
    "fori": (counted, X),
    "dropout": (dropped, (X, jax.random.key(1))),
    "returned": (returned, X),
    "twice": (twice, X),
    "chunked": (chunked, X),
}
WRAPPERS: dict[str, Callable[[Layer], Layer]] = {
    "kept": lambda layer: layer,
    "recomputed": jax.checkpoint,
    "by names": lambda layer: jax.checkpoint(
        layer, policy=jax.checkpoint_policies.save_only_these_names("hid")
    ),
}


def gradient(kind: str, wrapper: str) -> Callable[[Any, Any], Any]:
    layer = WRAPPERS[wrapper](KINDS[kind][0])

    def loss(weights: Any, x: Any) -> Any:
        last, stacked = jax.lax.scan(layer, x, weights)
        extra = 0.0 if stacked is None else (stacked**2).sum()
        return jax.tree.leaves(last)[0].sum() + extra

    return jax.grad(loss)


def logical(kind: str, wrapper: str) -> Graph:
    graph: Graph = gd.function(gradient(kind, wrapper)).trace(WEIGHTS, KINDS[kind][1]).graph
    return graph


def plans(graph: Graph) -> list[gd.Plan]:
    """Return plans that keep each value, compute each again, and every second of both."""
    loops = outermost_loops(infer_layouts(graph))
    names = [(one, one.name_of(number), number) for one in loops for number in one.relevant]
    again = {name: gd.Keep.RECOMPUTE for one, name, n in names if one.can_be_repeated(n)}
    kept = {name: gd.Keep.DEVICE for _, name, _ in names}
    mixed = {**again, **dict(list(kept.items())[::2])}
    return [gd.Plan(chosen) for chosen in (kept, again, mixed)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.long] * (kind == "chunked")) for kind in KINDS]
)
def test_a_plan_changes_no_gradient(kind: str, wrapper: str) -> None:
    expected = jax.jit(gradient(kind, wrapper))(WEIGHTS, KINDS[kind][1])
    graph = logical(kind, wrapper)
    found = plans(graph)
    assert found[0].residuals
    for plan in found:
        step = gd.function(gradient(kind, wrapper), plan=plan)
        np.testing.assert_allclose(step(WEIGHTS, KINDS[kind][1]), expected, rtol=1e-5, atol=1e-5)
        run_passes(graph, pipeline(Target("tpu", shard_parameters=True, plan=plan)))


def stacks_of(kind: str, wrapper: str, residuals: Any) -> list[str]:
    """Return the types of what the forward loop stacks with a plan."""
    graph = run_passes(logical(kind, wrapper), pipeline(Target("cpu", plan=gd.Plan(residuals))))[
        -1
    ].graph
    forward = next(node for node in graph.nodes if node.op is SCAN)
    return [str(value.type.shape) for value in forward.results[SCAN.of(forward).num_carry :]]


def test_a_value_that_a_policy_saves_is_recomputed_and_not_stacked_twice() -> None:
    wide = str((LAYERS, ROWS, WIDTH))
    before = stacks_of("returned", "by names", {})
    assert stacks_of("returned", "by names", {"hid": "device"}).count(wide) <= before.count(wide)
    saved = stacks_of("twice", "by names", {})
    again = stacks_of("twice", "by names", {"hid": "recompute"})
    assert again.count(wide) == saved.count(wide) - 1


def test_the_name_of_a_value_is_that_of_any_equal_value() -> None:
    (loops,) = residual_loops(infer_layouts(logical("twice", "recomputed")))
    assert "hid" in map(str, loops.named)


def nested(plan: gd.Plan) -> list[list[str]]:
    """Return the loops and branches in the body of each loop of the step with a plan."""
    graph = run_passes(logical("chunked", "recomputed"), pipeline(Target("cpu", plan=plan)))[
        -1
    ].graph
    bodies = [node.graphs[0] for node in graph.nodes if node.op is SCAN]
    return [sorted(node.op.name for node in body.nodes if node.graphs) for body in bodies]


def test_a_plan_keeps_what_an_inner_loop_and_a_branch_compute() -> None:
    kept, again, _ = plans(logical("chunked", "recomputed"))
    of_gradients = ["cond", "scan"]
    assert nested(kept) == [["cond", "scan"], of_gradients]
    assert nested(again) == [["cond", "scan"], sorted([*of_gradients, "cond", "scan"])]
    assert nested(gd.Plan.from_json('{"residuals": {"context": "device"}}')) == nested(again)


def test_no_bit_changes_with_inner_loops_and_branches() -> None:
    """As they stand, without the fusions of XLA, which round otherwise."""
    graph = infer_layouts(logical("chunked", "recomputed"))
    for plan in plans(graph):
        after = ChooseResiduals(plan.residuals)(graph)
        check_same_meaning(graph, after, "chunked", to_the_bit=True)


def test_no_value_is_in_two_graphs() -> None:
    graph = logical("cond", "kept")
    for plan in plans(graph):
        after = run_passes(graph, pipeline(Target("cpu", plan=plan)))[-1].graph
        made = [value for node in walk(after) for value in node.results]
        assert len(made) == len(set(made))
