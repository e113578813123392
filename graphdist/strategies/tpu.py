"""One replica on each TPU core, of this host's TPUs or of a topology to compile for."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any  # Any: what users pass as resolver and assignment, arrays

import jax
import numpy as np

from graphdist.config import prepare_compilers
from graphdist.context import in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ContextError, DeviceError, UnsupportedError
from graphdist.options import AXIS_NAME
from graphdist.runtime.absent_devices import absent_devices
from graphdist.runtime.devices import Devices, find_devices
from graphdist.runtime.targets.topologies import find_topology
from graphdist.strategies.base import Strategy
from graphdist.strategies.data_parallel import DataParallelStrategy
from graphdist.strategies.workers_of_job import require_all_processes, single_worker
from graphdist.tracing.user_lines import here


def devices_of_topology(name: str, num_slices: int, platform: str) -> Devices:
    """Return the absent devices of a topology; raises `DeviceError` if it is not of `platform`."""
    topology = find_topology(name, num_slices, here())
    if topology.chip.platform != platform:
        right = "gd.TPUStrategy" if topology.chip.platform == "tpu" else "gd.MirroredStrategy"
        raise DeviceError(
            f"topology {name!r} is of {topology.chip.description}, not of {platform.upper()}s",
            source=here(),
            hint=f"make a {right}(topology={name!r})",
        )
    prepare_compilers()
    return absent_devices(topology)


class TPUBase(DataParallelStrategy):
    """The part of `TPUStrategy` that its form in `graphdist.compat.v1` shares."""

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        experimental_device_assignment: Any = None,
        experimental_spmd_xla_partitioning: bool = False,
        *,
        topology: str | None = None,
        num_slices: int = 1,
        shard_update: bool | str = "auto",
        shard_parameters: bool | int = False,
        sync_every: int | None = None,
        outer_optimizer: Any = None,
        axis_name: str = AXIS_NAME,
    ) -> None:
        """Find the devices."""
        del experimental_spmd_xla_partitioning  # it divides a replica, which has one core here
        if tpu_cluster_resolver is not None:
            self.cluster_resolver = single_worker(tpu_cluster_resolver)
        assignment = experimental_device_assignment
        if topology is not None:
            devices = devices_of_topology(topology, num_slices, "tpu")
        elif num_slices != 1:
            raise ArgumentError(
                f"num_slices is {num_slices} without a topology",
                hint='write topology="v5e:16x16", num_slices=2',
            )
        else:
            if assignment is None:
                require_all_processes("TPUStrategy", "give experimental_device_assignment")
            devices = present_tpus()
        if assignment is not None:
            devices = Devices(_assigned(devices.devices, assignment), topology=devices.topology)
        updates = (shard_update, shard_parameters, sync_every, outer_optimizer)
        super().__init__(devices, axis_name, *updates)
        self.topology = devices.topology
        """The topology that the strategy was made with; None for this host's TPUs."""

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Return the tensor, which is on the replica's only core, core 0.

        Raises `ArgumentError` for another core, `ContextError` outside of a replica function.
        """
        _require_replica("experimental_assign_to_logical_device")
        if logical_device_id != 0:
            raise ArgumentError(
                f"logical_device_id is {logical_device_id}, but a replica has 1 core, with id 0"
            )
        return tensor

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Return the tensor, in one part along each dimension, since a replica has one core.

        Raises `ArgumentError` for more parts or another number of dimensions, `ContextError`
        outside of a replica function.
        """
        _require_replica("experimental_split_to_logical_devices")
        parts = [int(count) for count in partition_dimensions]
        if len(parts) != np.ndim(tensor):
            raise ArgumentError(
                f"partition_dimensions has {len(parts)} numbers for a tensor of "
                f"{np.ndim(tensor)} dimensions"
            )
        if prod(parts) != 1:
            raise ArgumentError(
                f"partition_dimensions {parts} makes {prod(parts)} parts, but a replica has 1 core",
                hint="split the batch over more replicas",
            )
        return tensor

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Return the tensor, which is on the replica's only core.

        Raises `ContextError` outside of a replica function.
        """
        _require_replica("experimental_replicate_to_logical_devices")
        return tensor


def _require_replica(name: str) -> None:
    if not in_replica_context_of_a_run():
        raise ContextError(
            f"{name} was called outside of a replica function",
            hint="call it in the function given to `strategy.run`",
        )


class TPUStrategy(TPUBase, Strategy):
    """Runs one replica on each TPU core, with variables mirrored on all cores.

    Without a topology the strategy uses the TPUs of this host. With a topology, such as
    "v5e:16x16", functions are traced, lowered and compiled (`f.trace(..).lower().compile()`) for
    TPUs that need not exist here, with the shapes of variables and batches. Running such a function
    raises `DeviceError`. `num_slices` is the number of slices, which a network connects. Replicas
    are numbered slice by slice, and in a slice host by host.

    `tpu_cluster_resolver` is accepted for one worker. `experimental_device_assignment` chooses the
    cores and their order: a sequence of `(x, y, z, core)`, or a `DeviceAssignment` of TensorFlow
    with one core per replica. Since a replica has one core, the older methods that split a replica
    over cores accept only one core.

    `shard_update`, `shard_parameters`, `sync_every`, `outer_optimizer` and `axis_name` mean the
    same as in `gd.MirroredStrategy`.

    Raises `DeviceError` if the host has no TPUs, and for a topology or cores that do not exist,
    `MissingExtraError` without libtpu.
    """


def present_tpus() -> Devices:
    """Return the TPUs of this host; raises `DeviceError` if there are none."""
    try:
        local = jax.local_devices(backend="tpu")
    except RuntimeError:
        local = []
    if not local:
        raise DeviceError(
            "TPUStrategy finds 0 TPUs here",
            source=here(),
            hint='to compile for TPUs that are not here: gd.TPUStrategy(topology="v5e:2x2")',
        )
    return find_devices(local, here())


def _assigned(devices: Sequence[jax.Device], assignment: Any) -> tuple[jax.Device, ...]:
    """Return the devices at the coordinates of an assignment, in the order of the assignment."""
    cores = np.asarray(getattr(assignment, "core_assignment", assignment))
    if cores.ndim == 3 and cores.shape[1] != 1:
        raise UnsupportedError(
            f"experimental_device_assignment gives {cores.shape[1]} cores to a replica, which can "
            f"have 1"
        )
    cores = cores.reshape(len(cores), -1) if cores.ndim else cores
    if cores.ndim != 2 or cores.shape[1] != 4:
        raise ArgumentError(
            f"experimental_device_assignment has shape {list(np.shape(cores))}, not [replicas, 4]",
            hint="give a sequence of (x, y, z, core)",
        )
    device_at = {
        (*getattr(device, "coords", ()), getattr(device, "core_on_chip", 0)): device
        for device in devices
    }
    coordinates = [tuple(map(int, core)) for core in cores]
    for core in coordinates:
        if core not in device_at or coordinates.count(core) > 1:
            what = "twice" if core in device_at else f"but it is none of the {len(device_at)} cores"
            raise DeviceError(
                f"experimental_device_assignment gives core {core} {what}", source=here()
            )
    return tuple(device_at[core] for core in coordinates)
