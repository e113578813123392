"""Pools of images that the cores hold in shards: values, gradients, and what is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd
from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.graph import Value
from graphdist.ir.op_parameters import ExchangingBorders
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import Type
from tests.cores.training import strategy_on

LENGTH = 16
CASES: dict[str, dict[str, Any]] = {
    "overlapping": {"window": 3, "stride": 2},
    "every position": {"window": 3, "stride": 1},
    "padding in front": {"window": 3, "stride": 2, "padding": (1, 0)},
    "padding at both ends": {"window": 5, "stride": 2, "padding": (2, 1)},
    "even window": {"window": 4, "stride": 2},
    "dilated": {"window": 3, "stride": 1, "dilation": 2},
    "apart": {"window": 2, "stride": 4},
    "every other position": {"window": 1, "stride": 2},
    "windows that touch": {"window": 2, "stride": 2},
    "shorter result": {"window": 3, "stride": 2, "padding": (0, 0)},
    "window over more than a shard": {"window": 19, "stride": 1},
}
IN_FULL = {"shorter result", "window over more than a shard"}
"""Those whose windows do not begin in the shards where their results are, or reach too far."""
REDUCTIONS: dict[str, tuple[float, Any]] = {
    "max": (-np.inf, lax.max),
    "min": (np.inf, lax.min),
    "sum": (0.0, lax.add),
}


def pooled(
    x: jax.Array, reducer: str, window: int, stride: int, padding: Any = "SAME", dilation: int = 1
) -> jax.Array:
    padding = padding if isinstance(padding, str) else [(0, 0), padding, (1, 1), (0, 0)]
    start, computation = REDUCTIONS[reducer]
    sizes, strides = (1, window, 3, 1), (1, stride, 1, 1)
    dilations = (1, dilation, 1, 1)
    return lax.reduce_window(
        x, x.dtype.type(start), computation, sizes, strides, padding, None, dilations
    )


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("reducer", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_shards_give_the_full_values_and_gradients(name: str, reducer: str, cores: int) -> None:
    x = np.random.default_rng(0).normal(size=(2, LENGTH, 5, 2)).round(1).astype(np.float32)
    strategy = strategy_on(1, cores)
    differentiates = reducer == "sum" or "dilation" not in CASES[name]  # JAX does not, either

    def values(x: Any, is_split: bool = False) -> Any:
        def loss(x: Any) -> Any:
            if is_split:
                x = strategy.experimental_split_to_logical_devices(x, [1, cores, 1, 1])
            y = pooled(x * x, reducer, **CASES[name])
            y = jnp.where(jnp.isfinite(y), y, 0)  # of windows in the padding alone
            return jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape) / y.size)

        return jax.value_and_grad(loss)(x) if differentiates else loss(x)

    in_shards = partial(values, is_split=True)
    step = gd.function(lambda x: strategy.run(in_shards, args=(x,)))
    for mine, theirs in zip(
        jax.tree.leaves(step(x)), jax.tree.leaves(jax.jit(values)(x)), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-4)
    sent = step.trace(x).lower().collectives
    gathered = [each for each in sent if each.kind == "all_gather_over_cores"]
    assert (len(gathered) > differentiates) == (name in IN_FULL)  # the gradient is given back


def test_only_rows_at_the_borders_are_sent() -> None:
    strategy = strategy_on(1, 2)

    def loss(x: jax.Array) -> jax.Array:
        x = strategy.experimental_split_to_logical_devices(x, [1, 2, 1, 1])
        return jnp.sum(jnp.sin(pooled(x, "max", 5, 2, (2, 1))))

    step = gd.function(lambda x: strategy.run(jax.grad(loss), args=(x,)))
    sent = step.trace(np.zeros((2, LENGTH, 5, 2), "float32")).lower().collectives
    rows = 2 + 1  # two in front of a core's shard, one behind it
    assert {each.kind: each.bytes for each in sent if "borders" in each.kind} == {
        "exchange_borders": rows * 2 * 5 * 2 * 4,
        "add_borders": rows * 2 * 5 * 2 * 4,
    }


@pytest.mark.parametrize(
    ("shape", "borders"), [((6,), (4, 1)), ((6,), (0, 7)), ((6,), (-1, 1)), ((), (1, 1))]
)
def test_borders_that_a_shard_does_not_have_are_refused(
    shape: tuple[int, ...], borders: tuple[int, int]
) -> None:
    value, params = Value(Type("f32", shape)), ExchangingBorders(0, *borders, num_cores=2)
    with pytest.raises(TypeRuleError, match="add_borders of f32"):
        Builder("").add(ops.ADD_BORDERS, (value,), params, at=UNKNOWN)


def test_borders_for_a_mean_are_refused() -> None:
    value, params = Value(Type("f32", (6,))), ExchangingBorders(0, 1, 1, "mean", num_cores=2)
    with pytest.raises(TypeRuleError, match="a reduction by 'mean'"):
        Builder("").add(ops.EXCHANGE_BORDERS, (value,), params, at=UNKNOWN)


def test_other_pools_gather_and_are_right() -> None:
    x = np.random.default_rng(0).normal(size=(2, LENGTH, 5, 2)).astype(np.float32)
    strategy = strategy_on(1, 2)

    def values(x: Any, is_split: bool = False) -> Any:
        if is_split:
            x = strategy.experimental_split_to_logical_devices(x, [1, 2, 1, 1])
        sizes, strides = (1, 3, 3, 1), (1, 2, 1, 1)
        product = lax.reduce_window(x, np.float32(1), lax.mul, sizes, strides, "SAME")
        return product, jax.jvp(lambda x: pooled(x, "max", 3, 2), (x,), (x * x,))[1]

    step = gd.function(lambda x: strategy.run(partial(values, is_split=True), args=(x,)))
    for mine, theirs in zip(step(x), values(x), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    assert {each.kind for each in step.trace(x).lower().collectives} == {"all_gather_over_cores"}
