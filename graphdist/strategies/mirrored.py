"""One replica on each device of this host, variables mirrored on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: optimizers of optax

import jax

from graphdist.errors import ArgumentError
from graphdist.options import (
    AXIS_NAME,
    VariableSynchronization,
    checked_axis_name,
    checked_parameter_sharding,
    checked_sharding,
)
from graphdist.runtime.devices import find_devices
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.cross_device_ops import CrossDeviceOps, checked_ops
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.local_steps import checked_local_steps
from graphdist.strategies.tpu import devices_of_topology
from graphdist.tracing.user_lines import here


class MirroredBase(CommonStrategy):
    """A mirrored strategy, with the methods of one API or the other."""

    isolates_session_state = True
    auto_synchronization = VariableSynchronization.ON_WRITE
    cross_device_ops: CrossDeviceOps | None
    """The algorithms the user asked for."""

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        topology: str | None = None,
        shard_update: bool | str = "auto",
        shard_parameters: bool | int = False,
        sync_every: int | None = None,
        outer_optimizer: Any = None,
        axis_name: str = AXIS_NAME,
    ) -> None:
        """Take the devices."""
        self.axis_name = checked_axis_name(axis_name)
        self.shard_update = checked_sharding(shard_update)
        if topology is None:
            found = find_devices(devices, here())
        elif devices:
            raise ArgumentError(
                f"devices and a topology are given, {topology!r}: one says what the other does",
                source=here(),
                hint="leave out the devices to compile for the topology",
            )
        else:
            found = devices_of_topology(topology, 1, "gpu")
        group = checked_parameter_sharding(shard_parameters, len(found), self.shard_update)
        self.shard_parameters = group != 0
        self.local_steps = checked_local_steps(
            sync_every, outer_optimizer, self.shard_update, self.shard_parameters
        )
        if self.local_steps is not None:
            self.shard_update = False  # each replica updates copies of its own
        super().__init__(StrategyExtended(found.in_groups_of(group) if group != 0 else found))
        self.cross_device_ops = checked_ops(cross_device_ops)


class MirroredStrategy(MirroredBase, Strategy):
    """Runs one replica on each device, with variables mirrored on all of them.

    `devices` names them ("cpu:0", "gpu:1", or `jax.Device`); None or an empty list means all local
    devices. With a `topology`, such as "h100:8x8" for 8 hosts with 8 GPUs each, it stands for GPUs
    that need not be here: functions are compiled for them and not run, as with `gd.TPUStrategy`.

    `shard_update` shares the update of variables out over the replicas, and stores the optimizer's
    state in slices, one a replica: True for all it can be done for, "auto" for those large enough
    to gain (`graphdist.passes.sharded_variables`), False for none. No value changes by it but in
    its rounding.

    `shard_parameters` stores large variables in slices from their creation, one a replica, so that
    no device holds them in full between steps; `docs/large-models.md` says which. True shares a
    variable over all replicas, a number over groups of so many replicas that follow each other,
    and 1 means False. Updates of these variables are shared out, too.

    `sync_every=H` lets each replica take H steps of its own before the parameters are averaged, or
    given to an `outer_optimizer` of optax: see `docs/local_steps.md`.

    `axis_name` is what collectives of JAX call the replicas: `lax.psum(x, "replica")`.

    `cross_device_ops` is a hint: see `gd.CrossDeviceOps`. Raises `DeviceError` for devices that are
    not there, are named twice, or are of several platforms, `ArgumentTypeError` where
    `cross_device_ops` is no `CrossDeviceOps` or `axis_name` no name, `ArgumentError` for a
    `shard_parameters` that does not divide the replicas or contradicts `shard_update=False`, for a
    `sync_every` below 1 or together with either.

    >>> MirroredStrategy(["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """


class FullyShardedStrategy(MirroredStrategy):
    """`gd.MirroredStrategy(shard_parameters=True)`, by the name that others call it.

    Programs are the same as for any mirrored strategy. Large variables are stored in slices, one a
    replica, so that models fit that no device could hold in full. It takes the other arguments of
    `gd.MirroredStrategy`, and raises the same errors.

    >>> import graphdist as gd
    >>> strategy = FullyShardedStrategy(["cpu:0", "cpu:1"])
    >>> with strategy.scope():
    ...     w = gd.Variable(jax.numpy.zeros((256, 64)), name="w")
    >>> w
    <Variable 'w' f32[256,64] sharded(0) on cpu:0, cpu:1>
    """

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        *,
        topology: str | None = None,
        axis_name: str = AXIS_NAME,
    ) -> None:
        """Take the devices."""
        super().__init__(
            devices,
            cross_device_ops,
            topology=topology,
            shard_parameters=True,
            axis_name=axis_name,
        )
