"""Indices into a dimension that the cores of a replica hold in shards, and what is read there."""

from __future__ import annotations

from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax.numpy as jnp
from jax import lax

from graphdist.ir.op_parameters import IndexingOnCore, KeepingRowsOfCore

Array: TypeAlias = Any


def index_on_core(indices: Array, core: Array, params: IndexingOnCore) -> Array:
    """Return rows of indices into the shard of a core, for rows of indices into the full value."""
    length = params.size // params.num_cores
    own = _in_full(indices, params) - core.astype(indices.dtype) * length
    if params.drops:
        own = jnp.where((own >= 0) & (own < length), own, length)
    else:
        own = jnp.clip(own, 0, length - 1)
    is_component = lax.iota(jnp.int32, indices.shape[-1]) == params.component
    return jnp.where(is_component, own[..., None], indices)


def kept_rows(value: Array, indices: Array, core: Array, params: KeepingRowsOfCore) -> Array:
    """Return the rows of a value that are on a core, and zeros for those of other cores."""
    index, length = _in_full(indices, params), params.size // params.num_cores
    start = core.astype(indices.dtype) * length
    is_own = _as_rows_of(value, (index >= start) & (index < start + length), params)
    kept = jnp.where(is_own, value, jnp.zeros_like(value))
    if params.fill is None:
        return kept
    is_outside = _as_rows_of(value, (index < 0) | (index >= params.size), params)
    return jnp.where(is_outside & (core == 0), jnp.full_like(value, params.fill), kept)


def _in_full(indices: Array, params: IndexingOnCore | KeepingRowsOfCore) -> Array:
    index = indices[..., params.component]
    return jnp.clip(index, 0, params.size - 1) if params.clamps else index


def _as_rows_of(value: Array, mask: Array, params: KeepingRowsOfCore) -> Array:
    return jnp.expand_dims(mask, params.offset_dims)
