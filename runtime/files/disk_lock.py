"""The record of a writer as a file on a disk, locked by the kernel where the disk has locks.

* The file is locked (`flock`). The kernel releases the lock when the process ends in any way.
  Forked processes and started programs do not inherit the lock.
* A network file system may have no such locks, or locks that other hosts do not see. Between hosts
  heartbeats decide (`checkpoint_lock`). On one host without locks, the holder is looked up by its
  process id and start time, since process ids are reused.

Only a regular file with one name is written to: links are not followed, and hard links and pipes
are refused.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
from functools import partial
from pathlib import Path

from graphdist.runtime.files.checkpoint_files import CheckpointError, refusing_writes
from graphdist.runtime.files.checkpoint_lock import require_silence, writer_refused
from graphdist.runtime.files.checkpoint_owner import LENGTH, OwnerProcess
from graphdist.runtime.files.regular_files import NotAFileError, open_regular

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]


def file_of(folder: Path, stem: str) -> Path:
    """Return the writer's file of a name."""
    return Path(os.path.realpath(folder)) / f".{stem}.writer"


class FileLock:
    """A writer's file that this process holds; `HeldLock` explains the methods."""

    def __init__(self, file: Path, descriptor: int) -> None:
        """Write a record of this process into an open, locked file."""
        self.key, self.users = file, 0
        self._descriptor = descriptor
        self._owner = OwnerProcess.this_process()
        self.process = self._owner.process
        self._signs = 0
        self._write()

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken the lock."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """Write the record, and close the file, since a network file system sends it only then."""
        self._signs += 1
        descriptor = _opened(self.key, os.O_WRONLY)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor)):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.key))
            written = os.write(descriptor, self._owner.record(self._signs))
            os.ftruncate(descriptor, written)  # other content may have been longer than a record
        finally:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Return whether the file exists and belongs to this process."""
        if self.process != os.getpid() or not _is_at(self._descriptor, self.key):
            return False
        return _owner_in(self.key) == self._owner

    def remove(self) -> None:
        """Remove the file if it is in place."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self.key.unlink()

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._descriptor)


def take_file(file: Path, stem: str) -> FileLock:
    """Open and lock the writer's file of the checkpoints named `stem`.

    Raises `CheckpointError` if another process holds the file, or if it cannot be written.
    """
    with refusing_writes(file.parent):
        while True:
            descriptor = _opened(file, os.O_RDWR | os.O_CREAT)
            try:
                _require_free(descriptor, file, stem)
                if _is_at(descriptor, file):
                    return FileLock(file, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its holder has removed the locked file meanwhile


def require_file_free(file: Path, stem: str) -> None:
    """Raise `CheckpointError` if another process holds the writer's file of a name."""
    with refusing_writes(file.parent), contextlib.suppress(FileNotFoundError):
        descriptor = _opened(file, os.O_RDONLY)
        try:
            _require_free(descriptor, file, stem, is_shared=True)
        finally:
            os.close(descriptor)


def _require_free(descriptor: int, file: Path, stem: str, is_shared: bool = False) -> None:
    """Lock an open file of a name, and wait until the process that its record names has ended.

    Raises `CheckpointError` if that process lives.
    """
    try:
        has_lock = _has_locked(descriptor, is_shared)
    except BlockingIOError:
        raise _refused(stem, file) from None
    require_silence(_content(file), partial(_content, file), has_lock, stem, file.parent)


def _opened(file: Path, flags: int) -> int:
    """Return the descriptor of a writer's file; raise `NotAFileError` if it has a second name."""
    descriptor = open_regular(file, flags)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise NotAFileError(errno.EMLINK, "it is a hard link", str(file))
    return descriptor


def _has_locked(descriptor: int, is_shared: bool = False) -> bool:
    """Lock a file and return True; return False if the file system has no locks.

    Raises `BlockingIOError` if another process has locked it, after three tries, since
    `require_file_free` of another process locks a file briefly.
    """
    if fcntl is None:
        return False
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    for tries_left in (2, 1, 0):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(0.01)
        except OSError:
            return False
    return True


def _refused(stem: str, file: Path) -> CheckpointError:
    """Return the error for a locked file, with the process in its record."""
    for _ in range(20):
        if (owner := _owner_in(file)) is not None:
            break
        time.sleep(0.01)  # the holder has locked the file, but not written its record yet
    return writer_refused(stem, file.parent, owner)


def _owner_in(file: Path) -> OwnerProcess | None:
    return OwnerProcess.of(_content(file))


def _content(file: Path) -> bytes:
    """Return the content of a writer's file, at most 4 records long; b"" if there is no file."""
    try:
        with io.FileIO(open_regular(file)) as opened:
            return opened.read(4 * LENGTH)
    except OSError:
        return b""


def _is_at(descriptor: int, file: Path) -> bool:
    """Return whether an open file still has the path `file`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(file))
    except OSError:
        return False
