"""Checks the operands and the axis of reductions and gathers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias  # Any: what users give in place of arrays and axes

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.values.distributed import checked_array

Axis: TypeAlias = int | tuple[int, ...] | None
"""The dimensions along which each replica's value is reduced; None for none."""


def summable(leaf: Any, reducer: str, what: str) -> jax.Array:
    """Return a leaf as an array that can be reduced; integers become floats for a mean."""
    array = checked_array(leaf, f"{what} of")
    if array.dtype == jnp.bool_:
        raise ArgumentTypeError(
            f"{what} by {reducer.upper()} of bool values: it takes numbers",
            hint="convert them first: x.astype(jnp.int32)",
        )
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise ArgumentTypeError(f"{what} by {reducer.upper()} of random keys: it takes numbers")
    if reducer == "mean" and jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.result_type(float))
    return array


def gather_axis(axis: Any, what: str) -> int:
    """Return `axis`; raises `ArgumentTypeError` unless it is an int."""
    if axis is None:
        raise ArgumentError(f"{what} without an axis", hint="say which: axis=0")
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentTypeError(f"{what} along axis {axis!r}: the axis is an int")
    return axis


def gather_dimension(array: Any, axis: int, what: str) -> int:
    """Return `axis` as a dimension of the array; raises `ArgumentError` outside its rank."""
    rank = array.ndim
    if rank == 0:
        raise ArgumentError(
            f"{what} of scalars: the replicas' values have rank 0, at least 1 is needed",
            hint="give them a dimension: x[None]",
        )
    if not -rank <= axis < rank:
        raise ArgumentError(
            f"{what} along axis {axis}: the replicas' values have rank {rank}",
            hint=f"choose an axis from {-rank} to {rank - 1}",
        )
    return axis % rank


def without_padding(
    gathered: jax.Array, lengths: Sequence[int], longest: int, dimension: int
) -> jax.Array:
    """Return a gathered array without padding, which makes all replicas' parts `longest` long."""
    if all(length == longest for length in lengths):
        return gathered
    parts = [
        jax.lax.slice_in_dim(gathered, longest * i, longest * i + length, axis=dimension)
        for i, length in enumerate(lengths)
    ]
    return jnp.concatenate(parts, axis=dimension)
