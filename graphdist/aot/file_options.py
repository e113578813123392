"""The options of XLA that the file of a step may choose, and the values they may have.

Some options write files, some take any amount of memory, and some end the process. With ten million
for `xla_cpu_parallel_codegen_split_count` XLA takes 20 GB, and with -1 it aborts. Not all of XLA's
options are known to be safe. So a file may choose only the options in this table, which graphdist
and its documents use. The caller of `load` may choose any option.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: JSON, and options of XLA

from graphdist.aot.reading import StepFile
from graphdist.errors import ArtifactError
from graphdist.runtime.cpu_operations import LIBRARY
from graphdist.runtime.cpu_options import (
    ALL_BUT_CONVOLUTIONS,
    BLOCK,
    CONVOLUTIONS,
    PRODUCTS_AND_SURROUNDINGS,
    PRODUCTS_OF_BFLOAT16,
)
from graphdist.runtime.devices import Devices
from graphdist.runtime.freed_memory import BLOCK_BYTES, MOST_BYTES_KEPT

_BYTES = range(2**40 + 1)
_SWITCH = None
FILE_OPTIONS: dict[str, range | tuple[str, ...] | None] = {
    BLOCK: range(BLOCK_BYTES, MOST_BYTES_KEPT),
    LIBRARY: (
        PRODUCTS_AND_SURROUNDINGS,
        PRODUCTS_OF_BFLOAT16,
        CONVOLUTIONS,
        ALL_BUT_CONVOLUTIONS,
    ),
    "xla_cpu_enable_fast_math": _SWITCH,
    "xla_cpu_multi_thread_eigen": _SWITCH,
    "xla_enable_async_all_gather": _SWITCH,
    "xla_gpu_all_gather_combine_threshold_bytes": _BYTES,
    "xla_gpu_all_reduce_combine_threshold_bytes": _BYTES,
    "xla_gpu_reduce_scatter_combine_threshold_bytes": _BYTES,
    "xla_jf_crs_combiner_threshold_in_bytes": _BYTES,
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": _SWITCH,
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": _SWITCH,
    "xla_tpu_scoped_vmem_limit_kib": range(2**17 + 1),
}
"""The integers or texts that each option may be; None for a switch."""
_SAFE: dict[str, Any] = {"xla_disable_hlo_passes": "constant_folding"}
"""Options for untrusted modules. Folding the constants of some modules of a kilobyte takes hours,
so the step computes them instead."""


def options_for(
    file: StepFile, devices: Devices, chosen: Mapping[str, Any] | None, *, trusted: bool
) -> dict[str, Any]:
    """Return XLA's options for the portable module of a file.

    `chosen` are the options of the caller of `load`; None stands for the options in the file. Raise
    `ArtifactError` for options in the file that only a trusted file may choose.
    """
    safe = {} if trusted else _SAFE
    if chosen is not None:
        return {**safe, **chosen}
    if devices.platform != file.manifest["target"]["platform"]:
        return dict(safe)
    options = file.manifest["compiler_options"]
    if not trusted:
        for option, value in options.items():
            _require_allowed(file.name, option, value)
    return {**safe, **options}


def _require_allowed(name: str, option: str, value: Any) -> None:
    allowed, is_switch = FILE_OPTIONS.get(option), isinstance(value, bool)
    if option not in FILE_OPTIONS:
        is_allowed, why = False, "no file may choose it"
    elif allowed is None:
        is_allowed, why = is_switch, "a file may choose true or false"
    elif isinstance(allowed, tuple):
        is_allowed, why = value in allowed, f"a file may choose {' or '.join(allowed)}"
    else:
        is_allowed = isinstance(value, int) and not is_switch and value in allowed
        why = f"a file may choose integers from {allowed[0]} to {allowed[-1]}"
    if not is_allowed:
        raise ArtifactError(
            f"{name} asks for the compiler option {option:.100}={value!r:.100}: {why}",
            hint="if you want it, ask for it: load(path, compiler_options={..}); if you trust the "
            "file as you would a program: load(path, trusted=True)",
        )
