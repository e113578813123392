"""A folder of checkpoints in a bucket of Google Cloud Storage or S3.

    ckpt-3/index.json           makes `ckpt-3` a checkpoint
    ckpt-3/1f0c9a2e/part-0/..   the files of one save; the index names the folder
    .ckpt.writer                the writer of these; see `bucket_lock`

A bucket has no renames, but the write of one object is atomic and durable. So each save writes its
files to a folder of its own, and then the index, which names the folder. A reader that has the
index of an earlier save finds its files missing once they are removed, and reads the new index. A
checkpoint is removed index first. A killed writer leaves a folder that no index names; the next
writer removes it.

The index is written on the condition that no other process wrote it since. Large arrays are in
several objects (`graphdist.train.index`), since a server limits the size of one.
"""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from graphdist.runtime.files.bucket_lock import ObjectLock, require_record_free, take_record
from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_index import INDEX, read_index
from graphdist.runtime.files.checkpoint_lock import check_free
from graphdist.runtime.files.checkpoint_storage import UnfinishedCheckpoint

_MARK = "kept"
_SAVE = re.compile("[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True)
class BucketFiles:
    """The files of a checkpoint in a bucket; `CheckpointFiles` explains the methods."""

    objects: BucketObjects
    name: str
    index: bytes = b""
    """The index as it was when the checkpoint was found, so that all is read from one save."""

    def _key(self, file: PurePosixPath) -> str:
        return f"{self.name}/{file}"

    @cached_property
    def _keys(self) -> frozenset[str]:
        """Return the keys of all files: those of a save are not changed."""
        return frozenset(self.objects.listed(f"{self.name}/"))

    def read_small(self, file: PurePosixPath, most: int) -> bytes:
        """Return the content of an object."""
        is_index = str(file) == INDEX and self.index
        content = self.index if is_index else self.objects.content(self._key(file))
        if len(content) > most:
            raise ValueError(f"it has {len(content):,} bytes, and may have {most:,}")
        return content

    def read_into(self, file: PurePosixPath, memory: memoryview) -> str:
        """Fill memory from an object."""
        content = self.objects.content(self._key(file))
        if len(content) != len(memory):
            raise ValueError(f"it has {len(content):,} bytes, its index says {len(memory):,}")
        memory[:] = content
        return f"{zlib.crc32(content):08x}"

    def first_wrong(self, files: Iterable[tuple[PurePosixPath, int | None]]) -> tuple[int, str]:
        """Return the position of the first missing object; sizes are compared by `read_into`."""
        for position, (file, _) in enumerate(files):
            if self._key(file) not in self._keys:
                return position, "it is not there"
        return -1, ""

    def write(self, file: PurePosixPath, content: bytes | memoryview) -> str:
        """Write an object, which is durable then."""
        self.objects.write(self._key(file), bytes(content))
        return f"{zlib.crc32(content):08x}"

    def remove(self, file: PurePosixPath) -> None:
        """Remove an object."""
        self.objects.write(self._key(file), None)

    def sync(self, folder: PurePosixPath) -> None:
        """Do nothing: objects are durable when they are written."""


@dataclass(frozen=True)
class BucketFolder:
    """A folder of checkpoints in a bucket; `CheckpointFolder` explains the methods."""

    objects: BucketObjects

    def __str__(self) -> str:
        return self.objects.url

    def path_of(self, name: str) -> str:
        """Return the address of a checkpoint."""
        return f"{self.objects.url}/{name}"

    def names(self) -> Iterator[str]:
        """Yield what stands before the first slash of a key."""
        yield from {key.partition("/")[0] for key in self.objects.listed() if "/" in key}

    def has(self, name: str) -> bool:
        """Return whether an object belongs to this name."""
        return any(True for _ in self.objects.listed(f"{name}/"))

    def find(self, name: str) -> BucketFiles | None:
        """Return the files of a checkpoint, which has an index."""
        index = self.objects.read(f"{name}/{INDEX}").content
        return None if index is None else BucketFiles(self.objects, name, index)

    def damage_of(self, name: str) -> str:
        """Return "": what has no index is being written, or was left by a killed writer."""
        return ""

    def obstacle_to_writing(self) -> str:
        """Return why an object cannot be read, which a writer has to do, too."""
        try:
            self.objects.read(_MARK)
        except CheckpointError as error:
            return error.what
        return ""

    def is_marked(self, name: str) -> bool:
        """Return whether a checkpoint has the mark."""
        return self.objects.read(f"{name}/{_MARK}").content is not None

    # For the writer.

    def prepare(self, name: str) -> None:
        """Check that objects of this name are those of a checkpoint."""
        keys = [key.split("/") for key in self.objects.listed(f"{name}/")]
        is_checkpoint = [name, INDEX] in keys
        if not is_checkpoint and any(not _SAVE.fullmatch(key[1]) for key in keys):
            raise CheckpointError(
                f"{name!r} exists and is no checkpoint, but a checkpoint would replace it",
                hint=f"give a path in it, such as {name}/checkpoint, or one that does not exist",
            )

    def begin(self, name: str) -> str:
        """Return a unique name for the folder of a save."""
        return secrets.token_hex(4)

    def unfinished(self, name: str, token: str) -> UnfinishedCheckpoint:
        """Return the checkpoint with a folder that `begin` named."""
        return UnfinishedCheckpoint(token, BucketFiles(self.objects, name), token)

    def give_name(self, name: str, token: str, index: bytes, confirm: Callable[[], None]) -> None:
        """Write the index, and remove the files of the save before."""
        key = f"{name}/{INDEX}"
        before = self.objects.read(key)
        confirm()
        if self.objects.write(key, index, before.generation) is None:
            raise CheckpointError(
                f"checkpoint {self.path_of(name)} was written by another process meanwhile",
                hint="one program writes the checkpoints of a name in a folder",
            )
        self._remove_others(name, token)

    def _remove_others(self, name: str, token: str) -> None:
        """Remove all but the index and the files of one save."""
        keys = [key.split("/") for key in self.objects.listed(f"{name}/")]
        for other in {key[1] for key in keys} - {INDEX, token}:
            if other == _MARK:
                self.objects.write(f"{name}/{_MARK}", None)
            else:
                self.objects.remove_all(f"{name}/{other}/")

    def abandon(self, name: str, token: str) -> None:
        """Remove the files of a save."""
        self.objects.remove_all(f"{name}/{token}/")

    def remove(self, name: str) -> None:
        """Remove the index of a checkpoint, and its files then."""
        self.objects.write(f"{name}/{INDEX}", None)
        self.objects.remove_all(f"{name}/")

    def remove_remains(self, stem: str) -> None:
        """Remove the folders of saves that no index names."""
        remains = re.compile(rf"{re.escape(stem)}(-\d+)?", re.ASCII | re.DOTALL)
        saves: dict[str, set[str]] = {}
        for key in self.objects.listed(stem):
            name, *rest = key.split("/")
            if remains.fullmatch(name) and len(rest) > 1 and _SAVE.fullmatch(rest[0]):
                saves.setdefault(name, set()).add(rest[0])
        for name, tokens in saves.items():
            try:
                files = self.find(name)
                kept = set() if files is None else {read_index(files).folder}
                if tokens - kept:
                    check_free(self, name)
            except CheckpointError:  # it is damaged, or another process is writing it
                continue
            for token in tokens - kept:
                self.objects.remove_all(f"{name}/{token}/")

    def mark(self, name: str) -> None:
        """Write the mark."""
        self.objects.write(f"{name}/{_MARK}", b"")

    def lock(self, stem: str) -> ObjectLock:
        """Take the record of a name."""
        return take_record(self.objects, stem)

    def lock_key(self, stem: str) -> tuple[str, str]:
        """Return the address and name of a record."""
        return self.objects.url, stem

    def require_free(self, stem: str) -> None:
        """Check the record of a name."""
        require_record_free(self.objects, stem)
