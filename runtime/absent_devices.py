"""Devices that stand for the accelerators of a topology that is not present.

Programs can be compiled for these devices, but not run on them. The compilers come in separate
packages, libtpu and the CUDA plugin, and need no hardware.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import jax
from jax.experimental import topologies

from graphdist.runtime.devices import Devices
from graphdist.runtime.extras import has_package, require_package
from graphdist.runtime.targets.gpu_targets import GPU_TARGETS
from graphdist.runtime.targets.topologies import DeviceError, Topology, nearest_topologies
from graphdist.tracing.user_lines import here


def absent_devices(topology: Topology) -> Devices:
    """Return devices to compile programs for, without the hardware.

    Raises `MissingExtraError` if the compiler's package is not installed, and `DeviceError` for a
    shape that the compiler does not accept.
    """
    packages, devices_of = _COMPILERS[topology.chip.platform]
    package = next(filter(has_package, packages), packages[0])
    require_package(package, f"compiling for {topology}")
    try:
        return Devices(devices_of(topology), topology=topology)
    except jax.errors.JaxRuntimeError as error:
        raise DeviceError(
            f"the compiler refuses topology {topology}: {str(error).splitlines()[0]}",
            source=here(),
            hint=nearest_topologies(topology.name),
        ) from error
    except NotImplementedError as error:  # JAX found no hardware, and dropped the plugin
        raise DeviceError(
            f"the compiler for {topology} was not loaded: JAX looked for its hardware and found "
            f"none",
            source=here(),
            hint="set JAX_PLATFORMS=cpu in the environment",
        ) from error


@cache
def _tpu_devices(topology: Topology) -> tuple[jax.Device, ...]:
    settings: dict[str, int | str] = {}
    if topology.num_slices > 1:
        settings["num_slices"] = topology.num_slices
    if topology.chip.configuration:
        settings["chip_config_name"] = topology.chip.configuration
    first, second, *_ = topology.shape
    found = topologies.get_topology_desc(
        platform="tpu",
        topology_name=topology.name,
        chips_per_host_bounds=(min(first, 2), min(second, 2), 1),  # a host has 2 x 2 chips
        wrap=(*topology.wraps, False)[:3],
        **settings,
    ).devices
    return tuple(sorted(found, key=lambda device: getattr(device, "slice_index", 0) or 0))


@cache
def _gpu_devices(topology: Topology) -> tuple[jax.Device, ...]:
    hosts, gpus = topology.shape
    target = GPU_TARGETS[topology.chip.name].as_text()
    shape = f"1x{hosts}x{gpus}"
    found = topologies.get_topology_desc("", "cuda", target_config=target, topology=shape)
    return tuple(found.devices)


_COMPILERS = {
    "tpu": (("libtpu",), _tpu_devices),
    "gpu": (("jax_cuda12_plugin", "jax_cuda13_plugin"), _gpu_devices),
}
"""The packages of which each has a platform's compiler, and the function that makes the devices.

An extra of graphdist brings the first package.
"""


def cuda_folder() -> Path | None:
    """Return the folder of the CUDA compiler's package, if it is installed.

    The packages of CUDA 13 need no folder: the plugin has what it needs.
    """
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "cuda_nvcc"
        if folder.is_dir():
            return folder
    return None
