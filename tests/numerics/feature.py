"""Features of JAX as a table of functions, each with the arguments it is called with.

The modules `features_*` fill the table; `test_pass_through` runs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any  # Any: arguments and results are whatever JAX takes and gives

import jax
import jax.numpy as jnp
import numpy as np

Make = Callable[[np.random.Generator], Any]
"""Makes an argument from random numbers."""

EXACT = 0.0
ROUNDED = 1e-5
"""XLA fuses the same operations in another way (fma, order of sums): some ulps of float32."""
SMALL_FLOATS = 2e-2
"""The same for 16-bit floats, whose intermediate results XLA rounds only where it ends a fusion."""


@dataclass(frozen=True)
class Feature:
    """A function, how its arguments are made, and how close its results are to those of jax.jit."""

    call: Callable[..., Any]
    makes: tuple[Make, ...]
    tolerance: float

    def __str__(self) -> str:
        return self.call.__name__

    def arguments(self, replica: int) -> tuple[Any, ...]:
        """Return the arguments of a replica: the same in every run, others for each replica."""
        numbers = np.random.default_rng([zlib.crc32(str(self).encode()), replica])
        return tuple(make(numbers) for make in self.makes)


FEATURES: list[Feature] = []


def feature(*makes: Make, tolerance: float = ROUNDED) -> Callable[[Callable[..., Any]], Any]:
    """Add a function to the table."""

    def register(call: Callable[..., Any]) -> Callable[..., Any]:
        FEATURES.append(Feature(call, makes, tolerance))
        return call

    return register


def floats(*shape: int, dtype: Any = np.float32) -> Make:
    return lambda numbers: jnp.asarray(numbers.standard_normal(shape), dtype)


def integers(*shape: int, low: int = 0, high: int = 5, dtype: Any = np.int32) -> Make:
    return lambda numbers: jnp.asarray(numbers.integers(low, high, shape), dtype)


def booleans(*shape: int) -> Make:
    return lambda numbers: jnp.asarray(numbers.integers(0, 2, shape) > 0)


def complexes(*shape: int) -> Make:
    return lambda numbers: jnp.asarray(
        numbers.standard_normal(shape) + 1j * numbers.standard_normal(shape), np.complex64
    )


def definite(size: int) -> Make:
    """Make a symmetric positive definite matrix with eigenvalues well apart."""

    def make(numbers: np.random.Generator) -> jax.Array:
        basis = np.linalg.qr(numbers.standard_normal((size, size)))[0]
        return jnp.asarray(basis @ np.diag(np.arange(1.0, size + 1)) @ basis.T, np.float32)

    return make


def key(numbers: np.random.Generator) -> jax.Array:
    return jax.random.key(int(numbers.integers(1000)))


def check_same(expected: Any, given: Any, tolerance: float) -> None:
    """Compare two results leaf by leaf: structure, dtype, shape and values."""
    ours: Any = jax.tree.flatten(given)
    theirs: Any = jax.tree.flatten(expected)
    assert ours[1] == theirs[1]
    for one, other in zip(ours[0], theirs[0], strict=True):
        if not isinstance(one, jax.Array):
            assert one == other  # not an array: kept as the user's object
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        if jnp.issubdtype(one.dtype, jnp.inexact):
            wide = np.complex128 if jnp.issubdtype(one.dtype, jnp.complexfloating) else np.float64
            left, right = np.asarray(one).astype(wide), np.asarray(other).astype(wide)
            np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
