"""Generate only a replica's shard of random bits, never the unsharded array.

Threefry in its partitionable form, which is JAX's default, hashes the index of each element by
itself: element i of the flattened array is the hash of the key and i, in two halves of 32 bits. So
the bits of a shard are the hashes of the indices in the shard, the same bits as in the unsharded
array.

The indices may need 64 bits, but JAX may compute with 32. So each index is computed as two halves
of 32 bits, with carries.

Salmon and others 2011, Parallel Random Numbers: As Easy as 1, 2, 3.
"""

from __future__ import annotations

from math import prod
from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.random import threefry2x32_p

from graphdist.ir.op_parameters import RandomBits

Array: TypeAlias = Any
Halves: TypeAlias = tuple[Array, Array]
"""The upper and the lower 32 bits of 64-bit integers."""

_HALF = 2**32


def all_bits(key: Array, params: RandomBits) -> Array:
    """Return the unsharded bits, as JAX generates them."""
    with jax.enable_x64(True):  # otherwise JAX has no elements of 64 bits
        return jax.random.bits(key, params.shape, f"uint{params.bit_width}")


def random_shard(key: Array, params: RandomBits, start: Array, length: int) -> Array:
    """Return `length` elements of the bits along `params.axis`, from `start`, an int32 scalar."""
    settings: Any = jax.config
    if not settings.jax_threefry_partitionable:  # no element can be generated alone
        return lax.dynamic_slice_in_dim(all_bits(key, params), start, length, params.axis)
    shape, axis, width = params.shape, params.axis, params.bit_width
    first, second = jax.random.key_data(key)
    sliced = (*shape[:axis], length, *shape[axis + 1 :])
    numbers = element_numbers(shape, sliced, axis, start)
    high, low = threefry2x32_p.bind(first, second, *numbers)
    dtype = jnp.dtype(f"uint{width}")
    if width == 64:
        return high.astype(dtype) << 32 | low.astype(dtype)
    return lax.convert_element_type(high ^ low, dtype)


def element_numbers(
    shape: tuple[int, ...], sliced: tuple[int, ...], axis: int, start: Array
) -> Halves:
    """Return the indices that the elements of a slice have in the flattened array.

    The slice has the shape `sliced`. The slice begins at `start` along the dimension `axis`, and at
    0 along every other dimension.
    """
    high = low = jnp.zeros(sliced, jnp.uint32)
    for dimension in range(len(shape)):
        index = lax.iota(jnp.uint32, sliced[dimension])
        if dimension == axis:
            index = index + start.astype(jnp.uint32)
        stride = prod(shape[dimension + 1 :])
        more_high, more_low = (
            lax.broadcast_in_dim(half, sliced, (dimension,)) for half in _product(index, stride)
        )
        low = low + more_low
        if prod(shape) > _HALF:
            high = high + more_high + (low < more_low).astype(jnp.uint32)
    return high, low


def _product(index: Array, factor: int) -> Halves:
    """Return the products of 32-bit integers and a 64-bit factor, modulo 2**64."""
    factor_high, factor_low = divmod(factor, _HALF)
    left, right = (index >> 16, index & 0xFFFF), divmod(factor_low, 2**16)
    crossed = [left[0] * jnp.uint32(right[1]), left[1] * jnp.uint32(right[0])]
    middle = (left[1] * jnp.uint32(right[1])) >> 16
    for product in crossed:
        middle = middle + (product & 0xFFFF)
    high = left[0] * jnp.uint32(right[0]) + (middle >> 16)
    for product in crossed:
        high = high + (product >> 16)
    return high + index * jnp.uint32(factor_high), index * jnp.uint32(factor_low)
