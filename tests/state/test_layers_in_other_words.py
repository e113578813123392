"""Training over stacked layers, written in other words: gathered layer by layer, one result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any  # Any: arrays in traces

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Node
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from graphdist.values.replica_warnings import ReplicaWarning, warn_of_gathered_stacks

REPLICAS, LAYERS, WIDTH = 4, 8, 256
LAYER = WIDTH * WIDTH
INITIAL = np.random.default_rng(1).normal(0, 0.05, (LAYERS, WIDTH, WIDTH)).astype(np.float32)
ROWS = np.random.default_rng(2).normal(size=(8, WIDTH)).astype(np.float32)


def layer(h: Any, weight: Any) -> tuple[Any, None]:
    return jnp.tanh(h @ weight), None


def narrow(h: Any, weight: Any) -> tuple[Any, None]:
    return layer(h, weight.astype(h.dtype))


def plain(weights: Any, h: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(narrow), h, weights)[0]


def converted_before(weights: Any, h: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(layer), h, weights.astype(h.dtype))[0]


def in_pairs(weights: Any, h: Any) -> Any:
    def pair(h: Any, two: Any) -> tuple[Any, None]:
        return narrow(narrow(h, two[0])[0], two[1])

    pairs = weights.reshape(LAYERS // 2, 2, WIDTH, WIDTH)
    return jax.lax.scan(jax.checkpoint(pair), h, pairs)[0]


def nested(weights: Any, h: Any) -> Any:
    def inner(h: Any, some: Any) -> tuple[Any, None]:
        return jax.lax.scan(jax.checkpoint(narrow), h, some)[0], None

    return jax.lax.scan(jax.checkpoint(inner), h, weights.reshape(2, 4, WIDTH, WIDTH))[0]


def first_by_itself(weights: Any, h: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(narrow), narrow(h, weights[0])[0], weights[1:])[0]


def by_index(weights: Any, h: Any) -> Any:
    return jax.lax.fori_loop(0, LAYERS, lambda i, h: narrow(h, weights[i])[0], h)


def by_index_recomputed(weights: Any, h: Any) -> Any:
    step = jax.checkpoint(lambda i, h: narrow(h, weights[i])[0])
    return jax.lax.fori_loop(0, LAYERS, step, h)


def unrolled(weights: Any, h: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(narrow), h, weights, unroll=2)[0]


def in_branches(weights: Any, h: Any) -> Any:
    def either(h: Any, given: Any) -> tuple[Any, None]:
        weight, index = given
        return jax.lax.cond(index % 2 == 0, narrow, narrow, h, weight)

    return jax.lax.scan(jax.checkpoint(either), h, (weights, jnp.arange(LAYERS)))[0]


def by_python(weights: Any, h: Any) -> Any:
    for i in range(LAYERS):
        h, _ = jax.checkpoint(narrow)(h, weights[i])
    return h


def transposed(weights: Any, h: Any) -> Any:
    turned = weights.transpose(0, 2, 1)
    return jax.lax.scan(jax.checkpoint(lambda h, w: narrow(h, w.T)), h, turned)[0]


FORMS = [
    plain,
    converted_before,
    in_pairs,
    nested,
    first_by_itself,
    by_index,
    by_index_recomputed,
    unrolled,
    in_branches,
    by_python,
    transposed,
]


def trained(
    form: Callable[..., Any],
    optimizer: optax.GradientTransformation,
    dtype: Any = jnp.bfloat16,
    **options: Any,
) -> tuple[gd.Function, Any, gd.Variable]:
    """Return a step, its batch, and the weights that it trains."""
    strategy = gd.MirroredStrategy([f"cpu:{i}" for i in range(REPLICAS)], **options)
    with strategy.scope():
        weights = gd.Variable(INITIAL, name="weights")
        state = gd.variables(optimizer.init(INITIAL))

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            def loss(weights: Any) -> Any:
                return jnp.mean(form(weights, x.astype(dtype)).astype(jnp.float32) ** 2)

            old = weights[...]
            value, gradient = jax.value_and_grad(loss)(old)
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
            change, new = optimizer.update(gradient, gd.read(state), old)
            gd.assign(state, new)
            weights.assign(optax.apply_updates(old, change))
            return value

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset([ROWS])
    return step, batch, weights


def nodes_placed(step: gd.Function, batch: Any) -> list[Node]:
    """Return the nodes of a step with its conversions placed, before collectives are packed."""
    history = step.trace(batch).lower().history
    (placed,) = [one.graph for one in history if one.pass_name == "place_conversions"]
    return list(walk(placed))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_a_layer_is_gathered_at_a_time_in_its_narrow_dtype(form: Callable[..., Any]) -> None:
    step, batch, _ = trained(form, optax.sgd(0.1), shard_parameters=True)
    nodes = nodes_placed(step, batch)
    gathered = [node.results[0].type for node in nodes if node.op is ALL_GATHER]
    assert {(type.dtype, type.size) for type in gathered} == {("bf16", LAYER)}
    reduced = [node.results[0].type for node in nodes if node.op is ALL_REDUCE]
    assert not any(type.size > 1 for type in reduced)


def sorted_before(weights: Any, h: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(narrow), h, jax.lax.sort(weights, dimension=1))[0]


def test_a_stack_that_is_gathered_at_once_is_named() -> None:
    step, batch, _ = trained(sorted_before, optax.sgd(0.1), shard_parameters=True)
    declined = [r for each in step.trace(batch).lower().explain().steps for r in each.declined]
    (line,) = [line for line in declined if "gathered at once" in line]
    assert f"{4 * LAYERS * LAYER:,} bytes, f32[8,256,256] mirrored" in line
    assert "jax.sort at" in line
    assert "test_layers_in_other_words.py" in line
    step, batch, _ = trained(plain, optax.sgd(0.1), shard_parameters=True)
    assert "gathered at once" not in str(step.trace(batch).lower().explain())


def test_other_positions_of_a_gather_are_priced() -> None:
    step, batch, _ = trained(plain, optax.sgd(0.1), shard_parameters=True)
    chosen = [
        choice for each in step.trace(batch).lower().explain().steps for choice in each.chosen
    ]
    (line,) = [line for line in chosen if line.startswith("2 x bf16[256, 256]")]
    narrow, wide = 2 * LAYER, 4 * LAYER
    assert line.partition(" is gathered ")[2].split("; ") == [
        f"in each of {LAYERS} iterations, {LAYERS * narrow:,} bytes per step, {narrow:,} held",
        f"as f32: {LAYERS * wide:,} bytes per step, {wide:,} held",
        f"in front of the loop: {LAYERS * narrow:,} bytes per step, {LAYERS * narrow:,} held",
    ]


def test_a_step_that_holds_stacks_unsharded_is_warned_of() -> None:
    step, batch, _ = trained(sorted_before, optax.sgd(0.1), shard_parameters=True)
    graph, memory = step.trace(batch).lower().graph, 10 * 4 * LAYERS * LAYER
    warn_of_gathered_stacks(graph, memory)
    warn_of_gathered_stacks(graph, 0)
    with pytest.warns(ReplicaWarning, match=r"gathers stacks of layers at once: 2,097,152 of 20,"):
        warn_of_gathered_stacks(graph, memory - 20)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_training_gives_the_same(form: Callable[..., Any]) -> None:
    losses, last = [], []
    for options in ({"shard_parameters": True}, {"shard_update": False}):
        step, batch, weights = trained(form, optax.sgd(0.5, momentum=0.9), jnp.float32, **options)
        losses.append([float(step(batch)) for _ in range(3)])
        last.append(np.asarray(weights.read_value()))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(last[0], last[1], rtol=1e-4, atol=1e-6)


def test_factored_second_moments_are_computed_on_shards() -> None:
    step, batch, _ = trained(plain, optax.adafactor(0.01), shard_parameters=True)
    nodes = nodes_placed(step, batch)
    gathered = [node.results[0].type for node in nodes if node.op is ALL_GATHER]
    assert max(type.size for type in gathered) == LAYER
    assert all(type.dtype == "bf16" for type in gathered if type.size == LAYER)
    scattered = [node for node in nodes if node.op is REDUCE_SCATTER]
    assert [
        node.results[0].type.size for node in scattered if node.results[0].type.size > 10_000
    ] == [LAYER // REPLICAS]


@pytest.mark.long
def test_factored_second_moments_give_the_same() -> None:
    losses, last = [], []
    for options in ({"shard_parameters": True}, {"shard_update": False}):
        step, batch, weights = trained(plain, optax.adafactor(0.01), jnp.float32, **options)
        losses.append([float(step(batch)) for _ in range(3)])
        last.append(np.asarray(weights.read_value()))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    np.testing.assert_allclose(last[0], last[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("gather", "times"), [("once", 1), ("each", 4)])
def test_microbatches_gather_in_the_narrow_dtype(gather: str, times: int) -> None:
    strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_parameters=True)
    with strategy.scope():
        weights = gd.Variable(INITIAL[0], name="weights")

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            def loss(weights: Any, x: Any) -> Any:
                return jnp.mean((x @ weights.astype(jnp.bfloat16)).astype(jnp.float32) ** 2)

            value = partial(jax.value_and_grad(loss), weights[...])
            found, gradient = gd.accumulate(value, 4, gather=gather)(x)
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient)
            weights.assign(weights - 0.1 * gradient)
            return found

        return strategy.run(replica_fn, args=(x,))

    with strategy.scope():
        batch = gd.PerReplicaSpec((8, WIDTH), jnp.bfloat16)
        graph = step.trace(batch).lower().graph
    in_front = [node.results[0].type for node in graph.nodes if node.op is ALL_GATHER]
    everywhere = [node.results[0].type for node in walk(graph) if node.op is ALL_GATHER]
    assert {type.dtype for type in everywhere} == {"bf16"}
    assert bool(in_front) == (times == 1)
