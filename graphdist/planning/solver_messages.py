"""Keep what HiGHS prints by mistake out of a program's output.

HiGHS 1.12, in SciPy 1.17, prints the name of a function of its own again and again, whatever its
options (ERGO-Code/HiGHS, issue 2783). It prints to the process's standard output, where a program
may have its JSON.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_MESSAGE = b"HighsMipSolverData::"
_STANDARD_OUTPUT = 1


@contextmanager
def without_solver_messages() -> Iterator[None]:
    """Leave out what HiGHS prints in the block; all else that is printed comes at its end."""
    try:
        output = os.dup(_STANDARD_OUTPUT)
    except OSError:  # The process has no standard output.
        yield
        return
    with os.fdopen(output, "wb") as real, tempfile.TemporaryFile() as printed:
        _flush()
        os.dup2(printed.fileno(), _STANDARD_OUTPUT)
        try:
            yield
        finally:
            _flush()
            os.dup2(real.fileno(), _STANDARD_OUTPUT)
            printed.seek(0)
            real.writelines(line for line in printed if not line.startswith(_MESSAGE))


def _flush() -> None:
    """Write out what Python and the C library hold back."""
    if sys.stdout is not None:
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
