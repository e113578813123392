"""The maximum and the minimum of floats over replicas, where a value may be nan."""

from __future__ import annotations

from typing import Any  # Any: arrays, and reductions of JAX

import jax.numpy as jnp
import numpy as np
from jax import lax


def extreme(x: Any, reducer: Any, axes: str | tuple[str, ...]) -> Any:
    """Reduce floats by max or min so that the result is nan if any value is nan.

    Floats are compared as integers that have the same order, with nan beyond all numbers. XLA's
    collectives may prefer a number to nan, as they do on CPU. A maximum of gradients would hide a
    nan.
    """
    kind = np.float64 if x.dtype == np.float64 else np.float32
    integer = np.iinfo(np.int64 if kind is np.float64 else np.int32)
    wide = x.astype(kind)
    nan = integer.max if reducer is lax.pmax else integer.min

    def flipped(bits: Any) -> Any:
        # The bits of negative floats, read as integers, are in reversed order.
        return jnp.where(bits < 0, bits ^ integer.max, bits)

    bits = flipped(lax.bitcast_convert_type(wide, integer.dtype))
    chosen = reducer(jnp.where(jnp.isnan(wide), nan, bits), axes)
    return lax.bitcast_convert_type(flipped(chosen), kind).astype(x.dtype)
