"""Convolutions on CPUs: in the order that a library takes, also in loops, or as products."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd
from graphdist.runtime.cpu_operations import LIBRARY, operations_for
from graphdist.runtime.cpu_options import ALL_BUT_CONVOLUTIONS
from graphdist.runtime.emit import emit

LAYOUTS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "images": (("NHWC", "HWIO", "NHWC"), (2, 6, 6, 3), (3, 3, 3, 4), {}),
    "strided": (("NHWC", "HWIO", "NHWC"), (2, 6, 6, 3), (3, 3, 3, 4), {"window_strides": (2, 2)}),
    "features first": (("NCHW", "OIHW", "NCHW"), (2, 3, 6, 6), (4, 3, 3, 3), {}),
    "depthwise": (
        ("NHWC", "HWIO", "NHWC"),
        (2, 6, 6, 4),
        (3, 3, 1, 8),
        {"feature_group_count": 4},
    ),
    "sequences": (("NWC", "WIO", "NWC"), (2, 6, 3), (3, 3, 4), {}),
}


def gradients(layout: str) -> tuple[Any, jax.Array, jax.Array]:
    """Return a function of images and kernel, which returns both gradients, and both arguments."""
    numbers, image, kernel, options = LAYOUTS[layout]
    random = np.random.default_rng(0)
    x, w = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in (image, kernel))

    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        given = {"window_strides": (1,) * (x.ndim - 2), **options}
        found = jax.lax.conv_general_dilated(
            x, w, padding="SAME", dimension_numbers=numbers, **given
        )
        return jnp.sum(jnp.sin(found))

    return jax.grad(loss, (0, 1)), x, w


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_those_of_jax_to_the_bit(layout: str) -> None:
    of, x, w = gradients(layout)
    wanted, found = jax.jit(of)(x, w), gd.function(of)(x, w)
    for here, there in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(here, there)
    with jax.disable_jit():
        for here, there in zip(wanted, gd.function(of)(x, w), strict=True):
            np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-5)


def test_convolutions_in_a_loop_are_in_the_librarys_order_on_cpus() -> None:
    of, x, w = gradients("images")

    def steps(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda w, _: (w - 0.1 * of(x, w)[1], None), w, length=3)[0]

    lowered = gd.function(steps).trace(x, w).lower()
    orders = set(re.findall(r"dim_labels=(\S+?),", lowered.compile().as_text("hlo")))
    assert orders == {"b01f_01io->b01f"}
    given, wanted = gd.function(steps)(x, w), jax.jit(steps)(x, w)
    np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=5e-6)  # sums in another order


FEW_FEATURES: dict[str, tuple[tuple[str, str, str], tuple[int, ...], tuple[int, ...], Any]] = {
    "grey images": (("NHWC", "HWIO", "NHWC"), (3, 20, 18, 1), (5, 5, 1, 4), {}),
    "coloured images": (("NHWC", "HWIO", "NHWC"), (4, 16, 12, 3), (3, 3, 3, 16), {}),
    "features first": (("NCHW", "OIHW", "NCHW"), (4, 3, 16, 12), (16, 3, 3, 3), {}),
    "other orders": (("CWNH", "OHIW", "HNWC"), (3, 12, 4, 16), (16, 3, 3, 3), {}),
    "strides": (("NHWC", "HWIO", "NHWC"), (8, 23, 22, 3), (5, 4, 3, 6), {"window_strides": (2, 3)}),
    "edges": (
        ("NHWC", "HWIO", "NHWC"),
        (4, 20, 20, 2),
        (3, 5, 2, 8),
        {"padding": ((-1, 2), (4, -2))},
    ),
    "no padding": (("NHWC", "HWIO", "NHWC"), (8, 12, 12, 4), (4, 4, 4, 5), {"padding": "VALID"}),
    "windows of 1x1": (("NHWC", "HWIO", "NHWC"), (8, 32, 32, 3), (1, 1, 3, 8), {}),
    "sequences": (("NWC", "WIO", "NWC"), (8, 200, 2), (9, 2, 16), {}),
    "volumes": (("NDHWC", "DHWIO", "NDHWC"), (2, 8, 9, 10, 1), (3, 3, 3, 1, 4), {}),
    "no dimension": (("NC", "IO", "NC"), (8192, 3), (3, 4), {}),
}


def few_features(case: str, dtype: str) -> tuple[Any, jax.Array, jax.Array]:
    """Return a convolution as a function of images and kernel, and both arguments."""
    numbers, image, kernel, options = FEW_FEATURES[case]
    random = np.random.default_rng(1)
    x, w = (jnp.asarray(random.normal(size=shape), dtype) for shape in (image, kernel))
    defaults = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME"}
    given = {**defaults, **options}
    return partial(jax.lax.conv_general_dilated, dimension_numbers=numbers, **given), x, w


@pytest.mark.parametrize(
    ("dtype", "rounding"), [("float32", 2**-23), ("bfloat16", 2**-7), ("float16", 2**-10)]
)
@pytest.mark.parametrize("case", FEW_FEATURES)
def test_a_convolution_of_few_features_is_a_product_on_cpus(
    case: str, dtype: str, rounding: float
) -> None:
    of, x, w = few_features(case, dtype)
    lowered = gd.function(of).trace(x, w).lower()
    assert "convolution" not in lowered.as_text("stablehlo")
    found, wanted = gd.function(of)(x, w), jax.jit(of)(x.astype("f"), w.astype("f"))
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype("f"), wanted, rtol=rounding, atol=1e-5)


@pytest.mark.parametrize("case", ["coloured images", "strides", "sequences"])
def test_gradients_of_few_features_are_those_of_jax(case: str) -> None:
    of, x, w = few_features(case, "float32")
    gradients = jax.grad(lambda x, w: jnp.sum(jnp.sin(of(x, w))), (0, 1))
    for found, wanted in zip(gd.function(gradients)(x, w), jax.jit(gradients)(x, w), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "kernel", "options"),
    [
        ((4, 16, 12, 8), (3, 3, 8, 16), {}),  # eight features
        ((4, 16, 12, 3), (3, 3, 3, 33), {}),  # more than 32 of three
        ((4, 16, 12, 1), (3, 3, 1, 17), {}),  # more than 16 of one
        ((4, 32, 32, 3), (6, 5, 3, 16), {}),  # a patch of 90 numbers
        ((1, 8, 8, 3), (3, 3, 3, 16), {}),  # too few numbers
        ((64, 64, 64, 3), (3, 3, 3, 16), {}),  # too many
        ((4, 16, 12, 3), (3, 3, 3, 16), {"rhs_dilation": (2, 2)}),
        ((4, 16, 12, 3), (3, 3, 3, 16), {"lhs_dilation": (2, 1), "padding": ((1, 1), (1, 1))}),
        ((1, 8, 8, 256), (3, 3, 16, 256), {"feature_group_count": 16}),  # too many groups
        ((4, 16, 12, 3), (3, 3, 3, 16), {"batch_group_count": 2}),
    ],
)
def test_other_convolutions_stay(
    image: tuple[int, ...], kernel: tuple[int, ...], options: dict[str, Any]
) -> None:
    def of(x: jax.Array, w: jax.Array) -> jax.Array:
        dimensions = ("NHWC", "HWIO", "NHWC")
        given = {"padding": "SAME", **options}
        return jax.lax.conv_general_dilated(x, w, (1, 1), dimension_numbers=dimensions, **given)

    x, w = jnp.zeros(image), jnp.zeros(kernel)
    assert "convolution" in gd.function(of).trace(x, w).lower().as_text("stablehlo")


def test_the_library_may_be_without_convolutions() -> None:
    of, x, w = few_features("coloured images", "float32")
    wide = jnp.concatenate([w] * 4, axis=3)  # 64 features in the result
    for options, is_kept in (({}, True), ({LIBRARY: ALL_BUT_CONVOLUTIONS}, False)):
        lowered = gd.function(of, compiler_options=options).trace(x, wide).lower()
        assert ("convolution" in lowered.as_text("stablehlo")) == is_kept


@pytest.mark.parametrize(("platform", "is_kept"), [("cpu", False), ("tpu", True)])
def test_programs_for_other_platforms_have_no_patches(platform: str, is_kept: bool) -> None:
    of, x, w = few_features("coloured images", "float32")
    graph = gd.function(of).trace(x, w).lower().graph
    with operations_for(platform, {}):
        emitted = jax.make_jaxpr(lambda *arrays: emit(graph, arrays))(x, w)
    assert ("conv_general_dilated" in str(emitted)) == is_kept
