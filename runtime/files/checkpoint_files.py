"""Writes files and syncs them to the disk, and says why that fails. Only new files are written."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphdist.ir.errors import GraphdistError
from graphdist.runtime.files.regular_files import NotAFileError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BYTES_AT_ONCE = 2**20
"""The size of a block in bytes: small, so that a checksum is computed in the processor's cache."""


class CheckpointError(GraphdistError, ValueError):
    """A checkpoint cannot be saved, or does not fit the objects it is restored to."""


class UnreadableCheckpointError(CheckpointError):
    """A checkpoint does not exist, was removed while it was read, or is damaged."""


def write_synced(file: Path, content: bytes | memoryview) -> str:
    """Write a new file and sync it to the disk; return the CRC-32 of its content."""
    memory, crc = memoryview(content), 0
    with file.open("xb", buffering=0) as written:
        for start in range(0, len(memory), BYTES_AT_ONCE):
            block = memory[start : start + BYTES_AT_ONCE]
            crc = zlib.crc32(block, crc)
            while block:
                block = block[written.write(block) :]
        os.fsync(written.fileno())
    return f"{crc:08x}"


def erase(path: Path) -> None:
    """Remove a folder with its content, or a file or link; ignore what cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()


def sync_folders(folder: Path) -> None:
    """Sync the entries of a folder, and of all folders in it."""
    for path, _, _ in os.walk(folder):
        sync(Path(path))


def sync(folder: Path) -> None:
    """Sync the entries of a folder to the disk, which syncing its files does not do."""
    if os.name == "nt":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def not_written(error: Exception, folder: Path | str) -> CheckpointError | None:
    """Return the error for an OSError while `folder` was written; None for another exception."""
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


@contextmanager
def refusing_writes(folder: Path) -> Iterator[None]:
    """Turn an OSError of a `with` block into the `CheckpointError` of `not_written`."""
    try:
        yield
    except OSError as error:
        raise not_written(error, folder) or error from error
