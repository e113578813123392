"""The base of strategies with mirrored or sharded variables, which checks their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any  # Any: optimizers of optax

from graphdist.options import (
    VariableSynchronization,
    checked_axis_name,
    checked_sharding,
)
from graphdist.runtime.devices import Devices
from graphdist.strategies.base import CommonStrategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.local_steps import checked_local_steps
from graphdist.strategies.replica_groups import group_size_of


class DataParallelStrategy(CommonStrategy):
    """A strategy whose variables are mirrored on all replicas, or sharded over them."""

    auto_synchronization = VariableSynchronization.ON_WRITE

    def __init__(
        self,
        find: Callable[[], Devices],
        extended: type[StrategyExtended],
        axis_name: str,
        shard_update: bool | str,
        shard_parameters: bool | int,
        sync_every: int | None,
        outer_optimizer: Any,
    ) -> None:
        """Check the options, which `gd.MirroredStrategy` explains; get the devices from `find`."""
        self.axis_name = checked_axis_name(axis_name)
        self.shard_update = checked_sharding(shard_update)
        devices = find()
        group_size = group_size_of(shard_parameters, devices, self.shard_update)
        self.shard_parameters = group_size is not None
        self.local_steps = checked_local_steps(
            sync_every, outer_optimizer, self.shard_update, self.shard_parameters
        )
        if self.local_steps is not None:
            self.shard_update = False  # each replica updates its own copies
        super().__init__(extended(devices.in_groups_of(group_size) if group_size else devices))
