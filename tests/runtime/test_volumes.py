"""Convolutions of volumes on CPUs, which are computed as convolutions of images."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as draws

import graphdist as gd
from graphdist.runtime import cpu_volumes
from graphdist.runtime.cpu_operations import operations_for
from graphdist.runtime.emit import emit
from tests.runtime.test_grouped_convolutions import (
    ROW,
    Rows,
    check_equal,
    convolved,
    drawn_convolution,
    operands,
    transposed,
    with_gradients,
)

CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "windows of three": (convolved, (2, 9, 10, 11, 16), (3, 3, 3, 16, 20)),
    "few features": (convolved, (2, 9, 10, 11, 3), (3, 3, 3, 3, 20)),
    "no depth": (convolved, (2, 9, 10, 11, 16), (1, 3, 3, 16, 20)),
    "depth alone": (convolved, (2, 9, 10, 11, 16), (3, 1, 1, 16, 20)),
    "strides": (
        partial(convolved, window_strides=(2, 1, 3), padding="VALID"),
        (2, 12, 13, 14, 16),
        (3, 4, 2, 16, 20),
    ),
    "dilated windows": (
        partial(convolved, rhs_dilation=(2, 1, 3)),
        (2, 12, 13, 14, 16),
        (3, 3, 2, 16, 20),
    ),
    "dilated volumes": (
        partial(convolved, lhs_dilation=(3, 1, 2), padding=((1, 4), (0, 1), (2, 2))),
        (2, 5, 8, 7, 16),
        (4, 3, 3, 16, 20),
    ),
    "padding that is negative": (
        partial(convolved, padding=((-2, 1), (1, -1), (0, 0))),
        (2, 12, 9, 8, 16),
        (3, 3, 3, 16, 20),
    ),
    "transposed": (partial(transposed, strides=(2, 2, 2)), (2, 5, 6, 7, 16), (3, 3, 3, 16, 20)),
    "two groups": (
        partial(convolved, feature_group_count=2),
        (2, 9, 10, 11, 32),
        (3, 3, 3, 16, 40),
    ),
}


@pytest.mark.parametrize("most_bytes", [0, 2**23])
@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_jax(
    case: str, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_volumes, "_MOST_BYTES", most_bytes)
    convolution, volume, kernel = CASES[case]
    function, arrays = with_gradients(convolution), operands(volume, kernel)
    check_equal(gd.function(function)(*arrays), jax.jit(function)(*arrays))


@pytest.mark.parametrize("case", CASES)
def test_none_is_left_to_xla(case: str) -> None:
    convolution, volume, kernel = CASES[case]
    function, arrays = with_gradients(convolution), operands(volume, kernel)
    graph = gd.function(function).trace(*arrays).lower().graph
    with operations_for("cpu", {}):
        jaxpr = jax.make_jaxpr(lambda *given: emit(graph, given))(*arrays)
    left = [each for each in jaxpr.eqns if each.primitive.name == "conv_general_dilated"]
    assert all(len(each.params["window_strides"]) == 2 for each in left)


def test_another_order_of_dimensions_is_computed_likewise() -> None:
    convolution = partial(
        jax.lax.conv_general_dilated,
        window_strides=(1, 1, 1),
        padding="SAME",
        dimension_numbers=("NCDHW", "OIDHW", "NCDHW"),
    )
    function = with_gradients(convolution)
    arrays = operands((2, 16, 9, 10, 11), (20, 16, 3, 3, 3))
    check_equal(gd.function(function)(*arrays), jax.jit(function)(*arrays))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("most_bytes", [0, 2**23])
def test_sixteen_bits_are_added_up_in_float32(
    most_bytes: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_volumes, "_MOST_BYTES", most_bytes)
    convolution, volume, kernel = CASES["windows of three"]
    arrays = [operand.astype(dtype) for operand in operands(volume, kernel)]
    found = gd.function(convolution)(*arrays)
    assert found.dtype == dtype
    wanted = jax.jit(convolution)(*(operand.astype("f") for operand in arrays))
    check_equal([found], [wanted.astype(dtype)], error=2**-7 if dtype == jnp.bfloat16 else 2**-10)


@settings(max_examples=12, deadline=None)
@given(draws.lists(ROW, min_size=3, max_size=3), draws.sampled_from([0, 2**23]))
def test_random_convolutions_are_those_of_jax(rows: Rows, most_bytes: int) -> None:
    window, function = drawn_convolution(rows)
    arrays = operands((3, 8, 9, 10, 12), (*window, 12, 16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_volumes, "_MOST_BYTES", most_bytes)
        found = gd.function(function)(*arrays)
    check_equal(found, jax.jit(function)(*arrays))
