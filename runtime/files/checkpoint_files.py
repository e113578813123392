"""The files of a checkpoint: read with suspicion, written through to the disk.

A folder's content may be damaged, cut short, or put there by somebody else. So only regular files
are read, since a pipe or a device may never end, and the size is checked before memory is
allocated.
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
    """A checkpoint cannot be saved, or does not fit the objects it is restored to."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint does not exist, was removed while it was read, or is damaged."""


@contextmanager
def open_regular_file(file: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; raises `OSError` for a pipe, a device or a folder."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(descriptor, "rb", buffering=0) as found:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no file", str(file))
        yield found


def read_small(file: Path, most: int) -> bytes:
    """Return the content of a file; raises `ValueError` if it is larger than `most` bytes."""
    with open_regular_file(file) as found:
        size = os.fstat(found.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
        return found.read()


def size_of(file: Path) -> int | None:
    """Return the size of a regular file; None if there is none."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def write_synced(file: Path, content: bytes) -> None:
    """Write a file; its content is on the disk when this returns."""
    with file.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())


def sync_folders(folder: Path) -> None:
    """Sync a folder and the folders in it."""
    for found, _, _ in os.walk(folder):
        sync(Path(found))


def sync(folder: Path) -> None:
    """Write the entries of a folder, its names, to the disk: syncing a file does not."""
    if os.name == "nt":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(error: Exception, folder: Path) -> CheckpointError | None:
    """Return the error to raise for the system's refusal to write to a folder; None for another.

    The text of a tensorstore error contains the number of the system's error.
    """
    found = _CODE.search(str(error))
    number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
    if number is None:
        return None
    if number not in _FULL:
        file = getattr(error, "filename", None) or folder
        return CheckpointError(
            f"checkpoints cannot be written to {folder}: {os.strerror(number)}: {file}",
            hint="give a folder that this process may make, and write to",
        )
    try:
        free = f"; {shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free"
    except OSError:
        free = ""
    return CheckpointError(
        f"there is no room for a checkpoint in {folder}: {os.strerror(number)}{free}",
        hint="make room, keep fewer checkpoints (max_to_keep), or save somewhere else; what was "
        "written of this one is removed",
    )


def obstacle_to_writing(folder: Path) -> str:
    """Say why nothing can be written to a folder, which need not exist; "" if it seems possible."""
    for place in (folder, *folder.parents):
        if os.path.lexists(place):
            if not place.is_dir():
                return f"{place} is no folder"
            may_write = os.access(place, os.W_OK | os.X_OK)
            return "" if may_write else f"this process may not write to {place}"
    return ""
