"""On CPUs XLA transposes few bytes for a product of several matrices at once."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

RANDOM = np.random.default_rng(0)


def array(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.standard_normal(shape), jnp.float32)


@pytest.mark.parametrize(
    ("left", "right", "contracted", "is_exchanged"),
    [
        ((2, 3, 8, 8), (2, 3, 8, 4), ((3,), (2,)), False),
        ((2, 3, 8, 8), (2, 3, 8, 4), ((2,), (2,)), True),
        ((2, 3, 8, 4), (2, 3, 8, 8), ((2,), (3,)), True),
        ((2, 3, 8, 4), (2, 3, 8, 8), ((2,), (2,)), False),
        ((2, 3, 8, 8), (2, 3, 4, 8), ((3,), (3,)), False),
        ((2, 3, 8, 8), (2, 3, 8, 8), ((2,), (2,)), False),
    ],
    ids=["none", "first", "second", "the small one", "the small second", "equally many"],
)
def test_operands_are_exchanged_if_this_transposes_fewer_bytes(
    left: tuple[int, ...],
    right: tuple[int, ...],
    contracted: tuple[tuple[int, ...], tuple[int, ...]],
    is_exchanged: bool,
) -> None:
    a, b = array(*left), array(*right)
    step = gd.function(lambda a, b: jax.lax.dot_general(a, b, (contracted, ((0, 1), (0, 1)))))
    text = step.trace(a, b).lower().as_text("stablehlo")
    (operands,) = re.findall(r"dot_general %(\w+), %(\w+),", text)
    assert (operands == ("arg1", "arg0")) == is_exchanged
    assert ("stablehlo.transpose" in text) == is_exchanged
    expected = jax.lax.dot_general(a, b, (contracted, ((0, 1), (0, 1))))
    np.testing.assert_allclose(step(a, b), expected, rtol=1e-5, atol=1e-5)


def test_weights_of_attention_stay_as_they_are_where_values_are_copied() -> None:
    """`einsum` takes the values first, whose heads are copied to the front in any case."""
    values, weights = array(2, 8, 3, 4), array(2, 3, 8, 8)
    step = gd.function(lambda v, w: jnp.einsum("bhts,bshd->bthd", w, v))
    text = step.trace(values, weights).lower().as_text("stablehlo")
    (operands,) = re.findall(r"dot_general %(\w+), %(\w+),", text)
    assert operands == ("arg1", "arg0")
    expected = jnp.einsum("bhts,bshd->bthd", weights, values)
    np.testing.assert_allclose(step(values, weights), expected, rtol=1e-5, atol=1e-5)
