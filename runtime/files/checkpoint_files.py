"""The files of a checkpoint: read with suspicion, written so that they are on the disk.

What lies in a folder may be damaged, cut short, or put there by somebody else. A file is opened
only if it is one, not a pipe that never ends, and its size is looked at before memory is asked for.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from graphdist.ir.errors import GraphdistError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CODE = re.compile(r"os_error_code='(\d+)'")


class CheckpointError(GraphdistError, ValueError):
    """A checkpoint that cannot be saved, or does not fit what it is restored to."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint that is not there, was removed while it was read, or is damaged."""


@contextmanager
def open_regular_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; raises `OSError` for what is none, such as a pipe or a folder."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb", buffering=0) as found:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(file))
        yield found


def read_small(file: Path, most: int) -> bytes:
    """Return what is in a file; raises `ValueError` if it has more bytes than it may."""
    with open_regular_file(file) as found:
        size = os.fstat(found.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
        return found.read()


def size_of(file: Path) -> int | None:
    """Return the size of a file; None where there is none."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def write_synced(file: Path, content: bytes) -> None:
    """Write a file; it is on the disk when this returns."""
    with file.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())


def sync_folders(folder: Path) -> None:
    """Have the names in a folder on the disk, and those in the folders of it."""
    for found, _, _ in os.walk(folder):
        sync(Path(found))


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    if os.name == "nt":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk(error: Exception, folder: Path) -> CheckpointError | None:
    """Return what is to be raised where an error says that there is no room; None if it does not.

    Of tensorstore's errors the text has the number of the system's error.
    """
    found = _CODE.search(str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    if number not in _FULL:
        return None
    try:
        free = f"; {shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free"
    except OSError:
        free = ""
    return CheckpointError(
        f"there is no room for a checkpoint in {folder}: {os.strerror(number)}{free}",
        hint="make room, keep fewer checkpoints (max_to_keep), or save somewhere else; what was "
        "written of this one is removed",
    )
