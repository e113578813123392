"""How much memory a process has taken at most."""

from __future__ import annotations

import re
import resource
from pathlib import Path


def peak_bytes() -> int:
    """Return the most bytes of memory that this program had, or one that it started.

    `ru_maxrss` of this process would count what forked it too, before the program began.
    """
    own = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert own is not None
    return 1024 * max(int(own[1]), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
