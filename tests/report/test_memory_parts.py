"""The counted memory of a step by parts, against counts by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd

LAYERS, WIDTH, ROWS = 4, 256, 8
LAYER = 4 * WIDTH * WIDTH


def compiled_step(strategy: Any) -> Any:
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
            value, gradient = reduced(x)
            state["m"].assign(0.9 * state["m"] + gradient)
            state["w"].assign(state["w"] - 0.1 * state["m"])
            return value

        return strategy.reduce("MEAN", strategy.run(replica_fn, args=(x,)), axis=None)

    with strategy.scope():
        return step.trace(gd.PerReplicaSpec((ROWS, WIDTH), jnp.float32)).lower().compile()


@pytest.mark.parametrize(
    ("strategy", "shards"),
    [
        pytest.param(lambda: gd.FullyShardedStrategy(["cpu:0", "cpu:1"]), 2, id="all"),
        pytest.param(
            *(lambda: gd.MirroredStrategy([f"cpu:{i}" for i in range(4)], shard_parameters=2), 2),
            id="groups",
        ),
    ],
)
def test_parts_by_hand(strategy: Any, shards: int) -> None:
    report = compiled_step(strategy()).report()
    parts = report.parts
    assert parts.variables == 2 * LAYERS * LAYER // shards
    # The shards of gradients, and the inputs of all layers for the backward pass.
    saved = LAYERS * 4 * ROWS * WIDTH
    assert 0 <= parts.stacked - (LAYERS * LAYER // shards + saved) <= 4 * ROWS * WIDTH
    assert LAYER <= parts.gathered <= 2 * LAYER
    # The gradient of a layer, and activations of a layer.
    assert LAYER <= parts.others <= LAYER + LAYER // shards + 8 * 4 * ROWS * WIDTH
    assert parts.host == 0
    assert "stacked by loops" in " ".join(str(report).split())


def test_steps_in_full_have_no_parts() -> None:
    report = compiled_step(gd.MirroredStrategy(["cpu:0", "cpu:1"], shard_update=False)).report()
    assert report.parts is None
