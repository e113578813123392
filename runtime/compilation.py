"""StableHLO -> executable, and XLA's errors as errors of graphdist.

XLA reports every error as text. Two errors have classes of their own, since users can act on them:
a program that needs more memory than a device has, and compiler options that the platform's
compiler does not accept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any  # Any: compiler options are whatever XLA takes

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.stages import Compiled, Lowered

from graphdist.ir.errors import GraphdistError
from graphdist.passes import Target
from graphdist.runtime.absent_devices import cuda_folder
from graphdist.runtime.devices import Devices

_OPTION_REFUSED = "No such compile option", "While setting option", " into flag xla_"
_COLLECTIVE = re.compile(
    r"stablehlo\.(all_gather|all_reduce|all_to_all|collective_\w+|reduce_scatter)\b"
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"\(?([\d.]+)([KMGT]?)i?B?\)?"
_EXCEEDS = re.compile(rf"{_SIZE}\s+exceeds\s+(?:the\s+)?available\s+\w+\s+{_SIZE}")
_USED = re.compile(rf"Used {_SIZE} of {_SIZE} hbm")
_USED_ON_HOST = re.compile(rf"Used {_SIZE} of {_SIZE} host\b")
_ON_HOST = re.compile(
    r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\).*\.host\b.* \[shape: ([^\]]+\])"
)


HOW_TO_FIT = (
    "a smaller batch, jax.checkpoint or state of a smaller dtype makes it fit; "
    "graphdist-compile --fit finds the largest batch"
)
"""The hint for a program that needs more memory than a device has."""


class DeviceMemoryError(GraphdistError, MemoryError):
    """A program that needs more memory than a device has; 0 bytes mean unknown."""

    needed_bytes = 0
    available_bytes = 0


class CompilerOptionError(GraphdistError, ValueError):
    """A compiler option, or a value of one, that the platform's compiler does not accept."""


def compile_lowered(
    lowered: Lowered,
    devices: Devices,
    compiler_options: Mapping[str, Any] | None = None,
    *,
    divides_temporaries: bool = False,
) -> Compiled:
    """Compile for these devices; `compiler_options` override the options of the function.

    `divides_temporaries` says whether XLA divides temporaries into blocks (`cpu_options.py`).
    Raises `DeviceMemoryError` and `CompilerOptionError`; other errors are XLA's. With several
    workers, `WorkerError` is raised if another worker fails during the compilation.
    """
    options = dict(compiler_options or {}) or None
    try:
        is_kept = not divides_temporaries and _can_be_kept(lowered, devices)
        with nullcontext() if is_kept else without_cache():
            if devices.workers is None:
                return lowered.compile(options)
            return devices.workers.supervise(lambda: lowered.compile(options))
    except jax.errors.JaxRuntimeError as error:
        refusal = refused(str(error), devices)
        if refusal is None:
            raise
        raise refusal from error


def _can_be_kept(lowered: Lowered, devices: Devices) -> bool:
    """Return whether JAX's cache gives a program back as it was.

    JAX cannot read programs of absent devices from it, nor those with several blocks of temporaries
    (JAX 0.10.2 to 0.12), which `compile_lowered` leaves out. Programs for several CPU devices that
    come from it crash in some runs, in a collective that has met another one: JAX gives all of them
    one channel, so that their order alone tells them apart (JAX 0.10.2).
    """
    if devices.topology is not None:
        return False
    if devices.platform != "cpu" or len(devices.devices) == 1 or not has_cache():
        return True
    main, *private = lowered.as_text().split("func.func private")
    return len(_COLLECTIVE.findall(main)) < 2 and not any(map(_COLLECTIVE.search, private))


def has_cache() -> bool:
    """Return whether JAX keeps compiled programs on disk."""
    settings: Any = jax.config  # Any: its type has no settings
    enabled, folder = settings.jax_enable_compilation_cache, settings.jax_compilation_cache_dir
    return bool(enabled and folder)


def keep_compiled(folder: str | None) -> None:
    """Have JAX keep all compiled programs in a folder, also of programs that it compiles at once.

    The path becomes absolute: JAX opens it later, and for GPUs it is part of the keys.
    """
    if folder is not None and "://" not in folder:  # which names a store of a cloud
        folder = os.path.abspath(folder)
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # which remembers that there was none


