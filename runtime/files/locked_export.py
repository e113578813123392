"""An export of arrays to files of another format, by one process at a time under each name.

All workers write together: the first begins, each writes its shards, then each makes durable what
it has written, then the first completes the export. The first holds the lock of the name meanwhile
(`checkpoint_lock`). So it may remove what an interrupted export has left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_lock import CheckpointWriter
from graphdist.runtime.files.foreign_arrays import Array
from graphdist.runtime.files.foreign_folders import ForeignFolder
from graphdist.runtime.spans import Part


class LockedExport(ABC):
    """Files of one format, which all workers write together."""

    def __init__(self, folder: ForeignFolder, name: str) -> None:
        """Take the folder that the files, or a folder of them, are made in; nothing is written."""
        self._folder, self._name = folder, name
        self._lock: CheckpointWriter | None = None
        self._is_unfinished = False

    def begin(self) -> None:
        """Take the lock and make the files under other names, on the first worker.

        Raises `CheckpointError` where files exist, or while another process exports to the name.
        """
        self._lock = CheckpointWriter(self._folder.lockable(), self._name)
        self._lock.take()
        self._refuse_existing()
        self._is_unfinished = True
        self._begin_files()

    @abstractmethod
    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array."""

    @abstractmethod
    def sync(self) -> None:
        """Make durable what this worker has written, once all workers have written their parts."""

    def finish(self) -> None:
        """Complete the export, on the first worker."""
        if self._lock is not None:
            self._lock.confirm()
        self._finish_files()
        self._is_unfinished = False

    def close(self) -> None:
        """Release the lock, on the first worker; remove the files if they are not complete."""
        if self._lock is not None:
            if self._is_unfinished and self._lock.is_held:
                self._remove_files()
            self._lock.release()

    @abstractmethod
    def _refuse_existing(self) -> None:
        """Remove what an interrupted export has left; raise `CheckpointError` for other files."""

    def refused(self, name: str) -> CheckpointError:
        """Return the error for a name that is in use."""
        return CheckpointError(
            f"{self._folder.path_of(name)} exists already, and is not replaced",
            hint="remove it, or give another path",
        )

    @abstractmethod
    def _begin_files(self) -> None: ...

    @abstractmethod
    def _finish_files(self) -> None: ...

    @abstractmethod
    def _remove_files(self) -> None: ...
