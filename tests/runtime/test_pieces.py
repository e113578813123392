"""Buffers taken apart at starts that XLA knows, and at starts that it does not: the same pieces."""

from __future__ import annotations

from itertools import product
from typing import Any  # Any: dtypes and arrays of any kind

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from graphdist.runtime.pieces import unpack

SIZES = (3, 1, 4, 2)


INEXACT = ("f4", "bfloat16", "f2", "c8", "float8_e4m3fn")
DTYPES = (*INEXACT, "i4", "u1", "i2", "bool")


@pytest.mark.long
@pytest.mark.parametrize(
    ("dtype", "first"),
    [*product(DTYPES, (0, 1, -1)), *product(INEXACT, ("nan",))],
)
def test_dtypes_and_first_bits(dtype: str, first: Any) -> None:
    buffer = jnp.arange(10).astype(dtype)
    buffer = buffer.at[0].set(jnp.asarray(float(first)).astype(dtype))
    for at_run_time in (False, True):
        pieces = jax.jit(lambda x, late=at_run_time: unpack(x, SIZES, at_run_time=late))(buffer)
        for piece, expected in zip(pieces, np.split(np.asarray(buffer), [3, 4, 8]), strict=True):
            assert np.asarray(piece).tobytes() == expected.tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dimensions(axis: int) -> None:
    buffer = np.random.default_rng(0).standard_normal((10, 10, 10))
    pieces = unpack(jnp.asarray(buffer), SIZES, axis, at_run_time=True)
    for piece, expected in zip(pieces, np.split(buffer, [3, 4, 8], axis), strict=True):
        np.testing.assert_array_equal(piece, expected.astype(piece.dtype))


def test_what_has_no_bits_is_cut_as_ever() -> None:
    keys = jax.random.split(jax.random.key(0), 10)
    pieces = unpack(keys, SIZES, at_run_time=True)
    assert [len(piece) for piece in pieces] == list(SIZES)
    assert bool((jnp.concatenate(pieces) == keys).all())
    assert [piece.shape for piece in unpack(jnp.zeros(0), (0, 0), at_run_time=True)] == [(0,)] * 2


def test_no_start_is_known_to_the_compiler() -> None:
    def slices(count: int, late: bool) -> int:
        def sines(x: Any) -> Any:
            return [jnp.sin(piece) for piece in unpack(x, [4] * count, at_run_time=late)]

        compiled = jax.jit(sines).lower(jnp.zeros(4 * count)).compile()
        return str(compiled.as_text()).count(" slice(")

    assert (slices(8, late=False), slices(16, late=False)) == (8, 16)
    assert slices(8, late=True) == slices(16, late=True) < 8
