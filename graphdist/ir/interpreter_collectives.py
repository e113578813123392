"""Exchanges between replicas, and between the cores of a replica, for the reference interpreter.

A function between replicas takes the arrays of all replicas, in order, and one over cores those of
the cores of a replica. It returns as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any  # Any: indices of any integer dtype, and arrays of any numbers

import numpy as np

from graphdist.ir.arrays import Array, Held, join_arrays, neutral_element, reduce_arrays
from graphdist.ir.op_parameters import (
    AlongAxis,
    AlongAxisOverCores,
    Exchanging,
    ExchangingBorders,
    ExchangingOverCores,
    IndexingOnCore,
    IndexingOnReplica,
    IntoShards,
    KeepingRowsOfCore,
    KeepingRowsOfReplica,
    OverReplicas,
    Permuting,
    ReduceScattering,
    Reducing,
    ReducingOverCores,
    RotatingOverCores,
    SlicingAhead,
)


def all_reduced(held: Held, params: Reducing) -> Held:
    """Return the reduction of the arrays within each group of replicas."""
    groups = _groups(held, params)
    totals = [reduce_arrays(group, params.reducer) for group in groups]
    return [total for total in totals for _ in groups[0]]


def all_gathered(held: Held, params: AlongAxis) -> Held:
    """Return the joined arrays of each group of replicas."""
    groups = _groups(held, params)
    joined = [join_arrays(group, params.axis) for group in groups]
    return [array for array in joined for _ in groups[0]]


def _groups(held: Held, params: OverReplicas) -> list[Held]:
    """Return the arrays of each group of replicas."""
    count = params.group_size
    return [held[start : start + count] for start in range(0, len(held), count)]


def reduce_scattered(held: Held, params: ReduceScattering) -> Held:
    """Return each replica's shard of the reduction of all arrays."""
    total = reduce_arrays(held, params.reducer)
    return list(np.split(total, params.group_size, params.axis)) * params.num_groups


def permuted(held: Held, params: Permuting) -> Held:
    """Return, for each replica, the array that it receives, or zeros if it receives none."""
    received = [np.zeros_like(array) for array in held]
    for source, target in params.pairs:
        received[target] = held[source]
    return received


def exchanged(held: Held, params: Exchanging) -> Held:
    """Return, for each replica, the joined parts that the replicas of its group send to it."""
    received = []
    for group in _groups(held, params):
        parts = [np.split(array, params.group_size, params.split_axis) for array in group]
        received += [join_arrays(sent, params.concat_axis) for sent in zip(*parts, strict=True)]
    return received


def shards_of_replicas(held: Held, params: AlongAxis) -> Held:
    """Return, for each replica, the shard of its array at the replica's index in its group."""
    axis, count = params.axis, params.group_size
    return [np.split(array, count, axis)[replica % count] for replica, array in enumerate(held)]


def reduced_over_cores(held: Held, params: ReducingOverCores) -> Held:
    """Return, for each core, the reduction of the arrays of all cores."""
    return [reduce_arrays(held, params.reducer)] * len(held)


def gathered_over_cores(held: Held, params: AlongAxisOverCores) -> Held:
    """Return, for each core, the joined arrays of all cores."""
    return [join_arrays(held, params.axis)] * len(held)


def scattered_over_cores(held: Held, params: AlongAxisOverCores) -> Held:
    """Return each core's shard of the sum of the arrays of all cores."""
    return list(np.split(reduce_arrays(held, "sum"), len(held), params.axis))


def exchanged_over_cores(held: Held, params: ExchangingOverCores) -> Held:
    """Return each core's shard, along another dimension, of the value in shards."""
    return list(np.split(join_arrays(held, params.concat_axis), len(held), params.split_axis))


def indices_on_shards(held: Held, params: IndexingOnCore | IndexingOnReplica) -> Held:
    """Return, for each core of a replica or for each replica, the indices into its own shard."""
    length = params.size // params.num_shards
    found = []
    for number, indices in enumerate(held):
        index = _index_in_full(indices, params) - number % params.num_shards * length
        is_own = (index >= 0) & (index < length)
        other = length if params.drops else np.clip(index, 0, length - 1)
        own = np.zeros_like(indices) if params.begins_others else np.array(indices)
        own[..., params.component] = np.where(is_own, index, other)
        found.append(own)
    return found


def _index_in_full(indices: Array, params: IntoShards) -> Any:
    index = indices[..., params.component].astype(np.int64)
    return np.clip(index, 0, params.size - 1) if params.clamps else index


def rows_of_shard(
    value: Array, indices: Array, shard: int, params: KeepingRowsOfCore | KeepingRowsOfReplica
) -> Array:
    """Return what was read of the own shard, and zeros elsewhere; `shard` is its number."""
    index, kept = _index_in_full(indices, params), np.zeros_like(value)
    rows = np.moveaxis(value, params.offset_dims, range(-len(params.offset_dims), 0))
    into = np.moveaxis(kept, params.offset_dims, range(-len(params.offset_dims), 0))
    is_own = index // (params.size // params.num_shards) == shard
    is_outside = (index < 0) | (index >= params.size)
    into[is_own & ~is_outside] = rows[is_own & ~is_outside]
    if params.fill is not None and shard == 0:
        into[is_outside] = np.asarray(params.fill).astype(value.dtype)
    return kept


def with_borders_of_cores(held: Held, params: ExchangingBorders) -> Held:
    """Return each core's shard with the borders of its neighbours."""
    before, after, axis, length = (
        params.before,
        params.after,
        params.axis,
        held[0].shape[params.axis],
    )
    full = join_arrays(held, axis)
    widths = [(0, 0)] * full.ndim
    widths[axis] = (before, after)
    padded = np.pad(full, widths, constant_values=neutral_element(params.reducer, full.dtype))
    starts = range(0, len(held) * length, length)
    return [np.take(padded, range(at, at + before + length + after), axis) for at in starts]


def with_borders_added(held: Held, params: ExchangingBorders) -> Held:
    """Return each core's shard, the sum of what it and its neighbours have for it."""
    before, after = params.before, params.after
    along: list[Any] = [np.moveaxis(array, params.axis, 0) for array in held]
    length = len(along[0]) - before - after
    shards = [array[before : before + length].copy() for array in along]
    for front, behind in pairwise(range(len(held))):
        shards[front][length - before :] += along[behind][:before]
        shards[behind][:after] += along[front][before + length :]
    return [np.moveaxis(shard, 0, params.axis) for shard in shards]


def rotated_over_cores(held: Held, params: RotatingOverCores) -> Held:
    """Return, for each core, the array of the core that is `ahead` places ahead."""
    return [held[(core + params.ahead) % len(held)] for core in range(len(held))]


def slices_ahead(held: Held, params: SlicingAhead) -> Held:
    """Return, of each core's array, the shard of the core that is `ahead` places ahead."""
    cores = enumerate(held)
    count = len(held)
    return [
        np.split(array, count, params.axis)[(core + params.ahead) % count] for core, array in cores
    ]


def joined_ahead(shards: Sequence[Array], core: int, params: AlongAxisOverCores) -> Array:
    """Return the joined shards of the cores, of which the first is this core's own."""
    count = len(shards)
    return join_arrays([shards[(at - core) % count] for at in range(count)], params.axis)


def slices_of_cores(held: Held, params: AlongAxisOverCores) -> Held:
    """Return each core's shard of its array."""
    count = len(held)
    return [np.split(array, count, params.axis)[core] for core, array in enumerate(held)]
