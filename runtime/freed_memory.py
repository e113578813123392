"""Have the C library of Linux keep the memory that a step frees, for the next step.

XLA's runtime for CPUs allocates the temporaries of a step when it begins and frees them when it
ends. As it comes, glibc gives much of that back to the system, which clears every page again in the
next step: up to a third of a step's time. Three settings of mallopt(3) change it, for the whole
process, unless the environment has set them:

* blocks of less than `MOST_BYTES_KEPT` come from a heap, where freed memory can be kept;
* the free memory at the end of the main heap is given back if it is 2 GiB or more;
* the heaps of other threads, each of 64 MiB, are not given back when they are empty.

Larger blocks are given back at once, as before. The options in `cpu_options.py` have XLA divide
temporaries into blocks that are small enough.

Each thread of XLA's pool has a heap, and any of them may run a step, so that a process may keep a
step's temporaries once for each processor. If this is more than `SHARE` of the machine's memory, or
of the container's, nothing is changed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

MOST_BYTES_KEPT = 2**25
"""The bytes from which on the C library of Linux gives a freed block back: the largest value of
M_MMAP_THRESHOLD."""
BLOCK_BYTES = 2**23
"""The size of a block of temporaries in bytes, if no value is larger."""
SHARE = 1 / 8
"""The share of all memory that the kept memory may have."""
_BYTES_OF_A_HEAP = 2**26
SETTINGS = {
    "trim_threshold": (-1, 2**31 - 1),
    "top_pad": (-2, _BYTES_OF_A_HEAP),
    "mmap_threshold": (-3, MOST_BYTES_KEPT),
}
"""The number in malloc.h and the value of each setting, by the name that the environment has for
it."""
given: set[str] = set()
"""The settings that the environment has, which stay as they are; `config.py` adds them."""


def keep_freed_memory(temporaries: int) -> bool:
    """Have this process keep the memory that steps free, if one has several blocks of temporaries.

    `temporaries` are the step's, in bytes. Return whether the process does: with glibc alone, and
    if the machine has enough memory.
    """
    kept = temporaries * (os.cpu_count() or 1)
    has_room = kept <= SHARE * _bytes_of_memory()
    return temporaries > BLOCK_BYTES and has_room and _keep_freed_memory()


@cache
def _keep_freed_memory() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return False
    chosen = [setting for name, setting in SETTINGS.items() if name not in given]
    return sum(mallopt(*setting) for setting in chosen) == len(chosen)


@cache
def _bytes_of_memory() -> int:
    """Return the bytes of memory of this machine, or of the container if it has less."""
    if not sys.platform.startswith("linux"):
        return 0
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2 and 1
        with suppress(OSError, ValueError):  # "max" is no limit
            sizes.append(int(Path("/sys/fs/cgroup", limit).read_text()))
    return min(sizes)
