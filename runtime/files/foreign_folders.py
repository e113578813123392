"""A folder of files that other programs write and read, on a disk or in a bucket.

On a disk links are followed, because the files that Hugging Face downloads are links. A file is not
mapped into memory, which would crash the process if the file were cut short meanwhile. An export
writes a folder under another name, and renames it at the end.

In a bucket a folder is the objects whose keys have a common prefix. A request takes some 50 ms, so
parts are read in large blocks, several at a time. A bucket has no renames. So an export writes the
objects in their places: the object `commit_success.txt`, which orbax asks for in buckets, comes
last and makes the folder complete. Until then an object marks the folder as incomplete.

Reading raises `FileNotFoundError` or another OSError for a file that is missing, `ValueError` for a
file that is too short or too long, and `CheckpointError` if a bucket does not answer. An export to
the folder `name` is written in the folder `unfinished(name)`, between `begin(name)` and either
`finish(name)` or `abandon(name)`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeAlias  # Any: specifications of tensorstore

from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.checkpoint_arrays import on_threads
from graphdist.runtime.files.checkpoint_bucket import BucketFolder
from graphdist.runtime.files.checkpoint_disk import DiskFiles, DiskFolder
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    UnreadableCheckpointError,
    erase,
    sync,
    sync_folders,
)
from graphdist.runtime.files.checkpoint_storage import CheckpointFolder
from graphdist.runtime.files.regular_files import open_regular

Fill: TypeAlias = Callable[[int, memoryview], None]
"""Fills memory with the bytes of a file from a position on."""
_COMMIT, _INCOMPLETE = "commit_success.txt", ".graphdist-export"
_PARTIAL = ".orbax-checkpoint-tmp-graphdist"
"""Begins like the suffix that orbax gives its own incomplete folders, which orbax passes over."""
_AT_ONCE, _BYTES_OF_REQUEST = 8, 2**23


@dataclass(frozen=True)
class FolderOnDisk:
    """A folder on a disk, of files by their paths in it."""

    folder: Path
    least_run: ClassVar[int] = 2**12
    """From this size in bytes on, consecutive bytes of a file are read by themselves."""
    block: ClassVar[int] = 2**24
    """How many bytes are read at once where a part of an array is scattered over a file."""
    writes_at_once: ClassVar[int] = 1
    """How many files a worker writes at a time."""

    def within(self, name: str) -> FolderOnDisk:
        """Return a folder in this folder."""
        return FolderOnDisk(self.folder / name)

    def path_of(self, file: str) -> str:
        """Return the path of a file."""
        return str(self.folder / file)

    def exists(self) -> bool:
        """Return whether there is such a folder."""
        return self.folder.is_dir()

    def has(self, file: str) -> bool:
        """Return whether a file, or a link, has this path."""
        return os.path.lexists(self.folder / file)

    def names(self, pattern: str) -> list[str]:
        """Return the paths of the files that match a pattern."""
        return sorted(
            each.relative_to(self.folder).as_posix() for each in self.folder.glob(pattern)
        )

    def content(self, file: str, most: int) -> bytes:
        """Return the content of a regular file, whose size is compared first."""
        with io.FileIO(open_regular(self.folder / file, follows_links=True)) as opened:
            if (size := os.fstat(opened.fileno()).st_size) > most:
                raise ValueError(f"it has {size:,} bytes, and may have {most:,}")
            return opened.read()

    @contextmanager
    def opened(self, file: str) -> Iterator[Fill]:
        """Open a regular file, and return a function that reads parts of it."""

        def fill(position: int, memory: memoryview) -> None:
            opened.seek(position)
            while memory:
                count = opened.readinto(memory[: 2**30])
                if not count:
                    size, end = os.fstat(opened.fileno()).st_size, opened.tell() + len(memory)
                    raise ValueError(f"it is cut short: it has {size:,} bytes, of {end:,}")
                memory = memory[count:]

        with io.FileIO(open_regular(self.folder / file, follows_links=True)) as opened:
            yield fill

    def require_size(self, file: str, size: int) -> None:
        """Compare the size of a file."""
        actual = (self.folder / file).stat().st_size
        if actual != size:
            short = ": it is cut short, or was not written to its end" if actual < size else ""
            raise ValueError(f"it has {actual:,} bytes, its header says {size:,}{short}")

    def kvstore(self, name: str) -> dict[str, Any]:
        """Return the path of a folder."""
        return {"driver": "file", "path": f"{self.folder / name}/"}

    def lockable(self) -> CheckpointFolder:
        """Make the folder, and return it as one in which a writer takes a lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return DiskFolder(self.folder)

    def write(self, file: str, content: bytes | bytearray | memoryview) -> None:
        """Write a new file and sync it, in folders that are made for it."""
        DiskFiles(self.folder).write(PurePosixPath(file), memoryview(content))

    def remove(self, name: str) -> None:
        """Remove a file, or a folder and its content."""
        erase(self.folder / name)

    def unfinished(self, name: str) -> FolderOnDisk:
        """Return the folder under another name."""
        return self.within(name + _PARTIAL)

    def is_taken(self, name: str) -> bool:
        """Return whether a file, folder or link has the name."""
        return self.has(name)

    def begin(self, name: str) -> None:
        """Make the folder that has the other name."""
        self.unfinished(name).folder.mkdir()

    def finish(self, name: str) -> None:
        """Sync the folder, and give it its name."""
        unfinished = self.unfinished(name).folder
        sync_folders(unfinished)
        unfinished.rename(self.folder / name)
        sync(self.folder)

    def abandon(self, name: str) -> None:
        """Remove the folder that has the other name."""
        self.remove(name + _PARTIAL)


