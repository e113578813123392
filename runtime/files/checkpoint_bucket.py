"""A folder of checkpoints in a bucket of Google Cloud Storage or S3.

    ckpt-3/index.json           makes `ckpt-3` a checkpoint
    ckpt-3/1f0c9a2e/part-0/..   the files of one save; the index names the folder
    .ckpt.writer                the record of the writer

A bucket has no renames, but the write of one object is atomic and durable. So each save writes its
files to a folder of its own, and then the index, which names the folder. A reader that has the
index of an earlier save finds its files missing once they are removed, and reads the new index. A
checkpoint is removed index first. A killed writer leaves a folder that no index names; the next
writer removes it.

The index is written on the condition that no other process wrote it since. A bucket has no locks,
so the record of a writer is created on the condition that there is none, and replaced, renewed and
removed on the condition that it is still the one that was read. Of two processes that take it at
once, the server refuses one. On one host the holder is looked up by its process id and start time;
between hosts heartbeats decide (`checkpoint_lock`).

Large arrays are in
several objects (`graphdist.train.index`), since a server limits the size of one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from graphdist.runtime.files.bucket_objects import BucketObjects, StoredObject
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_index import INDEX, read_index
from graphdist.runtime.files.checkpoint_lock import (
    SECONDS_BETWEEN_SIGNS,
    check_free,
    require_silence,
)
from graphdist.runtime.files.checkpoint_owner import OwnerProcess

_MARK = "kept"
_SAVE = re.compile("[0-9a-f]{8}", re.ASCII)


@dataclass(frozen=True)
class BucketFiles:
    """The files of a checkpoint in a bucket; `CheckpointFiles` explains the methods."""

    objects: BucketObjects
    name: str
    index: bytes = b""
    """The index as it was when the checkpoint was found, so that all files are read from one
    save."""
    parts: str = ""

    def _key(self, file: PurePosixPath) -> str:
        return f"{self.name}/{file}"

    @cached_property
    def _keys(self) -> frozenset[str]:
        """Return the keys of all files, which do not change after a save."""
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
        """Write an object; it is durable when the call returns."""
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
        """Yield the parts of keys before the first slash."""
        yield from {key.partition("/")[0] for key in self.objects.listed() if "/" in key}

    def has(self, name: str) -> bool:
        """Return whether a key starts with this name and a slash."""
        return any(True for _ in self.objects.listed(f"{name}/"))

    def find(self, name: str) -> BucketFiles | None:
        """Return the files of a checkpoint; None if it has no index."""
        index = self.objects.read(f"{name}/{INDEX}").content
        return None if index is None else BucketFiles(self.objects, name, index)

    def damage_of(self, name: str) -> str:
        """Return "": files without an index are being written, or were left by a killed writer."""
        return ""

    def obstacle_to_writing(self) -> str:
        """Return why an object cannot be read, since a writer has to read objects, too."""
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
        """Raise `CheckpointError` if objects of this name belong to no checkpoint."""
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

    def unfinished(self, name: str, token: str) -> BucketFiles:
        """Return the files of a checkpoint whose parts are in the folder that `begin` named."""
        return BucketFiles(self.objects, name, parts=token)

    def give_name(self, name: str, token: str, index: bytes, confirm: Callable[[], None]) -> None:
        """Write the index, and then remove the files of the save before."""
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
        """Remove all objects of a checkpoint but the index and the files of one save."""
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
        """Remove the index of a checkpoint, and then its files."""
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
        """Write the record of a name; raises `CheckpointError` if another process holds it."""
        owner = OwnerProcess.this_process()
        while True:
            found = self._free_record(stem)
            generation = self.objects.write(_record(stem), owner.record(1), found.generation)
            if generation is not None:
                return ObjectLock(self, stem, owner, generation)
            # Another process wrote it first. Or there is no such bucket, which only a list says.
            self.has(stem)

    def lock_key(self, stem: str) -> tuple[str, str]:
        """Return the address and name of a record."""
        return self.objects.url, stem

    def require_free(self, stem: str) -> None:
        """Raise `CheckpointError` if another process holds the record of a name."""
        self._free_record(stem)

    def _free_record(self, stem: str) -> StoredObject:
        """Return the record of a name once the process that it names has ended.

        Raises `CheckpointError` if that process lives. The record has no content if there is none.
        """

        def read() -> StoredObject:
            return self.objects.read(_record(stem))

        found = read()
        require_silence(found.content, lambda: read().content, False, stem, self)
        return found


def _record(stem: str) -> str:
    return f".{stem}.writer"


class ObjectLock:
    """The record of a writer, held by this process; `HeldLock` explains the methods."""

    def __init__(
        self, folder: BucketFolder, stem: str, owner: OwnerProcess, generation: bytes
    ) -> None:
        """Hold the record of a name, which `owner` has just written in a generation."""
        self.key, self.users, self.process = folder.lock_key(stem), 0, owner.process
        self._objects, self._record, self._owner = folder.objects, _record(stem), owner
        self._generation: bytes | None = generation
        """The generation of the record; None once another process has written it."""
        self._signs = 1

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken the lock."""
        if self.process == os.getpid():
            self._signs += 1
            self._replace(self._owner.record(self._signs))

    def is_in_place(self) -> bool:
        """Return whether the record exists and belongs to this process."""
        if self.process != os.getpid():
            return False
        return OwnerProcess.of(self._objects.read(self._record).content) == self._owner

    def remove(self) -> None:
        """Remove the record if it is in place."""
        self._replace(None)

    def _replace(self, content: bytes | None) -> None:
        """Write the record, or remove it, if it is still of this process; ignore an outage."""
        with contextlib.suppress(CheckpointError):  # the next heartbeat may come through
            while (before := self._generation) is not None:
                written = self._objects.write(
                    self._record, content, before, seconds=SECONDS_BETWEEN_SIGNS
                )
                if written is not None:
                    self._generation = written
                    return
                # A heartbeat whose answer did not come may have been written all the same.
                found = self._objects.read(self._record)
                is_ours = OwnerProcess.of(found.content) == self._owner
                self._generation = found.generation if is_ours else None

    def close(self) -> None:
        """Do nothing: a record holds nothing of this process."""
