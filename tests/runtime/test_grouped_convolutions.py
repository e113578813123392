"""Convolutions with groups, at one place, and gradients of transposed ones, on CPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

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

Convolution = Callable[[jax.Array, jax.Array], jax.Array]

ORDERS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC"), 5: ("NDHWC", "DHWIO", "NDHWC")}


def convolved(image: jax.Array, kernel: jax.Array, **options: Any) -> jax.Array:
    given = {"window_strides": (1,) * (image.ndim - 2), "padding": "SAME", **options}
    return lax.conv_general_dilated(image, kernel, dimension_numbers=ORDERS[image.ndim], **given)


def transposed(image: jax.Array, kernel: jax.Array, **options: Any) -> jax.Array:
    given = {"strides": (2, 2), "padding": "SAME", **options}
    return lax.conv_transpose(image, kernel, dimension_numbers=ORDERS[image.ndim], **given)


CASES: dict[str, tuple[Convolution, tuple[int, ...], tuple[int, ...], int]] = {
    "depthwise": (partial(convolved, feature_group_count=24), (4, 16, 16, 24), (3, 3, 1, 24), 0),
    "two for each feature": (
        partial(convolved, feature_group_count=24),
        (4, 16, 16, 24),
        (3, 3, 1, 48),
        0,
    ),
    "large windows": (
        partial(convolved, feature_group_count=24),
        (5, 16, 16, 24),
        (7, 5, 1, 24),
        0,
    ),
    "strides": (
        partial(convolved, feature_group_count=24, window_strides=(2, 3)),
        (8, 17, 16, 24),
        (3, 5, 1, 24),
        0,
    ),
    "dilated windows": (
        partial(convolved, feature_group_count=24, rhs_dilation=(2, 1)),
        (4, 17, 16, 24),
        (3, 3, 1, 24),
        0,
    ),
    "dilated images": (
        partial(convolved, feature_group_count=8, lhs_dilation=(2, 3), padding=((1, 2), (3, 1))),
        (4, 17, 16, 24),
        (3, 3, 3, 16),
        0,
    ),
    "dilated images in groups": (
        partial(convolved, feature_group_count=2, lhs_dilation=(2, 2), padding=((1, 2), (2, 1))),
        (4, 9, 10, 32),
        (3, 3, 16, 4),
        6,
    ),
    "sequences": (partial(convolved, feature_group_count=16), (16, 120, 16), (5, 1, 16), 0),
    "volumes": (partial(convolved, feature_group_count=16), (2, 8, 9, 10, 16), (3, 3, 3, 1, 16), 0),
    "groups of few features": (
        partial(convolved, feature_group_count=3, window_strides=(2, 1)),
        (4, 16, 16, 24),
        (3, 3, 8, 24),
        0,
    ),
    "groups": (
        partial(convolved, feature_group_count=2, window_strides=(1, 2)),
        (4, 16, 16, 32),
        (3, 3, 16, 32),
        6,
    ),
    "windows of one number": (convolved, (4, 16, 16, 32), (1, 1, 32, 48), 2),
    "windows of one number, strides": (
        partial(convolved, window_strides=(2, 3)),
        (8, 16, 17, 32),
        (1, 1, 32, 48),
        2,
    ),
    "as large as the image": (
        partial(convolved, padding=((-1, 0), (0, -2))),
        (32, 7, 8, 16),
        (6, 6, 16, 24),
        2,
    ),
    "transposed": (transposed, (4, 9, 10, 64), (3, 3, 64, 8), 3),
    "transposed, without padding": (
        partial(transposed, strides=(2, 3), padding="VALID"),
        (4, 9, 10, 64),
        (4, 5, 64, 3),
        3,
    ),
}


def with_gradients(convolution: Convolution) -> Callable[..., tuple[jax.Array, ...]]:
    def function(image: jax.Array, kernel: jax.Array) -> tuple[jax.Array, ...]:
        result, gradients = jax.vjp(convolution, image, kernel)
        return (result, *gradients(jnp.sin(result)))

    return function


def operands(image: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    return jnp.asarray(random.normal(size=image), "f"), jnp.asarray(random.normal(size=kernel), "f")


def check_equal(found: Any, wanted: Any, error: float = 3e-5) -> None:
    for here, there in zip(found, wanted, strict=True):
        assert here.dtype == there.dtype
        largest = float(jnp.abs(there.astype("f")).max())
        difference = jnp.abs(here.astype("f") - there.astype("f"))
        assert float(difference.max()) <= error * largest


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_jax(case: str) -> None:
    convolution, image, kernel, _ = CASES[case]
    function = with_gradients(convolution)
    given = operands(image, kernel)
    check_equal(gd.function(function)(*given), jax.jit(function)(*given))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", ["depthwise", "groups", "transposed"])
def test_sixteen_bits_are_added_up_in_float32(case: str, dtype: str) -> None:
    convolution, image, kernel, _ = CASES[case]
    given = [operand.astype(dtype) for operand in operands(image, kernel)]
    found = gd.function(convolution)(*given)
    assert found.dtype == dtype
    wanted = jax.jit(convolution)(*(operand.astype("f") for operand in given))
    check_equal([found], [wanted.astype(dtype)], error=2**-7)


@pytest.mark.parametrize("case", CASES)
def test_none_with_groups_or_with_a_dilated_gradient_is_left(case: str) -> None:
    convolution, image, kernel, number = CASES[case]
    function, given = with_gradients(convolution), operands(image, kernel)
    graph = gd.function(function).trace(*given).lower().graph
    with operations_for("cpu", {}):
        jaxpr = jax.make_jaxpr(lambda *arrays: emit(graph, arrays))(*given)
    left = [each for each in jaxpr.eqns if each.primitive.name == "conv_general_dilated"]
    assert len(left) <= number
    for each in left:
        assert each.params["feature_group_count"] == each.params["batch_group_count"] == 1
        image, kernel = (operand.aval.shape for operand in each.invars)
        is_dilated = {*each.params["lhs_dilation"]} != {1}
        assert not is_dilated or kernel[0] <= 5  # a kernel, and no gradient of a result


def test_small_ones_and_many_groups_stay() -> None:
    for image, kernel, groups in (
        ((2, 6, 6, 4), (3, 3, 1, 8), 4),
        ((1, 4, 4, 1024), (3, 3, 16, 1024), 64),
    ):
        function = partial(convolved, feature_group_count=groups)
        given = operands(image, kernel)
        text = gd.function(function).trace(*given).lower().as_text("stablehlo")
        assert f"feature_group_count = {groups}" in text


Rows: TypeAlias = list[tuple[int, int, int, int, int, int]]
ROW = draws.tuples(
    draws.integers(1, 4),  # the window
    draws.integers(1, 3),  # its stride
    draws.integers(0, 3),  # padding before
    draws.integers(0, 3),  # and behind
    draws.integers(1, 2),  # dilation of the image
    draws.integers(1, 2),  # dilation of the window
)


def drawn_convolution(
    rows: Rows, **options: Any
) -> tuple[tuple[int, ...], Callable[[jax.Array, jax.Array], Any]]:
    """Return a window, and its convolution with gradients."""
    window, strides, before, behind, dilations, spreads = zip(*rows, strict=True)
    convolution = partial(
        convolved,
        window_strides=strides,
        padding=tuple(zip(before, behind, strict=True)),
        lhs_dilation=dilations,
        rhs_dilation=spreads,
        **options,
    )
    return window, with_gradients(convolution)


@settings(max_examples=12, deadline=None)
@given(
    draws.sampled_from([(8, 1, 1), (8, 1, 3), (4, 2, 2), (2, 16, 4), (1, 12, 3)]),
    draws.lists(ROW, min_size=1, max_size=2),
)
def test_random_convolutions_are_those_of_jax(features: tuple[int, int, int], rows: Rows) -> None:
    groups, of_group, results = features
    window, function = drawn_convolution(rows, feature_group_count=groups)
    sizes = (330,) if len(rows) == 1 else (23, 24)
    batch = 2**15 // (int(np.prod(sizes)) * groups * of_group) + 1
    given = operands((batch, *sizes, groups * of_group), (*window, of_group, groups * results))
    check_equal(gd.function(function)(*given), jax.jit(function)(*given))