@dataclass(frozen=True)
class FolderInBucket:
    """A folder in a bucket; the methods are those of `FolderOnDisk`."""

    objects: BucketObjects
    least_run: ClassVar[int] = 2**20
    block: ClassVar[int] = 2**26
    writes_at_once: ClassVar[int] = _AT_ONCE

    def within(self, name: str) -> FolderInBucket:
        """Return a folder in this folder."""
        url = f"{self.objects.url}/{name}".rstrip("/")
        return FolderInBucket(BucketObjects(url, self.objects.server))

    def path_of(self, file: str) -> str:
        """Return the address of an object."""
        return f"{self.objects.url}/{file}"

    @cached_property
    def _keys(self) -> list[str]:
        """Return the keys of all objects, as they were at the first call."""
        return sorted(self.objects.listed())

    def exists(self) -> bool:
        """Return whether an object is in the folder."""
        return bool(self._keys)

    def has(self, file: str) -> bool:
        """Return whether an object exists."""
        return self.objects.read(file, slice(0, 0)).content is not None

    def names(self, pattern: str) -> list[str]:
        """Return the keys of the objects that match a pattern."""
        depth = pattern.count("/")
        return [k for k in self._keys if k.count("/") == depth and fnmatchcase(k, pattern)]

    def content(self, file: str, most: int) -> bytes:
        """Return the content of an object."""
        content = self.objects.content(file)
        if len(content) > most:
            raise ValueError(f"it has {len(content):,} bytes, and may have {most:,}")
        return content

    @contextmanager
    def opened(self, file: str) -> Iterator[Fill]:
        """Return a function that reads parts of an object, by several requests at a time."""

        def fill(position: int, memory: memoryview) -> None:
            def read(start: int) -> None:
                stop = min(start + _BYTES_OF_REQUEST, len(memory))
                part = slice(position + start, position + stop)
                memory[start:stop] = self.objects.content(file, part)

            for _ in on_threads(read, range(0, len(memory), _BYTES_OF_REQUEST), _AT_ONCE):
                pass

        yield fill

    def require_size(self, file: str, size: int) -> None:
        """Read the last byte, and the byte after it, which must not exist."""
        self.objects.content(file, slice(size - 1, size))
        try:
            self.objects.content(file, slice(size, size + 1))
        except ValueError:
            return
        raise ValueError(f"it has more bytes than the {size:,} that its header says")

    def kvstore(self, name: str) -> dict[str, Any]:
        """Return the address of a folder."""
        return self.within(name).objects.spec()

    def lockable(self) -> CheckpointFolder:
        """Return the folder as one in which a writer takes a lock."""
        return BucketFolder(self.objects)

    def write(self, file: str, content: bytes | bytearray | memoryview) -> None:
        """Write an object, which is durable then."""

        def write(content: bytes | bytearray) -> None:
            self.objects.write(file, content)

        given = bytes(content) if isinstance(content, memoryview) else content
        # An interrupt waits for the thread. Else the object could come after its removal.
        for _ in on_threads(write, [given], 1):
            pass

    def remove(self, name: str) -> None:
        """Remove an object, and the objects below its name."""
        self.objects.write(name, None)
        self.objects.remove_all(f"{name}/")

    def unfinished(self, name: str) -> FolderInBucket:
        """Return the folder itself."""
        return self.within(name)

    def is_taken(self, name: str) -> bool:
        """Return whether there are objects without the mark of an unfinished export."""
        folder = self.within(name)
        return folder.exists() and (not folder.has(_INCOMPLETE) or folder.has(_COMMIT))

    def begin(self, name: str) -> None:
        """Mark the folder as incomplete."""
        self.within(name).write(_INCOMPLETE, b"")

    def finish(self, name: str) -> None:
        """Write the object that makes the folder complete."""
        self.within(name).write(_COMMIT, b"written by graphdist\n")
        self.within(name).remove(_INCOMPLETE)

    def abandon(self, name: str) -> None:
        """Remove all objects of the folder: before the export there were none."""
        self.remove(name)


ForeignFolder: TypeAlias = FolderOnDisk | FolderInBucket
"""A folder of files that other programs write and read."""


def foreign(folder: CheckpointFolder) -> ForeignFolder:
    """Return a folder, which may have checkpoints too, as a folder of other programs."""
    if isinstance(folder, BucketFolder):
        return FolderInBucket(folder.objects)
    assert isinstance(folder, DiskFolder)
    return FolderOnDisk(folder.folder)


@contextmanager
def refusing_damage(called: str) -> Iterator[None]:
    """Raise `UnreadableCheckpointError` for a file that is missing, damaged, or too short."""
    try:
        yield
    except CheckpointError:  # the file was refused, or the bucket does not answer
        raise
    except (OSError, ValueError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise unreadable(called, what) from error


def unreadable(called: str, what: str, hint: str = "") -> UnreadableCheckpointError:
    """Return the error for files that the user calls `called`."""
    return UnreadableCheckpointError(f"{called} cannot be read: {what}", hint=hint)


def json_object(text: bytes | bytearray, what: str) -> dict[str, Any]:
    """Return an object of JSON whose keys differ; raises `ValueError` for other text.

    `what` is the subject of the error.
    """

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a name is in it twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=checked)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{what} is no object of JSON")
    return found
