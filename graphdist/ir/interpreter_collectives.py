"""Collectives in the reference interpreter: from the replicas' operands to their results."""

from __future__ import annotations

import numpy as np

from graphdist.ir.arrays import Held, join_arrays, reduce_arrays
from graphdist.ir.op_parameters import (
    AlongAxis,
    Exchanging,
    OverReplicas,
    Permuting,
    ReduceScattering,
    Reducing,
)


def all_reduce(held: Held, params: Reducing) -> Held:
    """Return the reduction of the arrays within each group of replicas."""
    groups = _groups(held, params)
    totals = [reduce_arrays(group, params.reducer) for group in groups]
    return [total for total in totals for _ in groups[0]]


def all_gather(held: Held, params: AlongAxis) -> Held:
    """Return the joined arrays of each group of replicas."""
    groups = _groups(held, params)
    joined = [join_arrays(group, params.axis) for group in groups]
    return [array for array in joined for _ in groups[0]]


def _groups(held: Held, params: OverReplicas) -> list[Held]:
    """Return the arrays of each group of replicas."""
    count = params.group_size
    return [held[start : start + count] for start in range(0, len(held), count)]


def reduce_scatter(held: Held, params: ReduceScattering) -> Held:
    """Return each replica's shard of the reduction of all arrays."""
    total = reduce_arrays(held, params.reducer)
    return list(np.split(total, params.group_size, params.axis)) * params.num_groups


def collective_permute(held: Held, params: Permuting) -> Held:
    """Return, for each replica, the array that it receives, or zeros if it receives none."""
    received = [np.zeros_like(array) for array in held]
    for source, target in params.pairs:
        received[target] = held[source]
    return received


def all_to_all(held: Held, params: Exchanging) -> Held:
    """Return, for each replica, the joined parts that all replicas send to this replica."""
    slices = [np.split(array, len(held), params.split_axis) for array in held]
    return [
        join_arrays([cut[target] for cut in slices], params.concat_axis)
        for target in range(len(held))
    ]


def slices_of_replicas(held: Held, params: AlongAxis) -> Held:
    """Return, for each replica, the shard of its array at the replica's index in its group."""
    axis, count = params.axis, params.group_size
    return [np.split(array, count, axis)[replica % count] for replica, array in enumerate(held)]
