"""Pools on CPUs are operations on slices, with the results and gradients of XLA's windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draws
from jax import lax

import graphdist as gd
from graphdist.runtime.cpu_operations import operations_for
from graphdist.runtime.emit import emit

Pool = Callable[[jax.Array], jax.Array]

REDUCTIONS: dict[str, tuple[float, Any]] = {
    "largest": (-jnp.inf, lax.max),
    "smallest": (jnp.inf, lax.min),
    "sum": (0.0, lax.add),
}
WINDOWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], Any]] = {
    "halves": ((4, 32, 32, 8), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "halves of odd images": ((4, 33, 31, 8), (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
    "overlapping": ((4, 29, 30, 8), (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    "every place": ((4, 24, 24, 8), (1, 3, 3, 1), (1, 1, 1, 1), "SAME"),
    "features first": ((4, 8, 32, 32), (1, 1, 2, 3), (1, 1, 2, 3), "VALID"),
    "gaps": ((4, 40, 41, 8), (1, 2, 3, 1), (1, 3, 5, 1), "VALID"),
    "one dimension": ((16, 301, 5), (1, 4, 1), (1, 4, 1), "SAME"),
    "volumes": ((2, 16, 12, 14, 4), (1, 2, 2, 3, 1), (1, 2, 2, 1, 1), "SAME"),
    "features too": ((4, 16, 16, 32), (1, 2, 2, 2), (1, 2, 2, 2), "VALID"),
    "no window": ((4, 48, 48, 4), (1, 1, 1, 1), (1, 2, 2, 1), "VALID"),
    "edges": ((4, 40, 40, 4), (1, 4, 3, 1), (1, 3, 2, 1), ((0, 0), (3, 1), (0, 2), (0, 0))),
    "large": ((4, 40, 40, 4), (1, 8, 8, 1), (1, 8, 8, 1), "VALID"),
}


def pool_of(reduction: str, windows: str, dtype: str = "float32") -> tuple[Pool, jax.Array]:
    """Return a pool and an image, of which some numbers are equal."""
    shape, size, strides, padding = WINDOWS[windows]
    init, combine = REDUCTIONS[reduction]
    numbers = np.random.default_rng(0).integers(-20, 20, shape) / 4

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, np.asarray(init, x.dtype), combine, size, strides, padding)

    return pool, jnp.asarray(numbers, dtype)


def gradient_of(pool: Pool) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function of an image and of the gradient of its pool."""
    return lambda x, y: jax.vjp(pool, x)[1](y)[0]


def weights(pool: Pool, image: jax.Array) -> jax.Array:
    """Return a gradient of the pool's result, of whole numbers, so that sums have no rounding."""
    shape = jax.eval_shape(pool, image)
    return jnp.asarray(np.random.default_rng(1).integers(-9, 9, shape.shape), shape.dtype)


def operations_of(function: Callable[..., Any], *arrays: jax.Array, platform: str) -> str:
    """Return the operations that are emitted for a function."""
    graph = gd.function(function).trace(*arrays).lower().graph
    with operations_for(platform, {}):
        return str(jax.make_jaxpr(lambda *given: emit(graph, given))(*arrays))


CASES = [
    *((windows, "float32") for windows in WINDOWS),
    *(
        (windows, dtype)
        for windows in ("halves", "overlapping")
        for dtype in ("bfloat16", "float16")
    ),
]


