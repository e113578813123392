"""What a graph computes and moves, against counts made by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd
from graphdist.ir.cost import cost

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
IMAGES = jax.ShapeDtypeStruct((2, 6, 6, 3), jnp.float32)
KERNEL = jax.ShapeDtypeStruct((3, 3, 3, 5), jnp.float32)


def convolve(x: Any, kernel: Any) -> Any:
    """Return a convolution of rows of pixels, without padding."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=layout)


def repeat(x: jax.Array, times: int) -> jax.Array:
    """Return x after so many sines."""
    return jax.lax.fori_loop(0, times, lambda _, x: jnp.sin(x), x)


@pytest.mark.parametrize(
    ("function", "args", "flops"),
    [
        (lambda x: x * 2, (X,), 32),
        (lambda x: x.sum(), (X,), 32),
        (lambda x: x.max(axis=0), (X,), 32),
        (lambda x: x.T.reshape(-1), (X,), 0),
        (lambda x: x @ x.T, (X,), 2 * 4 * 4 * 8),
        (convolve, (IMAGES, KERNEL), 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3)),
        (lambda x: repeat(x, 7), (X,), 7 * 32),
        (lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda x: repeat(x, 3), x), (X,), 3 * 32),
    ],
)
def test_operations_are_counted(function: Any, args: tuple[Any, ...], flops: int) -> None:
    graph = gd.function(function).trace(*args).lower().graph
    assert cost(graph).total_flops == flops


def test_traffic_is_what_fusion_cannot_keep_on_the_chip() -> None:
    graph = gd.function(lambda x: jnp.sin(x @ x.T) + 1).trace(X).lower().graph
    boundary, matmul = 4 * (32 + 16), 4 * (32 + 32 + 16)
    assert cost(graph).bytes == boundary + matmul
