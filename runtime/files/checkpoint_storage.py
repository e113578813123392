"""What a folder of checkpoints offers, on a disk or in a bucket.

`checkpoint_disk.py` and `checkpoint_bucket.py` have the two kinds. A folder gives a checkpoint its
name in one step, after all its files are durable: a rename on a disk, the write of the index in a
bucket. So a process that is killed leaves a checkpoint complete, or without its name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Protocol


class CheckpointFiles(Protocol):
    """The files of one checkpoint, by their paths relative to the checkpoint."""

    @property
    def name(self) -> str:
        """Return the name of the checkpoint, or the name that it has while it is replaced."""

    @property
    def parts(self) -> str:
        """Return the folder that workers write the parts to; "" for the checkpoint's own."""

    def read_small(self, file: PurePosixPath, most: int) -> bytes:
        """Return the content of a file.

        Raises OSError if the file is missing, and `ValueError` if it is larger than `most` bytes.
        """

    def read_into(self, file: PurePosixPath, memory: memoryview) -> str:
        """Fill memory from a file; return the CRC-32 of the bytes.

        Raises OSError if the file is missing, and `ValueError` if it has another size than the
        memory.
        """

    def first_wrong(self, files: Iterable[tuple[PurePosixPath, int | None]]) -> tuple[int, str]:
        """Return the position of the first file that is wrong, and what is wrong; else -1 and "".

        Each file comes with its size in bytes, or None for any size.
        """

    def write(self, file: PurePosixPath, content: bytes | memoryview) -> str:
        """Write a new file durably; return the CRC-32 of its content."""

    def remove(self, file: PurePosixPath) -> None:
        """Remove a file."""

    def sync(self, folder: PurePosixPath) -> None:
        """Make the names of the files in a folder durable."""


class HeldLock(Protocol):
    """The record of a writer in a folder of checkpoints, held by this process."""

    users: int
    """The number of writers of this process that share the lock."""
    process: int
    """The id of the process that took the lock; a forked process has another id."""

    @property
    def key(self) -> Hashable:
        """Return the identity of the record."""

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken the lock."""

    def is_in_place(self) -> bool:
        """Return whether the record exists and belongs to this process."""

    def remove(self) -> None:
        """Remove the record if it is in place."""

    def close(self) -> None:
        """Release what this process holds for the record."""


class CheckpointFolder(Protocol):
    """A folder of checkpoints. Two objects are equal if they stand for the same folder."""

    def path_of(self, name: str) -> str:
        """Return the path of a checkpoint, as a user writes it."""

    def names(self) -> Iterator[str]:
        """Yield the names of all entries that may be checkpoints; none if there is no folder.

        Raises `CheckpointError` if the folder cannot be read.
        """

    def has(self, name: str) -> bool:
        """Return whether an entry with this name exists."""

    def find(self, name: str) -> CheckpointFiles | None:
        """Return the files of a checkpoint; None if there is no such checkpoint."""

    def damage_of(self, name: str) -> str:
        """Return why an entry is damaged, as far as that shows without its index; else ""."""

    def obstacle_to_writing(self) -> str:
        """Return why no checkpoint can be written; "" if it seems possible."""

    def is_marked(self, name: str) -> bool:
        """Return whether a checkpoint is marked as one to keep."""

    # For the writer.

    def prepare(self, name: str) -> None:
        """Create the folder; raise `CheckpointError` if it cannot have a checkpoint of this name.

        That is so if another kind of file has the name, since the file would be lost.
        """

    def begin(self, name: str) -> str:
        """Begin a checkpoint; return a token, which distinguishes it from other saves of its name.

        The workers exchange the token.
        """

    def unfinished(self, name: str, token: str) -> CheckpointFiles:
        """Return the files of the unfinished checkpoint with a token."""

    def give_name(self, name: str, token: str, index: bytes, confirm: Callable[[], None]) -> None:
        """Add the index to an unfinished checkpoint, call `confirm`, and give it its name.

        A checkpoint that has the name is replaced.
        """

    def abandon(self, name: str, token: str) -> None:
        """Remove an unfinished checkpoint, as far as that is possible."""

    def remove(self, name: str) -> None:
        """Remove a checkpoint, so that no reader sees it without some of its files."""

    def remove_remains(self, stem: str) -> None:
        """Remove what killed writers of `<stem>` and `<stem>-<number>` have left.

        What another process is writing is kept.
        """

    def mark(self, name: str) -> None:
        """Mark a checkpoint as one to keep."""

    def lock(self, stem: str) -> HeldLock:
        """Take the lock of a name; raises `CheckpointError` if another process holds it."""

    def lock_key(self, stem: str) -> Hashable:
        """Return the `key` of the lock of a name."""

    def require_free(self, stem: str) -> None:
        """Raise `CheckpointError` if another process holds the lock of a name."""