@pytest.mark.parametrize(("windows", "dtype"), CASES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_pools_have_the_bits_of_jax(reduction: str, windows: str, dtype: str) -> None:
    pool, image = pool_of(reduction, windows, dtype)
    found = gd.function(pool)(image)
    assert found.dtype == dtype
    # Numbers are multiples of a quarter, so that their sums are not rounded in float32.
    np.testing.assert_array_equal(found, jax.jit(pool)(image.astype("f")).astype(dtype))


@pytest.mark.parametrize(("windows", "dtype"), CASES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradients_have_the_bits_of_jax(reduction: str, windows: str, dtype: str) -> None:
    pool, image = pool_of(reduction, windows, dtype)
    gradient = weights(pool, image)
    found = gd.function(gradient_of(pool))(image, gradient)
    assert found.dtype == dtype
    wanted = jax.jit(gradient_of(pool))(image.astype("f"), gradient.astype("f"))
    np.testing.assert_array_equal(found, wanted.astype(dtype))


@pytest.mark.parametrize("windows", [name for name in WINDOWS if name != "no window"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_window_is_left_on_cpus(reduction: str, windows: str) -> None:
    pool, image = pool_of(reduction, windows)
    gradient = weights(pool, image)
    for function, arrays in ((pool, (image,)), (gradient_of(pool), (image, gradient))):
        emitted = operations_of(function, *arrays, platform="cpu")
        of_two = reduction == "sum" and max(WINDOWS[windows][1]) == 2 and len(arrays) == 2
        assert of_two or ("reduce_window" not in emitted and "select_and_" not in emitted)
        elsewhere = operations_of(function, *arrays, platform="tpu")
        assert "reduce_window" in elsewhere or "select_and_" in elsewhere


def test_of_equal_numbers_the_first_is_chosen_and_no_padding() -> None:
    pool, image = pool_of("largest", "edges")
    gradient, step = weights(pool, image), gd.function(gradient_of(pool))
    zeros = jnp.zeros_like(image)
    expected = jax.jit(gradient_of(pool))(zeros, gradient)
    np.testing.assert_array_equal(step(zeros, gradient), expected)
    # Padding is the smallest number, too.
    np.testing.assert_array_equal(step(zeros - jnp.inf, gradient).sum(), gradient.sum())


@pytest.mark.parametrize(
    "options",
    [
        {"window_dilation": (1, 2, 2, 1)},
        {"base_dilation": (1, 2, 2, 1)},
        {"window_dimensions": (1, 9, 2, 1)},
        {"shape": (1, 16, 16, 2)},
        {"dtype": "int32"},
    ],
)
def test_other_pools_stay(options: dict[str, Any]) -> None:
    given = {"window_dimensions": (1, 2, 2, 1), "window_strides": (1, 2, 2, 1), **options}
    image = jnp.ones(given.pop("shape", (4, 32, 32, 8)), given.pop("dtype", "float32"))

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, np.zeros((), x.dtype), lax.add, padding="VALID", **given)

    assert "reduce_window" in operations_of(pool, image, platform="cpu")
    np.testing.assert_array_equal(gd.function(pool)(image), jax.jit(pool)(image))


def test_a_sum_of_a_padded_array_may_be_no_gradient() -> None:
    image = jnp.asarray(np.random.default_rng(0).integers(0, 9, (4, 16, 16, 32)), "f")

    def shifted(x: jax.Array, fill: float, low: int, strides: int) -> jax.Array:
        edges = [(0, 0, 0), (low, 2, 1), (2, 2, 1), (0, 0, 0)]
        padded = lax.pad(x, jnp.float32(fill), edges)
        window = (1, 3, 3, 1)
        return lax.reduce_window(padded, 0.0, lax.add, window, (1, strides, strides, 1), "VALID")

    for fill, low, strides in ((1.0, 2, 1), (0.0, -1, 1), (0.0, 2, 2), (0.0, 9, 1)):
        found = gd.function(partial(shifted, fill=fill, low=low, strides=strides))(image)
        np.testing.assert_array_equal(found, shifted(image, fill, low, strides))


@settings(max_examples=15, deadline=None)
@given(
    draws.sampled_from(sorted(REDUCTIONS)),
    draws.lists(
        draws.tuples(
            draws.integers(1, 8), draws.integers(1, 5), draws.integers(0, 4), draws.integers(0, 4)
        ),
        min_size=1,
        max_size=2,
    ),
)
def test_random_windows_have_the_bits_of_jax(
    reduction: str, windows: list[tuple[int, int, int, int]]
) -> None:
    sizes, strides, before, behind = (tuple(each) for each in zip(*windows, strict=True))
    edges = [
        (min(low, size - 1), high) for low, high, size in zip(before, behind, sizes, strict=True)
    ]
    if reduction == "sum":  # XLA of JAX 0.10.0 may crash where numbers are left out
        strides = tuple(map(min, strides, sizes))
    rank = len(windows)
    image = np.random.default_rng(2).integers(-5, 5, (*[(170, 24)[rank - 1]] * rank, 97))
    init, combine = REDUCTIONS[reduction]

    def pool(x: jax.Array) -> jax.Array:
        return lax.reduce_window(
            x, np.float32(init), combine, (*sizes, 1), (*strides, 1), (*edges, (0, 0))
        )

    x = jnp.asarray(image, "f")
    y = weights(pool, x)
    found = gd.function(lambda x, y: (pool(x), gradient_of(pool)(x, y)))(x, y)
    wanted = jax.jit(lambda x, y: (pool(x), gradient_of(pool)(x, y)))(x, y)
    for here, there in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(here, there)
