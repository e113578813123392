"""Reductions on CPUs: halves of arrays are compared or added, with the results of XLA's."""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd

REDUCTIONS: dict[str, tuple[Callable[..., jax.Array], Callable[..., np.ndarray]]] = {
    "largest": (jnp.max, np.max),
    "smallest": (jnp.min, np.min),
}
SHAPES_AND_AXES = [
    ((128, 160), (1,)),
    ((128, 160), (0,)),
    ((128, 160), (0, 1)),
    ((3, 157, 61), (1,)),  # 157 and 61 are prime
    ((3, 157, 61), (0, 2)),
    ((16384,), (0,)),
    ((16385,), (0,)),
    ((2, 5, 9, 7, 40), (1, 3, 4)),
    ((40000, 1), (0,)),
    ((40000, 1), (1,)),
    ((16, 20), (1,)),  # too few numbers for halves
]


def array(shape: tuple[int, ...], dtype: str) -> jax.Array:
    numbers = np.random.default_rng(sum(shape)).standard_normal(shape) * 100
    return jnp.asarray(numbers).astype(dtype)


@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_extremes_have_the_same_bits(
    name: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    of_jax, of_numpy = REDUCTIONS[name]
    values = array(shape, dtype)
    found = gd.function(lambda x: of_jax(x, axis=axes))(values)
    assert found.dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(found), of_numpy(np.asarray(values), axis=axes))


def test_not_a_number_is_the_largest_value_and_the_smallest() -> None:
    values = array((64, 500), "float32").at[3, 499].set(jnp.nan).at[5, 0].set(-jnp.inf)
    step = gd.function(lambda x: (x.max(axis=1), x.min(axis=1)))
    for found, expected in zip(step(values), (values.max(axis=1), values.min(axis=1)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("shape", "axes"), SHAPES_AND_AXES)
@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_sums_of_16_bit_values_are_rounded_once(
    dtype: str, rounding: float, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    values = array(shape, dtype) / 100
    zero = np.zeros((), dtype)
    found = gd.function(lambda x: lax.reduce(x, zero, lax.add, axes))(values)
    exact = np.asarray(values, "f8").sum(axis=axes)
    assert found.dtype == values.dtype
    allowed = np.abs(exact) * rounding + 1e-3  # the second is for what float32 loses
    assert (np.abs(np.asarray(found, "f8") - exact) <= allowed).all()


def test_derivatives_go_through_reductions() -> None:
    values = array((64, 300), "float32")

    def loss(x: jax.Array) -> jax.Array:
        return (jax.nn.logsumexp(x, axis=1) + x.min(axis=0).sum()).mean()

    found = gd.function(jax.grad(loss))(values)
    np.testing.assert_allclose(found, jax.grad(loss)(values), rtol=1e-5, atol=1e-6)


def test_rows_are_compared_until_a_vector_is_left() -> None:
    values = array((1024, 64), "float32")
    text = gd.function(lambda x: x.max(axis=1)).trace(values).lower().as_text("stablehlo")
    assert len(re.findall(r"maximum %\S+ %\S+ : tensor<1024x(?:32|16)xf32>", text)) == 2
    assert re.search(r"stablehlo.maximum across .*\(tensor<1024x16xf32>", text)


def test_sums_of_float32_and_reductions_of_few_numbers_are_xla_s() -> None:
    step = gd.function(lambda x, few: (x.sum(axis=1), few.max(axis=1)))
    lowered = step.trace(array((1024, 64), "float32"), array((64, 64), "float32")).lower()
    assert "stablehlo.slice" not in lowered.as_text("stablehlo")
