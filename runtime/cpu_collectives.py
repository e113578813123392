"""Collectives along a dimension, on CPUs in the form that XLA computes fastest.

XLA for CPUs joins and divides arrays along their first dimension. Along another one it transposes
them, by one number after the other. Here the transposition is an operation of its own, which moves
rows at once: a gather or a reduction along columns is up to four times as fast, with the same bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias  # Any: the groups of replicas have no public type

import jax
import jax.numpy as jnp
from jax import lax

from graphdist.runtime.cpu_operations import is_for_cpus

Axes: TypeAlias = str | tuple[str, ...]
"""The axes of the mesh over which devices communicate."""


def all_gather(shard: jax.Array, axes: Axes, axis: int, groups: Any = None) -> jax.Array:
    """Return the shards of the devices, joined along a dimension."""
    if axis == 0 or not is_for_cpus():
        return lax.all_gather(shard, axes, axis=axis, axis_index_groups=groups, tiled=True)
    return _joined(lax.all_gather(shard, axes, axis_index_groups=groups), axis)


def reduce_scatter(terms: jax.Array, axes: Axes, axis: int, groups: Any = None) -> jax.Array:
    """Return this device's shard, along a dimension, of the sum of the devices' terms."""
    along = {"scatter_dimension": 0, "axis_index_groups": groups}
    if axis == 0 or not is_for_cpus():
        return lax.psum_scatter(terms, axes, **{**along, "scatter_dimension": axis}, tiled=True)
    count = len(groups[0]) if groups else lax.axis_size(axes)
    return lax.psum_scatter(_divided(terms, axis, count), axes, **along)


def all_to_all(shard: jax.Array, axes: Axes, split_axis: int, concat_axis: int) -> jax.Array:
    """Return this device's shard along `split_axis` of what is sharded along `concat_axis`."""
    if split_axis == 0 or not is_for_cpus():
        return lax.all_to_all(shard, axes, split_axis, concat_axis, tiled=True)
    parts = _divided(shard, split_axis, lax.axis_size(axes))
    return _joined(lax.all_to_all(parts, axes, 0, 0), concat_axis)


def _joined(parts: jax.Array, axis: int) -> jax.Array:
    """Return parts [count, ..] joined along a dimension of a part."""
    count, *shape = parts.shape
    shape[axis] *= count
    return jnp.moveaxis(parts, 0, axis).reshape(shape)


def _divided(x: jax.Array, axis: int, count: int) -> jax.Array:
    """Return the parts [count, ..] of an array along a dimension."""
    shape = x.shape[:axis], (count, x.shape[axis] // count), x.shape[axis + 1 :]
    return jnp.moveaxis(x.reshape(sum(shape, ())), axis, 0)
