"""One replica on each device of this host, with variables mirrored on all devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: optimizers of optax

import jax

from graphdist.errors import ArgumentError
from graphdist.options import AXIS_NAME
from graphdist.runtime.devices import find_devices
from graphdist.strategies.base import Strategy
from graphdist.strategies.cross_device_ops import CrossDeviceOps, checked_ops
from graphdist.strategies.data_parallel import DataParallelStrategy
from graphdist.strategies.tpu import devices_of_topology
from graphdist.strategies.workers_of_job import NAME_DEVICES, require_all_processes
from graphdist.tracing.user_lines import here


class MirroredBase(DataParallelStrategy):
    """The part of `MirroredStrategy` that its form in `graphdist.compat.v1` shares."""

    isolates_session_state = True
    cross_device_ops: CrossDeviceOps | None
    """The reductions that the user gave the strategy."""

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
        cores_per_replica: int = 1,
    ) -> None:
        """Find the devices."""
        if devices and topology is not None:
            raise ArgumentError(
                f"both devices and a topology, {topology!r}, are given",
                hint="leave out the devices to compile for the topology",
            )
        if topology is not None:
            found = devices_of_topology(topology, 1, "gpu")
        else:
            if not devices:
                require_all_processes(type(self).__name__, NAME_DEVICES)
            found = find_devices(devices, here())
        updates = (shard_update, shard_parameters, sync_every, outer_optimizer)
        super().__init__(found, axis_name, *updates, cores_per_replica)
        self.cross_device_ops = checked_ops(cross_device_ops)


class MirroredStrategy(MirroredBase, Strategy):
    """Runs one replica on each device, with variables mirrored on all devices.

    `devices` names the devices ("cpu:0", "gpu:1", or `jax.Device`). None or an empty list means all
    local devices. With a `topology`, such as "h100:8x8" for 8 hosts with 8 GPUs each, functions are
    compiled for GPUs that need not exist here, and not run, as with `gd.TPUStrategy`.

    `shard_update` shards the update of variables over the replicas, and stores the optimizer's
    state sharded: True for every variable that allows it, "auto" for large variables for which it
    saves time (`graphdist.passes.layouts.sharded_updates`), False for none. Sharded updates change
    values only by rounding. Large weights of products of few rows are stored sharded, too, unless
    it is False (`docs/communication.md`).

    `shard_parameters` stores large variables sharded from their creation, so that no device holds
    the full value between steps; `docs/large-models.md` says which. True shards a variable over all
    replicas, an integer over groups of that many consecutive replicas, and 1 means False. The
    updates of these variables are sharded, too.

    With `sync_every=H` each replica takes H local steps before the parameters are averaged, or
    updated by an `outer_optimizer` of optax: see `docs/local_steps.md`.

    `cores_per_replica` is the number of consecutive devices on which each replica runs: see
    `docs/cores.md`.

    `axis_name` is the replicas' axis name in collectives of JAX: `lax.psum(x, "replica")`.

    `cross_device_ops` is a hint: see `gd.CrossDeviceOps`. Raises `DeviceError` for devices that do
    not exist, are named twice, or belong to several platforms; `ArgumentTypeError` if
    `cross_device_ops` is no `CrossDeviceOps` or `axis_name` no name; `ArgumentError` for a
    `shard_parameters` that does not divide the number of replicas or contradicts
    `shard_update=False`, and for a `sync_every` below 1, or together with `shard_update=True` or
    `shard_parameters`.

    >>> MirroredStrategy(["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """


class FullyShardedStrategy(MirroredStrategy):
    """`gd.MirroredStrategy(shard_parameters=True)`, under the name that other frameworks use.

    Programs are the same as for any mirrored strategy. Large variables are stored sharded over the
    replicas, so that the model need not fit on one device. Arguments mean the same as in
    `gd.MirroredStrategy`, and raise the same errors.

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
        cores_per_replica: int = 1,
    ) -> None:
        """Find the devices."""
        super().__init__(
            devices,
            cross_device_ops,
            topology=topology,
            shard_parameters=True,
            axis_name=axis_name,
            cores_per_replica=cores_per_replica,
        )
