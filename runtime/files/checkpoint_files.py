"""Files on a disk: checked when they are read, synced to the disk when they are written.

A folder's content may be damaged, truncated, or written by somebody else. So only regular files are
read, since a pipe or a device may never end, and the size is checked before memory is allocated.
Links are not followed: neither out of the folder of a checkpoint when it is read, nor out of the
folder of checkpoints when one is written or removed. Only new files are written.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphdist.ir.errors import GraphdistError
from graphdist.runtime.files.regular_files import NotAFileError, open_regular

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_BYTES_AT_ONCE = 2**20
"""The size of a block in bytes, so that its checksum is computed in the processor's cache."""


class CheckpointError(GraphdistError, ValueError):
    """A checkpoint cannot be saved, or does not fit the objects it is restored to."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint does not exist, was removed while it was read, or is damaged."""


def _refuse_linked_folders(file: Path, within: Path) -> None:
    """Raise `NotAFileError` if a folder between a file and the folder `within` is a link."""
    for folder in itertools.takewhile(lambda folder: folder != within, file.parents):
        if folder.is_symlink():
            raise NotAFileError(errno.ELOOP, "it is a symbolic link", str(folder))


@contextmanager
def open_regular_file(file: Path, within: Path) -> Iterator[io.FileIO]:
    """Open a file in a folder for reading.

    Raises `NotAFileError` for a pipe, a device, a folder, a link, or a file in a linked folder.
    """
    _refuse_linked_folders(file, within)
    with io.FileIO(open_regular(file)) as opened:
        yield opened


def read_small(file: Path, within: Path, most: int) -> bytes:
    """Return the content of a file; raises `ValueError` if it is larger than `most` bytes.

    Raises the errors of `open_regular_file`, too.
    """
    with open_regular_file(file, within) as opened:
        size = os.fstat(opened.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
        return opened.read()


def read_into(file: io.FileIO, memory: memoryview) -> str:
    """Fill memory from a file; return the CRC-32 of the bytes.

    Raises `ValueError` if the file is shorter than the memory.
    """
    crc = 0
    for start in range(0, len(memory), _BYTES_AT_ONCE):
        block = memory[start : start + _BYTES_AT_ONCE]
        if file.readinto(block) != len(block):
            raise ValueError("it was cut short while it was read")
        crc = zlib.crc32(block, crc)
    return f"{crc:08x}"


def size_of(file: Path, within: Path) -> int | None:
    """Return the size of a regular file that may be opened; None if there is none."""
    try:
        _refuse_linked_folders(file, within)
        status = file.lstat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def write_synced(file: Path, content: bytes | memoryview) -> str:
    """Write a new file and sync it to the disk; return the CRC-32 of its content."""
    memory, crc = memoryview(content), 0
    with file.open("xb", buffering=0) as written:
        for start in range(0, len(memory), _BYTES_AT_ONCE):
            block = memory[start : start + _BYTES_AT_ONCE]
            crc = zlib.crc32(block, crc)
            while block:
                block = block[written.write(block) :]
        os.fsync(written.fileno())
    return f"{crc:08x}"


def erase(path: Path) -> None:
    """Remove a folder and its content, or a file or link, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def sync_folders(folder: Path) -> None:
    """Sync a folder and the folders in it."""
    for path, _, _ in os.walk(folder):
        sync(Path(path))


def sync(folder: Path) -> None:
    """Sync the entries of a folder, its names, to the disk: to sync its files does not."""
    if os.name == "nt":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(error: Exception, folder: Path | str) -> CheckpointError | None:
    """Return the error for an OSError while a folder was written; None for another exception."""
    if not isinstance(error, OSError) or error.errno is None:
        return None
    why = error.strerror if isinstance(error, NotAFileError) else os.strerror(error.errno)
    if error.errno == errno.ENAMETOOLONG:
        return CheckpointError(
            f"a checkpoint cannot be written to {folder}: {why}: {error.filename}",
            hint="give a shorter name; while a checkpoint is written its name is longer",
        )
    if error.errno not in _FULL:
        return CheckpointError(
            f"checkpoints cannot be written to {folder}: {why}: {error.filename or folder}",
            hint="give a folder that this process may make, and write to",
        )
    try:
        free = f"; {shutil.disk_usage(folder).free / 2**20:,.0f} MiB are free"
    except OSError:
        free = ""
    return CheckpointError(
        f"there is no room for a checkpoint in {folder}: {why}{free}",
        hint="make room, keep fewer checkpoints (max_to_keep), or save somewhere else; what was "
        "written of this one is removed",
    )
