"""The base of strategies with mirrored or sharded variables, and the check of their options."""

from __future__ import annotations

from typing import Any  # Any: optimizers of optax, and a value to check

import numpy as np

from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.options import VariableSynchronization, checked_axis_name, checked_sharding
from graphdist.runtime.devices import Devices
from graphdist.strategies.base import CommonStrategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.local_steps import checked_local_steps
from graphdist.strategies.logical_devices import LogicalDevices


class DataParallelStrategy(LogicalDevices, CommonStrategy):
    """A strategy whose variables are mirrored on all replicas, or sharded over them."""

    auto_synchronization = VariableSynchronization.ON_WRITE

    def __init__(
        self,
        devices: Devices,
        axis_name: str,
        shard_update: bool | str,
        shard_parameters: bool | int,
        sync_every: int | None,
        outer_optimizer: Any,
        cores_per_replica: int = 1,
    ) -> None:
        """Check the options, which `gd.MirroredStrategy` explains."""
        devices = _with_cores(devices, cores_per_replica)
        self.axis_name = checked_axis_name(axis_name)
        self.shard_update = checked_sharding(shard_update)
        group_size = _group_size(shard_parameters, devices, self.shard_update)
        self.shard_parameters = group_size is not None
        self.local_steps = checked_local_steps(
            sync_every, outer_optimizer, self.shard_update, self.shard_parameters
        )
        if self.local_steps is not None:
            self.shard_update = False  # each replica updates its own copies
        if devices.num_cores > 1 and self.local_steps is not None:
            raise UnsupportedError(
                f"sync_every={sync_every} with {devices.num_cores} cores per replica: replicas of "
                f"several cores take no local steps"
            )
        devices = devices.in_groups_of(group_size) if group_size else devices
        super().__init__(StrategyExtended(devices))


def _with_cores(devices: Devices, cores: Any) -> Devices:
    """Return the devices as those of replicas of several cores each.

    Raises `ArgumentError` for a number of cores that does not divide the number of devices, and for
    one that would give a replica a part of a worker's devices beside those of other workers.
    """
    count, workers = len(devices.devices), devices.workers
    is_number = isinstance(cores, int | np.integer) and not isinstance(cores, bool)
    if not is_number or cores < 1 or count % cores:
        raise ArgumentError(
            f"cores_per_replica is {cores!r}, which does not divide the {count} devices into "
            f"replicas",
            hint="give a divisor of the number of devices",
        )
    each = count if workers is None else count // len(workers)
    if each % cores and cores % each:
        raise ArgumentError(
            f"cores_per_replica is {cores!r}, and each worker has {each} devices: a replica would "
            f"have some devices of a worker and not the others",
            hint="give a divisor or a multiple of the devices of a worker",
        )
    return devices if cores == devices.num_cores else devices.with_cores(int(cores))


def _group_size(
    shard_parameters: Any, devices: Devices, shard_update: bool | str | None
) -> int | None:
    """Return the number of replicas over which a variable is sharded; None if none is sharded.

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
