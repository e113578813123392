"""Large gathers: the TPU compiler makes all_reduces of them where links are in three dimensions."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.ops import ALL_GATHER
from graphdist.ir.parser import parse
from graphdist.passes.order.stage_collectives import StageCollectives

LARGE = """graph f on 64 replicas, stage spmd
(%x: f32[128,1024] sharded(0)) {
  %g = all_gather(%x) {group_size=64, axis=0} : f32[8192,1024] mirrored
  return %g
}
"""


def test_large_gathers_are_staged_in_three_dimensions_alone() -> None:
    graph = parse(LARGE)
    assert StageCollectives()(graph) is graph
    staged = StageCollectives(is_three_dimensional=True)
    (node,) = staged(graph).nodes
    assert ALL_GATHER.of(node).stages == (32, 2)
    assert str(staged(staged(graph))) == str(staged(graph))
    assert StageCollectives(2, is_three_dimensional=True)(graph) is graph


@pytest.mark.long
@pytest.mark.needs("tpu")
@pytest.mark.parametrize(
    ("topology", "is_three_dimensional"), [("v5p:4x4x4", True), ("v6e:8x8", False)]
)
def test_no_large_gather_becomes_an_all_reduce(topology: str, is_three_dimensional: bool) -> None:
    strategy = gd.TPUStrategy(topology=topology, shard_parameters=True)
    assert strategy.devices.are_three_dimensional == is_three_dimensional
    with strategy.scope():
        w = gd.Variable(jax.ShapeDtypeStruct((8192, 4096), jnp.float32), name="w")

    @gd.function
    def step(x: jax.Array) -> jax.Array:
        def replica_fn(x: jax.Array) -> jax.Array:
            return jnp.tanh(x @ w[...].astype(x.dtype))

        return strategy.run(replica_fn, args=(x,))

    x = gd.PerReplicaSpec((1024, 8192), jnp.bfloat16, strategy=strategy)
    text = step.trace(x).lower().compile().as_text("hlo")
    assert not re.search(r" all-reduce(-start)?\(", text)
    assert re.search(r" all-gather(-start)?\(", text)
