"""Reductions whose results are added up, written in other words: sent once, with one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: arrays in traces

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.ir.graph import Graph
from graphdist.ir.loops import Scan
from graphdist.ir.ops import SCAN

REPLICAS, ROWS, WIDTH = 4, 6, 300
BATCH = np.random.default_rng(0).normal(size=(REPLICAS * ROWS, WIDTH)).astype(np.float32)


def reduced(value: Any, op: str = "MEAN") -> Any:
    return gd.get_replica_context().all_reduce(op, value)


def scanned(step: Callable[[Any, Any], Any], first: Any, rows: Any) -> Any:
    return jax.lax.scan(lambda carry, row: (step(carry, row), None), first, rows)[0]


def nested(x: Any) -> Any:
    def outer(total: Any, rows: Any) -> Any:
        return scanned(lambda carry, row: carry + reduced(row), total, rows) * 0.5

    return scanned(outer, jnp.zeros(WIDTH), x.reshape(2, 3, WIDTH))


def beside_other_carries(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        most = jnp.maximum(carry["most"], reduced(row))
        return {"sum": carry["sum"] + reduced(row, "SUM"), "n": carry["n"] + 1, "most": most}

    return scanned(step, {"sum": jnp.zeros(WIDTH), "n": 0, "most": jnp.zeros(WIDTH)}, x)


def gradients(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(w * row)))(jnp.ones(WIDTH))
        return carry + reduced(gradient)

    return scanned(step, jnp.zeros(WIDTH), x)


PROGRAMS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a sum": (lambda x: scanned(lambda c, r: c + reduced(jnp.sin(r)), jnp.zeros(WIDTH), x), 1),
    "divided": (lambda x: scanned(lambda c, r: c + reduced(r) / ROWS, jnp.ones(WIDTH), x), 1),
    "by an index": (
        lambda x: jax.lax.fori_loop(0, ROWS, lambda i, c: c - 0.1 * reduced(x[i]), x[0] * 0),
        ROWS,
    ),
    "by an index, from one value": (
        lambda x: jax.lax.fori_loop(0, ROWS, lambda i, c: c - reduced(x[i]), jnp.zeros(WIDTH)),
        1,
    ),
    "a stack": (lambda x: jnp.mean(jax.lax.map(lambda row: reduced(row * 2), x), 0), 1),
    "a running mean": (
        lambda x: scanned(
            lambda c, ir: c + (reduced(ir[1]) - c) / (ir[0] + 1),
            jnp.zeros(WIDTH),
            (jnp.arange(float(ROWS)), x),
        ),
        1,
    ),
    "a constant beside a sum": (
        lambda x: scanned(
            lambda c, row: 0.9 * c + 0.1 * reduced(row, "SUM") + 1, jnp.ones(WIDTH), x
        ),
        1,
    ),
    "a choice": (
        lambda x: scanned(
            lambda c, ir: jnp.where(ir[0] % 2 == 0, c + reduced(ir[1]), c),
            jnp.zeros(WIDTH),
            (jnp.arange(ROWS), x),
        ),
        1,
    ),
    "integers": (
        lambda x: scanned(
            lambda c, row: c + reduced((row * 10).astype(jnp.int32), "SUM"),
            jnp.zeros(WIDTH, jnp.int32),
            x,
        ),
        1,
    ),
    "nested loops": (nested, 1),
    "beside other carries": (beside_other_carries, 1 + ROWS),
    "gradients": (gradients, 1),
    "a carry that is read": (
        lambda x: jax.lax.scan(lambda c, row: (c + reduced(row), c * c), jnp.zeros(WIDTH), x),
        ROWS,
    ),
    "a gradient of the carry": (
        lambda x: scanned(lambda c, r: c - 0.1 * reduced(jnp.sin(c) * r), jnp.ones(WIDTH), x),
        ROWS,
    ),
}


def strategy_of() -> gd.MirroredStrategy:
    return gd.MirroredStrategy([f"cpu:{i}" for i in range(REPLICAS)])


def collectives_run(graph: Graph) -> int:
    """Return how often a step runs collectives."""
    inside = (
        collectives_run(nested) * (Scan(node).length if node.op is SCAN else 1)
        for node in graph.nodes
        for nested in node.graphs
    )
    return sum(node.op.is_collective for node in graph.nodes) + sum(inside)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_added_up_is_sent_once(name: str) -> None:
    program, expected = PROGRAMS[name]
    strategy = strategy_of()
    step = gd.function(lambda x: strategy.run(program, args=(x,)))
    with strategy.scope():
        lowered = step.trace(gd.PerReplicaSpec((ROWS, WIDTH), jnp.float32)).lower()
    assert collectives_run(lowered.graph) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_gives_the_same(name: str) -> None:
    program, _ = PROGRAMS[name]
    strategy = strategy_of()
    (batch,) = strategy.experimental_distribute_dataset([BATCH])
    results = [
        gd.function(lambda x: strategy.run(program, args=(x,)), allow_reassociation=reorders)(batch)
        for reorders in (True, False)
    ]
    mine, theirs = (
        [
            np.asarray(each)
            for value in jax.tree.leaves(result)
            for each in strategy.experimental_local_results(value)
        ]
        for result in results
    )
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
