"""Products and reductions of bfloat16 on CPUs have the form that takes the least time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime import cpu_operations, cpu_options
from graphdist.runtime.cpu_operations import LIBRARY
from graphdist.runtime.cpu_options import PRODUCTS_OF_BFLOAT16

RANDOM = np.random.default_rng(0)
TWO = "tensor<{}xbf16>, tensor<{}xbf16>) -> tensor<{}xf32>"


def array(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.standard_normal(shape), jnp.bfloat16)


@pytest.fixture(params=[True, False], ids=["with instructions", "without"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for module in (cpu_operations, cpu_options):
        monkeypatch.setattr(module, "has_bfloat16_instructions", lambda: request.param)
    return bool(request.param)


def product(
    left: tuple[int, ...], right: tuple[int, ...], result: Any = None
) -> Callable[..., jax.Array]:
    return lambda a, b: jax.lax.dot_general(a, b, ((left, right), ((), ())), None, result)


FORMS: dict[str, tuple[Callable[..., jax.Array], tuple[int, ...], tuple[int, ...], str]] = {
    "rows by columns": (product((1,), (0,)), (4, 6), (6, 3), TWO.format("4x6", "6x3", "4x3")),
    "rows by rows": (product((1,), (1,)), (4, 6), (3, 6), TWO.format("4x6", "3x6", "4x3")),
    "columns by columns": (product((0,), (0,)), (5, 4), (5, 3), TWO.format("4x5", "5x3", "4x3")),
    "columns by rows": (product((0,), (1,)), (5, 2), (8, 5), TWO.format("2x5", "8x5", "2x8")),
    "columns of a larger matrix": (
        product((0,), (0,)),
        (5, 40),
        (5, 3),
        TWO.format("3x5", "5x40", "3x40"),
    ),
    "columns of a larger matrix by rows": (
        product((0,), (1,)),
        (50, 4),
        (3, 50),
        TWO.format("3x50", "50x4", "3x4"),
    ),
    "of three dimensions": (
        product((2,), (0,)),
        (2, 4, 6),
        (6, 3),
        TWO.format("8x6", "6x3", "8x3"),
    ),
    "over two dimensions": (
        product((0, 1), (0, 1)),
        (2, 5, 4),
        (2, 5, 3),
        TWO.format("4x10", "10x3", "4x3"),
    ),
    "in float32": (
        product((1,), (0,), jnp.float32),
        (4, 6),
        (6, 3),
        TWO.format("4x6", "6x3", "4x3"),
    ),
    "dimensions apart": (product((1,), (0,)), (2, 6, 4), (6, 3), ""),
    "a vector": (product((1,), (0,)), (4, 6), (6,), ""),
    "outer": (product((), ()), (4,), (3,), ""),
    "of several matrices": (
        lambda a, b: jnp.einsum("bik,bkj->bij", a, b),
        (2, 4, 6),
        (2, 6, 3),
        "",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_product_is_one_of_two_matrices(name: str, instructions: bool) -> None:
    function, left, right, form = FORMS[name]
    a, b = array(*left), array(*right)
    step = gd.function(function)
    assert (form in step.trace(a, b).lower().as_text("stablehlo")) == (instructions or not form)
    found, expected = step(a, b), function(*(x.astype(jnp.float32) for x in (a, b)))
    assert found.dtype == function(a, b).dtype
    np.testing.assert_allclose(np.asarray(found, "f"), expected, rtol=1e-2, atol=1e-2)


def test_float32_products_of_several_matrices_are_computed_so(instructions: bool) -> None:
    a, b = array(2, 4, 6), array(2, 6, 3)
    step = gd.function(lambda a, b: jnp.einsum("bik,bkj->bij", a, b, preferred_element_type="f"))
    text = step.trace(a, b).lower().as_text("stablehlo")
    assert re.search(r"dot_general.*tensor<2x4x6xf32>, tensor<2x6x3xf32>\)", text)
    np.testing.assert_allclose(step(a, b), jnp.matmul(a.astype("f"), b.astype("f")), rtol=1e-5)


def attention(query: jax.Array) -> jax.Array:
    weights = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", query, query))
    return jnp.tanh(jnp.einsum("bnts,bsnh->btnh", weights, query) @ query[0, 0].T)


def gradient(query: jax.Array) -> jax.Array:
    return jax.grad(lambda query: attention(query).astype("f").sum())(query)


@pytest.mark.parametrize("function", [attention, gradient])
def test_the_library_gets_all_products_of_attention(
    function: Callable[[jax.Array], jax.Array], instructions: bool
) -> None:
    query = array(2, 8, 4, 16)
    step = gd.function(function)
    options = step.trace(query).lower().compiler_options
    assert (options[LIBRARY] == PRODUCTS_OF_BFLOAT16) == instructions
    found = np.asarray(step(query), "f")
    np.testing.assert_allclose(found, np.asarray(jax.jit(function)(query), "f"), rtol=0.1, atol=0.1)


def test_products_in_a_loop_have_the_form_too(instructions: bool) -> None:
    weights = array(3, 8, 8) / 4

    def loss(weights: jax.Array) -> jax.Array:
        def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(x @ weight), None

        return jax.lax.scan(layer, jnp.ones((4, 8), jnp.bfloat16), weights)[0].astype("f").sum()

    step = gd.function(jax.grad(loss))
    text = step.trace(weights).lower().as_text("stablehlo")
    assert len(re.findall(r"tensor<8x8xbf16>\) -> tensor<\w+xf32>", text)) >= 2 * instructions
    np.testing.assert_allclose(
        np.asarray(step(weights), "f"), np.asarray(jax.grad(loss)(weights), "f"), atol=0.05
    )


def test_the_largest_values_are_found_in_float32() -> None:
    values = array(64, 48)
    step = gd.function(lambda x: (x.max(axis=1), x.max()))
    text = step.trace(values).lower().as_text("stablehlo")
    assert len(re.findall(r"reduce\(.*stablehlo.maximum.*tensor<64x48xf32>", text)) == 2
    for found, expected in zip(step(values), (values.max(axis=1), values.max()), strict=True):
        np.testing.assert_array_equal(np.asarray(found, "f"), np.asarray(expected, "f"))
