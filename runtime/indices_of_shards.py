"""Indices into a dimension that is held in shards, and what is read of the own shard.

The shards are those of the cores of a replica, or of the replicas.
"""

from __future__ import annotations

from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax.numpy as jnp
from jax import lax

from graphdist.ir.op_parameters import (
    IndexingOnCore,
    IndexingOnReplica,
    KeepingRowsOfCore,
    KeepingRowsOfReplica,
)

Array: TypeAlias = Any
Indexing: TypeAlias = IndexingOnCore | IndexingOnReplica
KeepingRows: TypeAlias = KeepingRowsOfCore | KeepingRowsOfReplica


def index_on_shard(indices: Array, shard: Array, params: Indexing) -> Array:
    """Return rows of indices into a shard, for rows of indices into the full value.

    `shard` is the number of the own shard.
    """
    length = params.size // params.num_shards
    own = _in_full(indices, params) - shard.astype(indices.dtype) * length
    if params.drops:
        own = jnp.where((own >= 0) & (own < length), own, length)
    else:
        own = jnp.clip(own, 0, length - 1)
    is_component = lax.iota(jnp.int32, indices.shape[-1]) == params.component
    others = jnp.zeros_like(indices) if params.begins_others else indices
    return jnp.where(is_component, own[..., None], others)


def kept_rows(value: Array, indices: Array, shard: Array, params: KeepingRows) -> Array:
    """Return the rows of a value that are of a shard, and zeros for those of other shards."""
    index, length = _in_full(indices, params), params.size // params.num_shards
    start = shard.astype(indices.dtype) * length
    is_own = _as_rows_of(value, (index >= start) & (index < start + length), params)
    kept = jnp.where(is_own, value, jnp.zeros_like(value))
    if params.fill is None:
        return kept
    is_outside = _as_rows_of(value, (index < 0) | (index >= params.size), params)
    return jnp.where(is_outside & (shard == 0), jnp.full_like(value, params.fill), kept)


def _in_full(indices: Array, params: Indexing | KeepingRows) -> Array:
    index = indices[..., params.component]
    return jnp.clip(index, 0, params.size - 1) if params.clamps else index


def _as_rows_of(value: Array, mask: Array, params: KeepingRows) -> Array:
    return jnp.expand_dims(mask, params.offset_dims)
