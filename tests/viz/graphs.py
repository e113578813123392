"""Graphs of any size, and one full of text that wants to be more than text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import graphdist as gd
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Stage, Value
from graphdist.ir.ops import ALL_REDUCE, SCALE
from graphdist.ir.source import at_line
from graphdist.ir.types import PER_REPLICA, Type

HOSTILE = (
    "</script><img src=x onerror=\"alert('1')\">'`&amp;\u202e\u65e5\u672c\x1b[31m" + "x" * 5000
)


def chain(size: int, hint: str = "", file: str = "step.py", scope: str = "") -> Graph:
    """Return a chain of scales, each hundredth an all_reduce."""
    builder, x = Builder(), Value(Type("f32", (8, 8), PER_REPLICA), hint or "x")
    value: Value = x
    for number in range(size):
        at = at_line(file, 1 + number % 7, "step", scope)
        if number % 100 == 50:
            params: dict[str, object] = {"reducer": "sum", "group_size": 4}
            (value,) = builder.add(ALL_REDUCE, (value,), params, at=at)
        else:
            (value,) = builder.add(SCALE, (value,), {"factor": 0.5}, at=at)
    return Graph(
        "chain", Stage.SPMD, 4, (x,), tuple(builder.nodes), (value,), returns_per_replica=(True,)
    )


def blocks(size: int, *, communicates: bool = False) -> Graph:
    """Return a chain of as many nodes in scopes three deep: stages of ten blocks of two halves.

    If it communicates, each hundredth node is an all_reduce.
    """
    builder, x = Builder(), Value(Type("f32", (8, 8), PER_REPLICA), "x")
    value: Value = x
    for number in range(size):
        half = "attention" if number % 50 < 25 else "mlp"
        scope = f"model/stage{number // 500}/block{number // 50 % 10}/{half}"
        at = at_line("model.py", 10 + number % 25, "block", scope)
        if communicates and number % 100 == 60:
            params: dict[str, object] = {"reducer": "sum", "group_size": 4}
            (value,) = builder.add(ALL_REDUCE, (value,), params, at=at)
        else:
            (value,) = builder.add(SCALE, (value,), {"factor": 0.5}, at=at)
    return Graph(
        "blocks", Stage.SPMD, 4, (x,), tuple(builder.nodes), (value,), returns_per_replica=(True,)
    )


def nested(size: int = 3) -> Graph:
    """Return a traced program: nodes of no, one and two results, literals, nested graphs."""

    @gd.function
    def step(x: jax.Array, flag: jax.Array) -> tuple[jax.Array, jax.Array]:
        jax.debug.callback(lambda _: None, x)
        x = x + np.arange(4.0, dtype=np.float32).reshape(2, 2)
        sign, logarithm = jnp.linalg.slogdet(x)
        _, keys = lax.scan(lambda c, row: (c + row[0], lax.sort((row, row))), logarithm, x)
        x = lax.cond(flag, lambda v: v * 2.0, lambda v: jnp.take(v, jnp.array([1, 0]), axis=0), x)
        return x + keys[0], sign

    return step.trace(jnp.eye(2) * size, jnp.bool_(True)).graph


def hostile() -> Graph:
    """Return a graph whose names, files and scopes are hostile."""
    return chain(60, hint=HOSTILE, file=HOSTILE, scope=HOSTILE)
