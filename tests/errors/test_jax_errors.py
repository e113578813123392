"""Errors that are JAX's own speak of the user's function, not of ours."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import graphdist as gd


def test_the_function_and_the_argument_are_the_users() -> None:
    @gd.function
    def step(batch: dict[str, jax.Array], rate: jax.Array) -> jax.Array:
        return rate if batch["x"] > 0 else -rate

    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        step({"x": jnp.float32(1), "x_": jnp.float32(2)}, jnp.float32(1))
    text = str(caught.value)
    assert "tracing the function step at " in text
    assert "test_jax_errors.py:" in text
    assert "the argument batch_x." in text
