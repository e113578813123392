"""Whether a saved step can run here: versions, devices, flags, replicas, platform and memory.

The portable module needs the same versions, the same number of replicas, and a platform that it was
saved for. The compiler's executable also needs the same kind of devices, the same layout of devices
and the same compiler flags.

A module of a kilobyte may need a terabyte of memory. The compilers for GPUs and TPUs raise an error
for such a module, the compiler for CPUs does not. So the memory that the step needs is compared
with the memory of a device. CPU devices of one process share the memory of the host, so the memory
that all of these devices need is compared with the host's memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any  # Any: JSON

import jax

from graphdist.aot.reading import StepFile
from graphdist.config import compiler_flags
from graphdist.context import current_entry
from graphdist.errors import ArtifactError, DeviceMemoryError
from graphdist.ir.graph import Graph
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import Executable
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategy_base import StrategyBase
from graphdist.version import versions


def check_versions(file: StepFile) -> None:
    """Raise `ArtifactError` for a file that was made by other versions."""
    for package, is_here in versions().items():
        made_by = file.manifest["versions"][package]
        if package != "libtpu" and made_by != is_here:
            raise ArtifactError(
                f"{file.name} was made with {package} {made_by}, here is {package} {is_here}",
                hint=f"install {package}=={made_by}, or compile the step again",
            )


def check_native(file: StepFile, devices: Devices) -> None:
    """Raise `ArtifactError` unless devices and flags are the same as at the compilation.

    An executable names its devices by id. If there are several processes, the ids of CPUs depend on
    the process, so no executable runs on these CPUs.
    """
    if devices.platform == "cpu" and devices.workers is not None:
        raise _not_native(
            file, f"is for the CPUs of one process, here are {len(devices.workers)} workers"
        )
    made_for = _native_needs(file.manifest, devices.platform)
    present = {"target": target_of(devices), "flags": compiler_flags(), "versions": versions()}
    for what, is_here in _native_needs(present, devices.platform).items():
        if made_for[what] != is_here:
            raise _not_native(file, f"was made for {what} {made_for[what]}, here are {is_here}")


def _native_needs(manifest: dict[str, Any], platform: str) -> dict[str, str]:
    """Return the properties that an executable needs, as texts by name."""
    target = manifest["target"]
    needs = {
        "devices": f"{target['num_devices']} {target['device_kind']}",
        "slices": target["layout"],
        "compiler flags": str(manifest["flags"]),
    }
    return {**needs, "libtpu": manifest["versions"]["libtpu"]} if platform == "tpu" else needs


def _not_native(file: StepFile, why: str) -> ArtifactError:
    return ArtifactError(
        f"the native executable in {file.name} {why}",
        hint="leave out native=True: the portable module is compiled for what is here",
    )


def target_of(devices: Devices) -> dict[str, Any]:
    """Return the devices as a manifest describes them."""
    topology = devices.topology
    return {
        "platform": devices.platform,
        "device_kind": devices.kind,
        "num_devices": len(devices.devices),
        "topology": None if topology is None else topology.name,
        "num_slices": 1 if topology is None else topology.num_slices,
        "layout": _layout(devices),
    }


def _layout(devices: Devices) -> str:
    """Return the number of TPU slices, and their chips along each dimension; "" for no TPUs.

    The text is computed from the devices' coordinates. Absent TPUs of a topology have coordinates,
    too, so absent TPUs can be compared with present ones. Only absent GPUs have any.
    """
    if devices.platform != "tpu":
        return ""
    coordinates = [tuple(getattr(device, "coords", None) or ()) for device in devices.devices]
    if not all(coordinates):
        return ""
    sides = (max(along) - min(along) + 1 for along in zip(*coordinates, strict=True))
    slices = {getattr(device, "slice_index", 0) or 0 for device in devices.devices}
    return f"{len(slices)} of {'x'.join(map(str, sides))}"


def strategy_that_runs(file: StepFile, graph: Graph, strategy: StrategyBase | None) -> StrategyBase:
    """Return the strategy that runs the step. Raise `ArtifactError` if its devices do not fit."""
    name, platforms = file.name, file.manifest["platforms"]
    if strategy is None and (entry := current_entry()) is not None:
        strategy = entry.strategy
    if strategy is None:
        local = jax.local_devices()[: graph.num_replicas * graph.num_cores]
        strategy = MirroredStrategy(local, cores_per_replica=graph.num_cores)
    devices = strategy.devices
    if len(devices) != graph.num_replicas:
        raise ArtifactError(
            f"{name} was compiled for {graph.num_replicas} replicas, {strategy} has {len(devices)}",
            hint="give load a strategy of as many replicas, or compile the step for these",
        )
    if devices.num_cores != graph.num_cores:
        raise ArtifactError(
            f"{name} was compiled for replicas of {graph.num_cores} devices, {strategy} has "
            f"replicas of {devices.num_cores}",
            hint=f"give load a strategy with cores_per_replica={graph.num_cores}",
        )
    is_sharded = any(variable.sharded_along is not None for variable in graph.variables)
    if is_sharded and graph.num_groups != devices.num_groups:
        size = graph.mesh.group_size
        raise ArtifactError(
            f"{name} shards variables over {size} replicas, {strategy} over {devices.group_size}",
            hint=f"give load a strategy with shard_parameters={size}",
        )
    if devices.is_absent:
        devices.refuse_to_run(f"loading {name}")
    if devices.platform not in platforms:
        raise ArtifactError(
            f"{name} was compiled for {' and '.join(platforms)}, the devices are of "
            f"{devices.platform}",
            hint=f"save it for {devices.platform} too: gd.aot.save(path, compiled, platforms=[..])",
        )
    return strategy


_CGROUP = Path("/sys/fs/cgroup/memory.max")


def require_memory(name: str, executable: Executable, devices: Devices) -> None:
    """Raise `DeviceMemoryError` for a step that needs more memory than there is."""
    needed, here_are = executable.memory.peak_bytes, devices.memory_bytes
    where = f"each device of {devices}"
    if not here_are and devices.platform == "cpu":
        needed *= sum(each.process_index == jax.process_index() for each in devices.devices)
        here_are, where = host_bytes(), "this host"
    if not here_are or needed <= here_are:
        return
    error = DeviceMemoryError(
        f"the step in {name} needs {needed:,} bytes on {where}, there are {here_are:,}",
        hint="load it where there is more memory; load(path, trusted=True) skips this check",
    )
    error.needed_bytes, error.available_bytes = needed, here_are
    raise error


def host_bytes() -> int:
    """Return the memory that this process may have; 0 if the system does not say."""
    try:
        installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return 0
    try:
        limit = _CGROUP.read_text(encoding="ascii").strip()
    except OSError:
        return installed
    return min(installed, int(limit)) if limit.isdigit() else installed
