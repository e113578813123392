"""Convolutions on CPUs have the order of dimensions that a library computes, also in loops."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

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
