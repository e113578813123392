"""How many replicas share one copy of the sharded variables: the size of a group."""

from __future__ import annotations

from typing import Any  # Any: the user's argument

from graphdist.errors import ArgumentError
from graphdist.runtime.devices import Devices


def group_size_of(
    shard_parameters: Any, devices: Devices, shard_update: bool | str | None
) -> int | None:
    """Return over how many replicas variables are sharded; None if they are not sharded.

    `shard_parameters` is True, False or the size of a group. True makes each TPU slice a group, so
    that shards are sent over the fast links of the slice only. If there is one slice, or the
    replicas of a slice have no consecutive ids, all replicas are one group. The size 1 means False.
    Raises `ArgumentError` for any other value, for a size that does not divide the number of
    replicas, and with `shard_update=False`.
    """
    if not isinstance(shard_parameters, int):
        raise ArgumentError(
            f"shard_parameters is {shard_parameters!r}, not True, False or a number of replicas"
        )
    is_number = not isinstance(shard_parameters, bool)
    if is_number and (shard_parameters < 1 or len(devices) % shard_parameters):
        raise ArgumentError(
            f"shard_parameters is {shard_parameters}, which does not divide the {len(devices)} "
            f"replicas into groups of equal size",
            hint="give a divisor of the number of replicas, or True to shard over all of them",
        )
    if not shard_parameters or (is_number and shard_parameters == 1):
        return None
    if shard_update is False:
        raise ArgumentError(
            "shard_parameters stores variables in shards, and shard_update=False updates the full "
            "values",
            hint="leave shard_update out: sharded variables are updated shard by shard",
        )
    if is_number:
        return shard_parameters
    return len(devices) // (devices.num_slices if devices.are_slice_by_slice else 1)
