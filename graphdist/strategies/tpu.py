"""One replica on each TPU core, of TPUs that are here or of a topology that is not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any  # Any: what users pass as resolver and assignment, arrays

import jax
import numpy as np

from graphdist.config import prepare_compilers
from graphdist.context import in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ContextError, DeviceError, UnsupportedError
from graphdist.options import (
    AXIS_NAME,
    VariableSynchronization,
    checked_axis_name,
    checked_parameter_sharding,
    checked_sharding,
)
from graphdist.runtime.absent_devices import absent_devices
from graphdist.runtime.devices import Devices, find_devices
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.local_steps import checked_local_steps
from graphdist.strategies.multi_worker_mirrored import single_worker
from graphdist.tracing.user_lines import here


def devices_of_topology(name: str, num_slices: int, platform: str) -> Devices:
    """Return devices that stand for a topology; raises `DeviceError` for another platform's."""
    topology = find_topology(name, num_slices, here())
    if topology.chip.platform != platform:
        mine = "gd.TPUStrategy" if topology.chip.platform == "tpu" else "gd.MirroredStrategy"
        raise DeviceError(
            f"topology {name!r} is of {topology.chip.description}, not of {platform.upper()}s",
            source=here(),
            hint=f"make a {mine}(topology={name!r})",
        )
    prepare_compilers()
    return absent_devices(topology, here())


class TPUBase(CommonStrategy):
    """A strategy of TPUs, with the methods of one API or the other."""

    auto_synchronization = VariableSynchronization.ON_WRITE

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
        """Take the devices."""
        self.axis_name = checked_axis_name(axis_name)
        self.shard_update = checked_sharding(shard_update)
        del experimental_spmd_xla_partitioning  # of a replica over cores, and it has one
        if tpu_cluster_resolver is not None:
            self.cluster_resolver = single_worker(tpu_cluster_resolver)
        if topology is not None:
            found = devices_of_topology(topology, num_slices, "tpu")
        elif num_slices != 1:
            raise ArgumentError(
                f"num_slices is {num_slices} without a topology",
                source=here(),
                hint='write topology="v5e:16x16", num_slices=2',
            )
        else:
            found = present_tpus()
        if experimental_device_assignment is not None:
            chosen = _assigned(found.devices, experimental_device_assignment)
            found = Devices(chosen, topology=found.topology)
        group = checked_parameter_sharding(shard_parameters, len(found), self.shard_update)
        self.shard_parameters = group != 0
        self.local_steps = checked_local_steps(
            sync_every, outer_optimizer, self.shard_update, self.shard_parameters
        )
        if self.local_steps is not None:
            self.shard_update = False  # each replica updates copies of its own
        super().__init__(StrategyExtended(found.in_groups_of(group) if group != 0 else found))

    @property
    def topology(self) -> Topology | None:
        """Return the topology the strategy was made with; None where the TPUs are here."""
        return self.devices.topology

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Return the tensor, which is on core 0 of the replica, its only one.

        Raises `ArgumentError` for another core, `ContextError` outside of a replica function.
        """
        _require_replica("experimental_assign_to_logical_device")
        if logical_device_id != 0:
            raise ArgumentError(
                f"logical_device_id is {logical_device_id}, and a replica has 1 core, number 0",
                source=here(),
            )
        return tensor

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Return the tensor, cut in one part along each dimension: a replica has one core.

        Raises `ArgumentError` for more parts or another number of dimensions, `ContextError`
        outside of a replica function.
        """
        _require_replica("experimental_split_to_logical_devices")
        parts = [int(count) for count in partition_dimensions]
        if len(parts) != np.ndim(tensor):
            raise ArgumentError(
                f"partition_dimensions has {len(parts)} numbers for a tensor of "
                f"{np.ndim(tensor)} dimensions",
                source=here(),
            )
        if prod(parts) != 1:
            raise ArgumentError(
                f"partition_dimensions {parts} makes {prod(parts)} parts, and a replica has 1 core",
                source=here(),
                hint="split the batch over more replicas",
            )
        return tensor

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Return the tensor, which every core of the replica has: it has one.

        Raises `ContextError` outside of a replica function.
        """
        _require_replica("experimental_replicate_to_logical_devices")
        return tensor


def _require_replica(name: str) -> None:
    if not in_replica_context_of_a_run():
        raise ContextError(
            f"{name} was called outside of a replica function",
            source=here(),
            hint="call it in the function given to `strategy.run`",
        )


class TPUStrategy(TPUBase, Strategy):
    """Runs one replica on each TPU core, with variables mirrored on all of them.

    Without a topology it takes the TPUs of this host. With one, such as "v5e:16x16", it stands for
    TPUs that need not be here: a function is traced, lowered and compiled for them
    (`f.trace(..).lower().compile()`), with variables and batches known by shape alone; running it
    raises `DeviceError`. `num_slices` joins that many slices by network. Replicas are numbered
    slice by slice, and in a slice host by host.

    `tpu_cluster_resolver` is accepted for one worker. `experimental_device_assignment` chooses the
    cores and their order: a sequence of `(x, y, z, core)`, or a `DeviceAssignment` of TensorFlow
    with one core a replica. A replica is a core, so that the older API's ways to split a replica
    over cores take only what one core can do.

    `shard_update`, `shard_parameters`, `sync_every`, `outer_optimizer` and `axis_name` mean the
    same as in `gd.MirroredStrategy`.

    Raises `DeviceError` for TPUs that are not here, a topology that does not exist, and cores it
    does not have, `MissingExtraError` without libtpu.
    """


def present_tpus() -> Devices:
    """Return the TPUs of this host; raises `DeviceError` without any."""
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
    """Return the devices at the coordinates of an assignment, in its order."""
    cores = np.asarray(getattr(assignment, "core_assignment", assignment))
    if cores.ndim == 3 and cores.shape[1] != 1:
        raise UnsupportedError(
            f"experimental_device_assignment gives {cores.shape[1]} cores to a replica: one is all "
            f"it can have",
            source=here(),
        )
    cores = cores.reshape(len(cores), -1) if cores.ndim else cores
    if cores.ndim != 2 or cores.shape[1] != 4:
        raise ArgumentError(
            f"experimental_device_assignment has shape {list(np.shape(cores))}, not [replicas, 4]",
            source=here(),
            hint="give a sequence of (x, y, z, core)",
        )
    by_place = {
        (*getattr(device, "coords", ()), getattr(device, "core_on_chip", 0)): device
        for device in devices
    }
    places = [tuple(map(int, core)) for core in cores]
    for place in places:
        if place not in by_place or places.count(place) > 1:
            what = "twice" if place in by_place else f"but there is none: there are {len(by_place)}"
            raise DeviceError(
                f"experimental_device_assignment gives core {place} {what}", source=here()
            )
    return tuple(by_place[place] for place in places)
