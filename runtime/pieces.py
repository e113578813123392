"""Split a packed buffer into its pieces.

By default the pieces start at constants, and XLA fuses the slices with the code that uses the
pieces. On CPU many slices at constants take long to compile, because XLA compiles one kernel for
all equal computations, in 5 to 20 ms, and slices at different constants are different computations.
So on CPU the starts of many pieces are computed at run time. Then all slices of one size share a
kernel, and all updates of variables of one shape share a kernel.

XLA must not know the starts, or XLA would make constants of them. So the starts are the result of a
branch on a condition that always holds, but that depends on the buffer's bits. (XLA looks through
`optimization_barrier` and calls.) The branch copies 4 bytes per piece. Measured with JAX 0.10: 400
pieces of 272 elements take 10.3 s to compile with constant starts and 0.6 s with starts at run
time, and equally long to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax.numpy as jnp
import numpy as np
from jax import lax

Array: TypeAlias = Any


def unpack(
    buffer: Array, sizes: Sequence[int], axis: int = 0, *, at_run_time: bool = False
) -> list[Array]:
    """Return pieces of these sizes along a dimension; the sizes add up to the buffer's length.

    `at_run_time` hides the starts of the pieces from the compiler.
    """
    if not at_run_time or not _has_bits(buffer):
        return list(lax.split(buffer, sizes, axis))
    return [
        lax.dynamic_slice_in_dim(buffer, start, size, axis, allow_negative_indices=False)
        for start, size in zip(_starts(buffer, sizes), sizes, strict=True)
    ]


def _starts(buffer: Array, sizes: Sequence[int]) -> Sequence[Array]:
    starts = np.cumsum([0, *sizes[:-1]], dtype=np.int32)
    # The other branch has other values, or XLA would remove it.
    never = [np.int32(-1)] * len(starts)
    starts_of: list[Array] = lax.cond(_holds(buffer), lambda: list(starts), lambda: never)
    return starts_of


def _has_bits(buffer: Array) -> bool:
    """Return whether a condition can depend on the buffer's bits; random keys have no bits."""
    return bool(buffer.size) and bool(jnp.issubdtype(buffer.dtype, np.number))


def _holds(buffer: Array) -> Array:
    """Return a condition that holds for every content of the buffer, but that XLA cannot fold."""
    first = lax.slice(jnp.ravel(buffer), (0,), (1,))
    if jnp.iscomplexobj(first):
        first = lax.real(first)
    bits = lax.bitcast_convert_type(first, jnp.uint8)
    return (jnp.ravel(bits)[0] | 1) != 0
