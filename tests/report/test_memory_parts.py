"""The memory of a step by parts, against counts by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.graph import Graph
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.ops import TAKE_PART
from graphdist.ir.parser import parse
from graphdist.passes import pipelines
from graphdist.report.memory_parts import MemoryParts, memory_parts

LAYERS, WIDTH, ROWS = 4, 256, 8
LAYER = 4 * WIDTH * WIDTH


def compiled_step(strategy: Any, microbatches: int = 0) -> Any:
    """Return a compiled step that trains a loop over layers, with momentum."""
    with strategy.scope():
        shape = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
        state = gd.variables({"w": shape, "m": shape})

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            def loss(w: Any, x: Any) -> Any:
                layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w), None))
                return jnp.mean(jax.lax.scan(layer, x, w)[0] ** 2)

            def reduced(x: Any) -> Any:
                value, gradient = jax.value_and_grad(loss)(w, x)
                return value, gd.get_replica_context().all_reduce("MEAN", gradient)

            w = state["w"][...]
            several = gd.accumulate(reduced, microbatches, gather="each") if microbatches else None
            value, gradient = (several or reduced)(x)
            state["m"].assign(0.9 * state["m"] + gradient)
            state["w"].assign(state["w"] - 0.1 * state["m"])
            return value

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    with strategy.scope():
        return step.trace(gd.PerReplicaSpec((ROWS, WIDTH), jnp.float32)).lower().compile()


@pytest.mark.parametrize(
    ("strategy", "slices", "gathered"),
    [
        pytest.param(lambda: gd.FullyShardedStrategy(["cpu:0", "cpu:1"]), 2, 1, id="all"),
        pytest.param(
            *(
                lambda: gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_parameters=2),
                2,
                1,
            ),
            id="groups",
        ),
        pytest.param(
            *(lambda: gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True), 4, 2),
            marks=pytest.mark.needs("tpu"),
            id="one layer ahead",
        ),
    ],
)
def test_parts_by_hand(strategy: Any, slices: int, gathered: int) -> None:
    report = compiled_step(strategy()).report()
    assert report.parts == MemoryParts(
        variables=2 * LAYERS * LAYER // slices,
        gradients=LAYERS * LAYER // slices,
        saved=LAYERS * 4 * ROWS * WIDTH,
        full=gathered * LAYER,
    )
    assert report.parts.total <= report.needed_bytes
    assert "saved for the way back" in str(report)


@pytest.mark.parametrize("microbatches", [2, 4])
def test_a_loop_over_microbatches_saves_the_inputs_of_layers_of_one(microbatches: int) -> None:
    strategy = gd.FullyShardedStrategy(["cpu:0", "cpu:1"])
    parts = compiled_step(strategy, microbatches).report().parts
    assert parts.saved == LAYERS * 4 * (ROWS // microbatches) * WIDTH


@pytest.mark.needs("tpu")
def test_a_gradient_that_is_scattered_in_parts_is_not_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = []
    for largest in (2**30, LAYER // 4):
        monkeypatch.setattr(pipelines, "LARGEST_WIDENED", largest)
        graph = chunked_step(gd.TPUStrategy(topology="v5e:2x2", shard_parameters=True))
        assert any(node.op is TAKE_PART for node in walk(graph)) == (largest < LAYER)
        counted.append(memory_parts(graph))
        assert memory_parts(parse(str(graph), PLACEHOLDERS)) == counted[-1]
    assert counted[0] == counted[1]
    assert counted[0].full == 2 * (2 * WIDTH * WIDTH)  # the parameter and its gradient, in bfloat16


def chunked_step(strategy: Any) -> Graph:
    """Return the graph of a step whose loss is a loop over chunks of rows, in bfloat16."""
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32))

    @gd.function
    def step(x: Any) -> Any:
        def replica_fn(x: Any) -> Any:
            def loss(w: Any) -> Any:
                rows = jax.checkpoint(lambda h, x: (h + jnp.sum(jnp.tanh(x @ w)), None))
                return jax.lax.scan(rows, jnp.bfloat16(0), x.astype("bfloat16"))[0]

            value, gradient = jax.value_and_grad(loss)(w[...].astype("bfloat16"))
            gradient = gd.get_replica_context().all_reduce("MEAN", gradient.astype("float32"))
            w.assign(w - 0.1 * gradient)
            return value

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    with strategy.scope():
        return step.trace(gd.PerReplicaSpec((4, ROWS, WIDTH), jnp.float32)).lower().graph


def test_variables_that_are_gathered_at_the_end_count_once() -> None:
    report = compiled_step(gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=True)).report()
    assert report.parts.full == 0
    assert report.parts.variables >= LAYERS * LAYER + LAYERS * LAYER // 2  # w in full, m in slices


def test_steps_in_full_have_no_parts() -> None:
    report = compiled_step(gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=False)).report()
    assert report.parts is None
