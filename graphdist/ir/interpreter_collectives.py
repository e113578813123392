"""What collectives mean in the reference interpreter: of what replicas hold, what each gets."""

from __future__ import annotations

from typing import cast

import numpy as np

from graphdist.ir.arrays import Held, join_arrays, reduce_arrays
from graphdist.ir.graph import Params
from graphdist.ir.ops import num_copies_of


def all_reduce(held: Held, params: Params) -> Held:
    """Return the reduction of what the replicas of each group hold."""
    groups = _groups(held, params)
    totals = [reduce_arrays(group, cast(str, params["reducer"])) for group in groups]
    return [total for total in totals for _ in groups[0]]


def all_gather(held: Held, params: Params) -> Held:
    """Return what the replicas of each group hold, joined."""
    groups = _groups(held, params)
    joined = [join_arrays(group, cast(int, params["axis"])) for group in groups]
    return [array for array in joined for _ in groups[0]]


def _groups(held: Held, params: Params) -> list[Held]:
    """Return what the replicas of each group hold."""
    count = len(held) // num_copies_of(params)
    return [held[start : start + count] for start in range(0, len(held), count)]


def reduce_scatter(held: Held, params: Params) -> Held:
    """Return the replica's slice of the reduction of what all hold."""
    copies = num_copies_of(params)
    total = reduce_arrays(held, cast(str, params["reducer"]))
    return list(np.split(total, len(held) // copies, cast(int, params["axis"]))) * copies


def collective_permute(held: Held, params: Params) -> Held:
    """Return what another replica sends, or zeros."""
    received = [np.zeros_like(array) for array in held]
    for source, target in cast("tuple[tuple[int, int], ...]", params["pairs"]):
        received[target] = held[source]
    return received


def all_to_all(held: Held, params: Params) -> Held:
    """Return what all replicas send to each, joined."""
    split, concat = cast(int, params["split_axis"]), cast(int, params["concat_axis"])
    slices = [np.split(array, len(held), split) for array in held]
    return [join_arrays([cut[target] for cut in slices], concat) for target in range(len(held))]


def slices_of_replicas(held: Held, params: Params) -> Held:
    """Return slice r of what replica r of a group holds."""
    axis, count = cast(int, params["axis"]), len(held) // num_copies_of(params)
    return [np.split(array, count, axis)[replica % count] for replica, array in enumerate(held)]
