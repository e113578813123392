"""Convolutions of images that the cores hold in shards: values, gradients, and what is sent."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from tests.cores.training import strategy_on

LENGTH = 16
CASES: dict[str, dict[str, Any]] = {
    "stride": {"window": 3, "stride": 2},
    "patches": {"window": 2, "stride": 2},
    "windows apart": {"window": 3, "stride": 4},
    "even window": {"window": 4, "stride": 2},
    "dilated": {"window": 3, "stride": 1, "dilation": 2},
    "dilated with a stride": {"window": 3, "stride": 2, "dilation": 2},
    "transposed": {"window": 3, "stride": 2, "is_transposed": True},
    "transposed patches": {"window": 2, "stride": 2, "is_transposed": True},
    "transposed with gaps": {"window": 2, "stride": 4, "is_transposed": True},
    "padding in front": {"window": 3, "stride": 2, "padding": (2, -1)},
    "shorter result": {"window": 3, "stride": 2, "padding": (0, 0)},
    "longer result": {"window": 3, "stride": 1, "padding": (2, 2)},
    "window over more than a shard": {"window": 19, "stride": 1},
}
IN_FULL = {"shorter result", "longer result", "window over more than a shard"}
"""Those whose windows do not begin in the shards where their results are, or reach too far."""


def convolved(
    x: jax.Array,
    weights: jax.Array,
    stride: int,
    padding: Any = "SAME",
    dilation: int = 1,
    *,
    is_transposed: bool = False,
) -> jax.Array:
    padding = padding if isinstance(padding, str) else [padding, (1, 1)]
    convolve = jax.lax.conv_transpose if is_transposed else jax.lax.conv_general_dilated
    names = ("NHWC", "HWIO", "NHWC")
    return convolve(
        x, weights, (stride, 1), padding, rhs_dilation=(dilation, 1), dimension_numbers=names
    )


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_shards_give_the_full_values_and_gradients(name: str, cores: int) -> None:
    case = dict(CASES[name])
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(2, LENGTH, 5, 2)).astype(np.float32)
    weights = numbers.normal(size=(case.pop("window"), 3, 2, 3)).astype(np.float32)
    strategy = strategy_on(1, cores)

    def gradients(x: Any, weights: Any, is_split: bool = False) -> Any:
        def loss(x: Any, weights: Any) -> Any:
            if is_split:
                x = strategy.experimental_split_to_logical_devices(x, [1, cores, 1, 1])
            y = convolved(x, weights, **case)
            return jnp.sum(jnp.sin(y) * jnp.arange(y.size).reshape(y.shape) / y.size)

        value, of_both = jax.value_and_grad(loss, argnums=(0, 1))(x, weights)
        return value, *of_both

    in_shards = partial(gradients, is_split=True)
    step = gd.function(lambda *args: strategy.run(in_shards, args=args))
    wanted, found = jax.jit(gradients)(x, weights), step(x, weights)
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-4)
    kinds = [each.kind for each in step.trace(x, weights).lower().collectives]
    gathers = kinds.count("all_gather_over_cores")
    assert (gathers > 1) == (name in IN_FULL)  # the gradient of x is given back in full
