"""One replica on each TPU core, of this host's TPUs or of a topology to compile for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any  # Any: what users pass as resolver and assignment, arrays

import jax
import numpy as np

from graphdist.config import prepare_compilers
from graphdist.errors import ArgumentError, DeviceError
from graphdist.options import AXIS_NAME
from graphdist.runtime.absent_devices import absent_devices
from graphdist.runtime.devices import Devices, find_devices
from graphdist.runtime.rings import in_rings
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
        cores_per_replica: int = 1,
    ) -> None:
        """Find the devices."""
        del experimental_spmd_xla_partitioning  # graphdist's own passes split a replica
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
            cores = _cores_of(assignment, cores_per_replica)
            chosen = _assigned(devices.devices, cores.reshape(-1, 4))
            devices, cores_per_replica = replace(devices, devices=chosen), cores.shape[1]
        elif type(cores_per_replica) is int:
            chosen = in_rings(devices.devices, cores_per_replica)
            devices = replace(devices, devices=chosen)
        updates = (shard_update, shard_parameters, sync_every, outer_optimizer)
        super().__init__(devices, axis_name, *updates, cores_per_replica)
        self.topology = devices.topology
        """The topology that the strategy was made with; None for this host's TPUs."""


class TPUStrategy(TPUBase, Strategy):
    """Runs one replica on each TPU core, or on several, with variables mirrored on all replicas.

    Without a topology the strategy uses the TPUs of this host. With a topology, such as
    "v5e:16x16", functions are traced, lowered and compiled (`f.trace(..).lower().compile()`) for
    TPUs that need not exist here, with the shapes of variables and batches. Running such a function
    raises `DeviceError`. `num_slices` is the number of slices, which a network connects. Replicas
    are numbered slice by slice, and in a slice host by host.

    `tpu_cluster_resolver` is accepted for one worker. `experimental_device_assignment` chooses the
    cores and their order: a sequence of `(x, y, z, core)`, or a `DeviceAssignment` of TensorFlow,
    which may have several cores for each replica. Without it, the cores of a replica are
    consecutive chips, in the order of a ring of neighbours.

    `cores_per_replica`, `shard_update`, `shard_parameters`, `sync_every`, `outer_optimizer` and
    `axis_name` mean the same as in `gd.MirroredStrategy`.

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


def _cores_of(assignment: Any, cores_per_replica: int) -> np.ndarray[Any, Any]:
    """Return the coordinates (x, y, z, core) of the cores of an assignment, [replicas, cores, 4].

    Raises `ArgumentError` for another shape, and for other than `cores_per_replica` cores.
    """
    cores = np.asarray(getattr(assignment, "core_assignment", assignment))
    count = cores.shape[1] if cores.ndim == 3 else cores_per_replica
    if cores.ndim not in (2, 3) or cores.shape[-1] != 4 or cores.size % (4 * max(count, 1)):
        raise ArgumentError(
            f"experimental_device_assignment has shape {list(np.shape(cores))}, not [replicas, 4]",
            hint="give a sequence of (x, y, z, core), or of one for each core of a replica",
        )
    if cores_per_replica not in (1, count):
        raise ArgumentError(
            f"experimental_device_assignment gives {count} cores to a replica, and "
            f"cores_per_replica is {cores_per_replica}",
            hint="leave cores_per_replica out",
        )
    return cores.reshape(-1, count, 4)


def _assigned(devices: Sequence[jax.Device], cores: Any) -> tuple[jax.Device, ...]:
    """Return the devices at the coordinates (x, y, z, core), in this order."""
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