@contextmanager
def without_cache() -> Iterator[None]:
    """Compile without JAX's compilation cache inside the `with` block."""
    if not has_cache():
        yield
        return
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # the cache has read the old setting
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
        compilation_cache.reset_cache()


_COMBINING = {
    "gpu": (
        "xla_gpu_all_reduce_combine_threshold_bytes",
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
        "xla_gpu_all_gather_combine_threshold_bytes",
    ),
    "tpu": ("xla_jf_crs_combiner_threshold_in_bytes",),
}
"""XLA's options for the size in bytes up to which XLA combines collectives, by platform.

On CPU the pass `bucket_collectives` packs them.
"""


_GATHERING: dict[str, dict[str, Any]] = {
    "TPU v5 lite": {"xla_tpu_scoped_vmem_limit_kib": 24 * 2**10},
}
"""XLA's options that let more gathers overlap with computation, by kind of device.

The limit is the KiB of a core's own memory (VMEM) that one computation may use; gathered values
arrive there meanwhile (libtpu 0.0.42, whose default is 16 MiB). Options that need much more of a
chip's memory are left to users.
"""


def step_options(target: Target, device_kind: str) -> dict[str, Any]:
    """Return XLA's options for a target's steps: how collectives are combined and gathers overlap.

    With a `bytes_per_pack` of 0 XLA decides how collectives are combined.
    """
    size = target.bytes_per_pack
    combining = dict.fromkeys(_COMBINING.get(target.platform, ()), size) if size else {}
    gathering = _GATHERING.get(device_kind, {}) if target.shard_parameters else {}
    return {**combining, **gathering}


def device_options(devices: Devices) -> dict[str, Any]:
    """Return the options that devices need, which absent GPUs alone do.

    A product is a call of cuBLAS, or a kernel of Triton, whose sizes XLA chooses by measuring on
    the GPU. Without one, Triton's have the smallest sizes: a step took nine times as long. The
    folder is that of CUDA's files.
    """
    if not (devices.is_absent and devices.platform == "gpu"):
        return {}
    folder = cuda_folder()
    found = {} if folder is None else {"xla_gpu_cuda_data_dir": str(folder)}
    return {**found, "xla_gpu_enable_triton_gemm": False}


def refused(text: str, devices: Devices) -> GraphdistError | None:
    """Return graphdist's error for an error text of XLA; None if users cannot act on it."""
    first = text.splitlines()[0]
    if any(said in text for said in _OPTION_REFUSED):
        return CompilerOptionError(
            f"the compiler for {devices.platform} refuses a compiler option: "
            f"{first.partition(': ')[2].rstrip(': ') or first}",
            hint="options are XLA's own, and differ from platform to platform",
        )
    if not text.startswith("RESOURCE_EXHAUSTED"):
        return None
    if (on_host := _on_host(text)) is not None:
        what, needed, available = on_host
        return DeviceMemoryError(
            f"{what} needs {needed / 2**30:.2f} GiB of the host's memory for each device, the "
            f"compiler for {devices} allows {available / 2**30:.2f} GiB",
            hint="recompute values that are on the host, or keep them on the device",
        )
    sizes = _USED.search(text) or _EXCEEDS.search(text)
    needed, available = _bytes(sizes) if sizes else (0, 0)
    error = DeviceMemoryError(
        f"the program needs {needed / 2**30:.2f} GiB on each device of {devices}, there are "
        f"{available / 2**30:.2f} GiB: {(needed - available) / 2**30:.2f} GiB too much"
        if needed
        else f"the program needs more memory than a device of {devices} has: {first}",
        hint=HOW_TO_FIT,
    )
    error.needed_bytes, error.available_bytes = needed, available
    return error


def _on_host(text: str) -> tuple[str, int, int] | None:
    """Return what needs how much of the host's memory, and how much there is; None if enough."""
    if (used := _USED_ON_HOST.search(text)) is not None:
        return "the program", *_bytes(used)
    if (one := _ON_HOST.search(text)) is not None:
        needed, available, type = one.groups()
        return type, int(needed), int(available)
    return None


def _bytes(sizes: re.Match[str]) -> tuple[int, int]:
    needed, of_needed, available, of_available = sizes.groups()
    return (
        int(float(needed) * _UNITS[of_needed]),
        int(float(available) * _UNITS[of_available]),
    )
