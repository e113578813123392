"""Chains of elementwise operations on bfloat16 are rounded once on CPUs.

Beyond 256, bfloat16 has only even numbers: 1 + 256 - 256 is 0 if the sum is rounded, and else 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import graphdist as gd

Function: TypeAlias = Callable[[jax.Array, jax.Array], jax.Array]
ONE = jnp.ones((2, 3), jnp.bfloat16)
BIG = jnp.full((2, 3), 256, jnp.bfloat16)


def is_rounded(function: Function, **options: Any) -> bool:
    """Return whether a function of 1 and 256 rounds their sum, from which it subtracts 256."""
    found = np.unique(np.asarray(gd.function(function, **options)(ONE, BIG), np.float32)).tolist()
    assert found in ([0], [1])
    return found == [0]


def chain(one: jax.Array, big: jax.Array) -> jax.Array:
    return one + big - big


def of_a_float32_sum(one: jax.Array, big: jax.Array) -> jax.Array:
    return (one.astype(jnp.float32) + big).astype(jnp.bfloat16) - big


def to_a_float32_difference(one: jax.Array, big: jax.Array) -> jax.Array:
    return (one + big).astype(jnp.float32) - big


def of_several_operations(one: jax.Array, big: jax.Array) -> jax.Array:
    return jnp.where(one > 0, jnp.abs(-(one + big)), one) - big


def in_a_loop(one: jax.Array, big: jax.Array) -> jax.Array:
    return lax.scan(lambda x, _: (chain(x, big), None), one, length=40)[0]


def in_a_branch(one: jax.Array, big: jax.Array) -> jax.Array:
    return lax.cond(one[0, 0] > 0, chain, lambda one, big: one, one, big)


@pytest.mark.parametrize(
    "function",
    [
        chain,
        of_a_float32_sum,
        to_a_float32_difference,
        of_several_operations,
        in_a_loop,
        in_a_branch,
        jax.jit(chain),
        jax.checkpoint(chain),
    ],
)
def test_a_value_that_one_operation_uses_is_not_rounded(function: Function) -> None:
    assert not is_rounded(function)
    for no in (False, "False"):
        assert is_rounded(function, compiler_options={"xla_allow_excess_precision": no})


def converted_and_back(one: jax.Array, big: jax.Array) -> jax.Array:
    return (one.astype(jnp.float32) + big).astype(jnp.bfloat16).astype(jnp.float32) - big


def with_reduced_precision(one: jax.Array, big: jax.Array) -> jax.Array:
    return lax.reduce_precision(one + big, 8, 7) - big


def moved(one: jax.Array, big: jax.Array) -> jax.Array:
    return (one + big).reshape(6) - big.reshape(6)


def compared(one: jax.Array, big: jax.Array) -> jax.Array:
    return (one + big > big).astype(jnp.float32)


def reduced(one: jax.Array, big: jax.Array) -> jax.Array:
    return lax.reduce_max((one + big), (0, 1)) - big


@pytest.mark.parametrize(
    "function",
    [converted_and_back, with_reduced_precision, moved, compared, reduced],
)
def test_other_values_are_rounded(function: Function) -> None:
    assert is_rounded(function)


def test_a_value_with_two_uses_is_computed_in_bfloat16() -> None:
    def function(one: jax.Array, big: jax.Array) -> jax.Array:
        total = one + big
        return total - big + jnp.cos(total)

    text = gd.function(function).trace(ONE, BIG).lower().as_text("stablehlo")
    assert re.findall(r"(?:add|subtract|cosine) .*x(\w+)>", text) == ["bf16", "f32", "f32", "f32"]


def test_outputs_are_rounded() -> None:
    total, difference = gd.function(lambda one, big: (total := one + big, total - big))(ONE, BIG)
    assert total.dtype == difference.dtype == jnp.bfloat16
    assert np.asarray(difference, "f").max() == 0


def test_errors_are_smaller_than_those_of_rounded_values() -> None:
    inputs = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.bfloat16)

    def gradient(x: jax.Array) -> jax.Array:
        return jax.grad(lambda x: (jax.nn.gelu(x) * 3 - x).sum())(x)

    exact = gradient(inputs.astype(jnp.float32))

    def error(function: Callable[[jax.Array], jax.Array]) -> float:
        return float(jnp.abs(function(inputs) - exact).mean())

    assert error(gd.function(gradient)) < 0.7 * error(jax.jit(gradient))
