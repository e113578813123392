"""The devices of a strategy: their names, their mesh, and the shardings of arrays on them.

Devices are named "cpu:0", "gpu:1" (also "GPU:1", "/gpu:1", and TensorFlow's full names), or given
as `jax.Device`. A mirrored array is replicated over the mesh. A per-replica value is one array: the
replicas' parts are concatenated along dimension 0, and the array is sharded along dimension 0, so
that each shard is a replica's part. One device needs no mesh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn  # Any: JAX's settings

import jax
import numpy as np
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from graphdist.ir.mesh import CORE, GROUP, MEMBER, REPLICA, MeshShape
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, sharded
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.targets.topologies import DeviceError, Topology
from graphdist.tracing.user_lines import here


@dataclass(eq=False, repr=False)
class Devices:
    """The devices that replicas run on, in order; `find_devices` checks names.

    A replica has one device, or `num_cores` consecutive ones, its cores.

    With a `parameter_device` variables are stored on that device between steps, in a single copy.
    With a `topology` the devices stand for hardware that is not present: programs are compiled for
    the devices but not run, and arrays on the devices have a shape and no values.

    `num_groups` is the number of groups of consecutive replicas; each group holds all shards of a
    sharded value.

    With `workers` the devices belong to several processes, in the order of the workers, and each
    process holds only the parts of its own replicas. A worker has one replica or more, or a replica
    has the devices of several consecutive workers. A step may take `timeout_seconds` at most.
    """

    devices: Sequence[jax.Device]
    parameter_device: jax.Device | None = None
    topology: Topology | None = None
    workers: ClusterWorkers | None = None
    timeout_seconds: float | None = None
    num_groups: int = 1
    num_cores: int = 1

    def __post_init__(self) -> None:
        self.devices = tuple(self.devices)

    def __len__(self) -> int:
        """Return the number of replicas."""
        return len(self.devices) // self.num_cores

    @cached_property
    def local_replicas(self) -> range:
        """Return the ids of the replicas of which this process has all cores, or some."""
        count = len(self) // self.num_pipelines
        return range(self.pipeline * count, (self.pipeline + 1) * count)

    @property
    def local_devices(self) -> Sequence[jax.Device]:
        """Return the devices of this process."""
        if self.workers is None:
            return self.devices
        count = len(self.devices) // len(self.workers)
        return self.devices[self.workers.index * count : (self.workers.index + 1) * count]

    @cached_property
    def workers_per_replica(self) -> int:
        """Return how many workers a replica has devices of; 1 if a worker has whole replicas."""
        if self.workers is None:
            return 1
        return max(1, self.num_cores * len(self.workers) // len(self.devices))

    @property
    def num_pipelines(self) -> int:
        """Return how many parts input has: the workers of one replica read the same part."""
        return 1 if self.workers is None else len(self.workers) // self.workers_per_replica

    @property
    def pipeline(self) -> int:
        """Return the index of the part of the input that this worker reads."""
        return 0 if self.workers is None else self.workers.index // self.workers_per_replica

    @property
    def platform(self) -> str:
        """Return the platform of the devices: "cpu", "gpu" or "tpu"."""
        return _platform_of(self.devices[0])

    @property
    def kind(self) -> str:
        """Return JAX's name of the kind of the devices, such as "TPU v5 lite"."""
        return str(self.devices[0].device_kind)

    @cached_property
    def num_slices(self) -> int:
        """Return the number of TPU slices: groups of devices that only a network connects."""
        return len({getattr(device, "slice_index", 0) for device in self.devices})

    @cached_property
    def are_of_one_process(self) -> bool:
        """Return whether one process has all devices."""
        return len({device.process_index for device in self.devices}) == 1

    @cached_property
    def are_three_dimensional(self) -> bool:
        """Return whether the TPU chips are linked in three dimensions, not in two."""
        places = (getattr(device, "coords", None) for device in self.devices)
        return len({place[2] for place in places if place is not None}) > 1

    @property
    def are_slice_by_slice(self) -> bool:
        """Return whether each TPU slice has equally many replicas, with consecutive ids."""
        numbers = [getattr(device, "slice_index", 0) for device in self.devices]
        count = len(numbers) // self.num_slices
        return all(len(set(numbers[i : i + count])) == 1 for i in range(0, len(numbers), count))

    @property
    def mesh_shape(self) -> MeshShape:
        """Return the numbers of replicas and of groups."""
        return MeshShape(len(self), self.num_groups)

    @property
    def group_size(self) -> int:
        """Return the number of replicas in a group, which is the number of shards of a value."""
        return self.mesh_shape.group_size

    def with_cores(self, num_cores: int) -> Devices:
        """Return the devices as those of replicas of `num_cores` devices each."""
        return replace(self, num_cores=num_cores)

    def in_groups_of(self, group_size: int) -> Devices:
        """Return the devices with values sharded over groups of `group_size` replicas."""
        return replace(self, num_groups=len(self) // group_size)

    @property
    def memory_bytes(self) -> int:
        """Return the memory of one device; 0 if it is unknown, as on CPUs."""
        if self.topology is not None:
            return self.topology.chip.memory_bytes // self.topology.chip.devices
        local = next((d for d in self.devices if d.process_index == jax.process_index()), None)
        statistics = None if local is None else local.memory_stats()
        return int((statistics or {}).get("bytes_limit", 0))

    @property
    def is_absent(self) -> bool:
        """Return whether the devices stand for hardware that is not present."""
        return self.topology is not None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the devices, in order; absent devices are named by replica id."""
        if self.is_absent:
            return tuple(f"{self.platform}:{index}" for index in range(len(self.devices)))
        return tuple(map(device_name, self.devices))

    def __str__(self) -> str:
        return ", ".join(self.names) if self.topology is None else str(self.topology)

    def __repr__(self) -> str:
        return f"<Devices {self}>"

    def refuse_to_run(self, what: str) -> NoReturn:
        """Raise the error for an action, `what`, that needs the hardware."""
        only = "of which only the topology is here: programs are compiled for it, not run"
        raise DeviceError(
            f"{what} needs {self}, {only}",
            source=here(),
            hint="stop at .trace(..).lower().compile(); to run, make the strategy without a "
            "topology where the devices are",
        )

    @cached_property
    def mesh(self) -> Mesh:
        """Return the mesh: its axes are `replica`, or `group` and `member` with several groups.

        Replicas of several devices add the axis `core`.
        """
        sizes: dict[str, int] = {REPLICA: len(self)}
        if self.num_groups > 1:
            sizes = {GROUP: self.num_groups, MEMBER: self.group_size}
        if self.num_cores > 1:
            sizes[CORE] = self.num_cores
        devices = np.array(self.devices).reshape(tuple(sizes.values()))
        return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))

    @cached_property
    def mirrored(self) -> Sharding:
        """Return the sharding of a mirrored value, of which every device has a copy."""
        if len(self.devices) == 1:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def per_replica(self) -> Sharding:
        """Return the sharding of per-replica values concatenated along dimension 0."""
        return self.sharding(PER_REPLICA)

    def shards_of_replicas(self, array: jax.Array) -> list[Any]:
        """Return this process's shards of a per-replica value, one of each replica, in order."""
        order = {device: index for index, device in enumerate(self.devices)}
        shards = sorted(array.addressable_shards, key=lambda shard: order[shard.device])
        return shards[:: self.num_cores]

    def slices(self, dimension: int) -> Layout:
        """Return the layout of values that are sharded along a dimension over these devices."""
        return sharded(dimension, self.mesh_shape.axis)

    def sharding(self, layout: Layout | None) -> Sharding:
        """Return the sharding of a value with this layout."""
        spec = PartitionSpec() if len(self.devices) == 1 else self.spec(layout)
        return NamedSharding(self.mesh, spec) if spec else self.mirrored

    def home(self, layout: Layout | None) -> Sharding:
        """Return the sharding in which a variable with this layout is stored between steps."""
        if self.parameter_device is not None:
            return SingleDeviceSharding(self.parameter_device)
        return self.sharding(layout)

    def spec(self, layout: Layout | None) -> PartitionSpec:
        """Return the partition spec of a value with this layout; one replica's value is whole."""
        layout = layout or PER_REPLICA
        axes: dict[int, tuple[str, ...]] = {}
        if layout.core is not None:
            axes[layout.core] = (CORE,)  # a shard of a core is cut for the replicas
        if layout.over_cores(None) is not MIRRORED and len(self) > 1:
            dimension, is_of_groups = layout.dimension or 0, layout.axis == MEMBER
            own = (REPLICA,) if self.num_groups == 1 else (GROUP, MEMBER)[is_of_groups:]
            axes[dimension] = (*axes.get(dimension, ()), *own)
        named = (axes.get(dimension, ()) for dimension in range(max(axes, default=-1) + 1))
        return PartitionSpec(*(names[0] if len(names) == 1 else names or None for names in named))


_NAME = re.compile(
    r"(?:/job:localhost)?(?:/replica:0)?(?:/task:0)?"  # as TensorFlow writes it in full
    r"/?(?:device:)?(?P<platform>[a-zA-Z]+):(?P<index>\d+)"
)


def find_devices(names: Sequence[str | jax.Device] | None, at: Source = UNKNOWN) -> Devices:
    """Return the named devices; None or an empty sequence names all local devices.

    Raise `DeviceError`, with `at` as the user's line, for a name that is malformed, and for a
    device that does not exist or is named twice.
    """
    if not isinstance(names, Sequence | None) or isinstance(names, str):
        what = f"devices is {names!r}, not a sequence of devices"
        raise DeviceError(what, source=at, hint=f"write devices={_listed(names)}")
    named = names or ()
    found = [find_device(name, at, named) for name in named] or list(jax.local_devices())
    for device in found:
        if (times := found.count(device)) > 1:
            what = f"device {device_name(device)!r} is given {times} times"
            hint = "give each device once: a device runs one replica"
            raise DeviceError(what, source=at, hint=hint)
    platforms = sorted({device.platform for device in found})
    if len(platforms) > 1:
        of = f"{len(platforms)} platforms, {' and '.join(platforms)}"
        raise DeviceError(f"the devices are of {of}: replicas run on one", source=at)
    return Devices(found)


def _listed(given: Any) -> str:
    """Return the hint that shows a list of devices, for a value that is not such a list."""
    if isinstance(given, str):
        return str([name.strip() for name in given.split(",") if name.strip()])
    if isinstance(given, jax.sharding.Mesh):
        return "list(mesh.devices.flat)"
    if isinstance(given, jax.Device):
        return f"[{device_name(given)!r}]"
    local = [device_name(device) for device in jax.local_devices()]
    wanted = given if type(given) is int and 0 < given <= len(local) else 2
    return str(local[:wanted])


def working_devices() -> Devices:
    """Return all local accelerators or, without any, one CPU device."""
    local = jax.local_devices()
    return Devices(local[:1] if local[0].platform == "cpu" else local)


def count_accelerators() -> dict[str, int]:
    """Return this process's number of accelerators by kind, such as {"GPU": 8}; {} on CPU."""
    names = [device_name(device).partition(":")[0].upper() for device in jax.local_devices()]
    return {kind: names.count(kind) for kind in names if kind != "CPU"}


def find_device(
    name: str | jax.Device, at: Source = UNKNOWN, among: Sequence[str | jax.Device] = ()
) -> jax.Device:
    """Return the device that a name stands for; return a `jax.Device` as it is.

    Raises `DeviceError`, with `at` as the user's line; its hint makes all devices of `among`.
    """
    if isinstance(name, jax.Device):
        return name
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        hint = "name it like 'cpu:0' or 'gpu:1', or give a jax.Device"
        if isinstance(name, str) and "," in name:
            hint = f"it names several: write each on its own, {_listed(name)}"
        raise DeviceError(f"{name!r} does not name a device", source=at, hint=hint)
    platform, index = match["platform"].lower(), int(match["index"])
    try:
        present = jax.local_devices(backend=platform)
    except RuntimeError:
        present = []
    if index < len(present):
        return present[index]
    local = [device_name(device) for device in jax.local_devices()]
    hint = f"choose from {local[0]!r} to {local[-1]!r}" if local[1:] else f"use {local[0]!r}"
    if platform == "cpu":
        named = [_NAME.fullmatch(each) for each in among if isinstance(each, str)]
        of_cpus = [each for each in named if each and each["platform"].lower() == "cpu"]
        last = max([index, *(int(each["index"]) for each in of_cpus)])
        call = f"gd.config.set_logical_cpu_devices({last + 1})"
        hint = f"call {call} first, before any array is made"
    there = f"the number of local {platform} devices is {len(present)}"
    raise DeviceError(f"device {name!r} is not there: {there}", source=at, hint=hint)


def device_name(device: jax.Device) -> str:
    """Return the name of a device, such as "cpu:0"."""
    process = device.process_index
    others = jax.local_devices(process, backend=device.platform)
    name = f"{_platform_of(device)}:{others.index(device)}"
    return name if process == jax.process_index() else f"/task:{process}/{name}"


def _platform_of(device: jax.Device) -> str:
    return "gpu" if device.platform in ("cuda", "rocm") else str(device.platform)


def backends_are_started() -> bool:
    """Return whether JAX has started to use devices, after which it cannot join a cluster."""
    settings: Any = jax.config
    count = settings.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", count + 1)  # JAX refuses this once it has started
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False
