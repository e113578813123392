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
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

MOST_BYTES_KEPT = 2**25
"""The bytes from which on the C library of Linux gives a freed block back: the largest value of
M_MMAP_THRESHOLD."""
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


@cache
def keep_freed_memory() -> bool:
    """Have this process keep the memory that it frees; return whether it does: with glibc alone."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is None:
        return False
    chosen = [setting for name, setting in SETTINGS.items() if name not in given]
    return sum(mallopt(*setting) for setting in chosen) == len(chosen)
