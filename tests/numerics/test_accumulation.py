"""Gradient accumulation, and the dtype of reductions: numbers, and what is sent."""

from __future__ import annotations

from typing import Any  # Any: pytrees

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.analyses import walk
from graphdist.ir.ops import ALL_REDUCE, SCAN

ROWS = np.random.default_rng(0).standard_normal((8, 3)).astype("f")
WEIGHTS = {"w": np.array([1, 2, 3], np.float32), "b": np.float32(0.5)}


@pytest.fixture(scope="module")
def strategy() -> gd.MirroredStrategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def loss(weights: Any, x: Any) -> jax.Array:
    return jnp.mean(jnp.tanh(x @ weights["w"] + weights["b"]) ** 2)


def close(one: Any, other: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)


@pytest.mark.parametrize("microbatches", [1, 2, 4, 8])
def test_accumulated_gradients_are_those_of_the_batch(microbatches: int) -> None:
    accumulated = gd.accumulate(jax.value_and_grad(loss), microbatches)
    close(jax.jit(accumulated)(WEIGHTS, ROWS), jax.value_and_grad(loss)(WEIGHTS, ROWS))


def test_sums_dtypes_and_other_arguments() -> None:
    def count(batch: Any, scale: float) -> Any:
        return {"n": batch["x"].shape[0], "x": batch["x"].astype(jnp.bfloat16).sum() * scale}

    batch = {"x": jnp.arange(6.0)}
    total = gd.accumulate(count, 3, batch_argnums=0, reduce_op="SUM")(batch, 2.0)
    assert (int(total["n"]), float(total["x"])) == (6, 30)
    assert total["x"].dtype == jnp.bfloat16
    mean = gd.accumulate(lambda x: x.shape[0], 3)(jnp.arange(6.0))
    assert (float(mean), mean.dtype) == (2, jnp.float32)


def test_booleans_are_counted() -> None:
    values = jnp.array([1.0, -1.0, 2.0, 3.0])
    total = gd.accumulate(lambda x: x > 0, 2, reduce_op="SUM")(values)
    assert (total.dtype, total.tolist()) == (jnp.int32, [2, 1])
    mean = gd.accumulate(lambda x: x > 0, 2)(values)
    assert (mean.dtype, mean.tolist()) == (jnp.float32, [1.0, 0.5])


def test_a_reduction_in_the_loop_is_done_once_after_it(strategy: gd.Strategy) -> None:
    def gradients(weights: Any, x: Any) -> Any:
        return gd.get_replica_context().all_reduce("MEAN", jax.grad(loss)(weights, x))

    def step(x: Any) -> Any:
        accumulated = gd.accumulate(gradients, 4)
        return strategy.reduce("MEAN", strategy.run(accumulated, args=(WEIGHTS, x)), axis=None)

    (x,) = strategy.experimental_distribute_dataset([ROWS])
    once, often = gd.function(step), gd.function(step, allow_reassociation=False)
    close(once(x), jax.grad(loss)(WEIGHTS, ROWS))
    close(often(x), jax.grad(loss)(WEIGHTS, ROWS))
    in_loops = []
    for function in (once, often):
        graph = function.trace(x).lower().graph
        loops = [node for node in walk(graph) if node.op is SCAN]
        in_loops.append(
            sum(inner.op is ALL_REDUCE for loop in loops for inner in walk(loop.graphs[0]))
        )
    assert in_loops[0] == 0 < in_loops[1]


def test_gradients_are_reduced_in_another_dtype(strategy: gd.Strategy) -> None:
    options = gd.CommunicationOptions(reduce_dtype="float32")

    def replica_fn(x: Any) -> Any:
        context = gd.get_replica_context()
        small = jnp.bfloat16(256) * (1 - context.replica_id_in_sync_group) + jnp.bfloat16(1)
        wide = context.all_reduce("SUM", {"g": small, "n": 3}, options=options)
        assert wide["g"].dtype == jnp.bfloat16
        return wide

    (x,) = strategy.experimental_distribute_dataset([ROWS])
    with strategy.scope():
        traced = gd.function(lambda x: strategy.run(replica_fn, args=(x,))).trace(x)
    reduced = [n.operands[0].type.dtype for n in walk(traced.graph) if n.op is ALL_REDUCE]
    assert reduced == ["f32", "i32"]


def test_a_strategy_has_options_for_all_its_reductions() -> None:
    options = gd.CommunicationOptions(reduce_dtype="bfloat16")
    strategy = gd.MultiWorkerMirroredStrategy(communication_options=options)
    assert strategy.communication_options.reduce_dtype == jnp.bfloat16
    result = strategy.run(lambda: gd.get_replica_context().all_reduce("SUM", jnp.float32(1.001)))
    assert result.dtype == jnp.float32
    assert float(result) == 1
