"""Whether a loaded step fits into the memory that is here, asked before it runs.

A module of a kilobyte may ask for a terabyte. Compilers for GPUs and TPUs refuse it, and the one
for CPUs does not. So its figure is compared with the memory of the device, or of the host, which
all of this process's CPU devices share.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax

from graphdist.errors import DeviceMemoryError
from graphdist.runtime.devices import Devices
from graphdist.runtime.executable import Executable
from graphdist.tracing.user_lines import here

_CGROUP = Path("/sys/fs/cgroup/memory.max")


def require_memory(name: str, executable: Executable, devices: Devices) -> None:
    """Raise `DeviceMemoryError` for a step that needs more memory than there is."""
    needed, here_are = executable.memory.needed_bytes(devices.platform), devices.memory_bytes
    where = f"each device of {devices}"
    if not here_are and devices.platform == "cpu":
        needed *= sum(each.process_index == jax.process_index() for each in devices.devices)
        here_are, where = host_bytes(), "this host"
    if not here_are or needed <= here_are:
        return
    error = DeviceMemoryError(
        f"the step in {name} needs {needed:,} bytes on {where}, there are {here_are:,}",
        source=here(),
        hint="load it where there is more memory; load(path, trusted=True) does not ask",
    )
    error.needed_bytes, error.available_bytes = needed, here_are
    raise error


def host_bytes() -> int:
    """Return the memory that this process may have; 0 if the system does not say."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return 0
    try:
        limit = _CGROUP.read_text(encoding="ascii").strip()
    except OSError:
        return found
    return min(found, int(limit)) if limit.isdigit() else found
