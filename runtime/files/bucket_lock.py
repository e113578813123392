"""The record of a writer as an object of a bucket, written on conditions.

A bucket has no locks. The record is created on the condition that there is none, and replaced,
renewed and removed on the condition that it is still the one that was read. Of two processes that
take it at once, the server refuses one. On one host the holder is looked up by its process id and
start time; between hosts heartbeats decide (`checkpoint_lock`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Hashable

from graphdist.runtime.files.bucket_objects import BucketObjects
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_lock import SECONDS_BETWEEN_SIGNS, require_silence
from graphdist.runtime.files.checkpoint_owner import OwnerProcess


def record_key(stem: str) -> str:
    """Return the key of the record of a name."""
    return f".{stem}.writer"


class ObjectLock:
    """A writer's object that this process holds; `HeldLock` explains the methods."""

    def __init__(
        self, objects: BucketObjects, stem: str, owner: OwnerProcess, generation: bytes
    ) -> None:
        """Hold a record that was just written."""
        self.key: Hashable = (objects.url, stem)
        self.users, self.process = 0, owner.process
        self._objects, self._record, self._owner = objects, record_key(stem), owner
        self._generation: bytes | None = generation
        """The generation of the record; None once another process has written it."""
        self._signs = 1

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken the lock."""
        if self._generation is None or self.process != os.getpid():
            return
        self._signs += 1
        with contextlib.suppress(CheckpointError):  # the next one may come through
            self._generation = self._objects.write(
                self._record,
                self._owner.record(self._signs),
                self._generation,
                seconds=SECONDS_BETWEEN_SIGNS,
            )

    def is_in_place(self) -> bool:
        """Return whether the record exists and belongs to this process."""
        if self.process != os.getpid():
            return False
        return OwnerProcess.of(self._objects.read(self._record).content or b"") == self._owner

    def remove(self) -> None:
        """Remove the record if it is in place."""
        if self._generation is not None:
            with contextlib.suppress(CheckpointError):
                self._objects.write(
                    self._record, None, self._generation, seconds=SECONDS_BETWEEN_SIGNS
                )

    def close(self) -> None:
        """Do nothing: a record holds nothing of this process."""


def take_record(objects: BucketObjects, stem: str) -> ObjectLock:
    """Write the record of the checkpoints named `stem`.

    Raises `CheckpointError` if another process holds it.
    """
    owner = OwnerProcess.this_process()
    while True:
        found = objects.read(record_key(stem))
        _require_silence(objects, stem, found.content)
        generation = objects.write(record_key(stem), owner.record(1), found.generation)
        if generation is not None:  # else another process wrote it first
            return ObjectLock(objects, stem, owner, generation)


def require_record_free(objects: BucketObjects, stem: str) -> None:
    """Raise `CheckpointError` if another process holds the record of a name."""
    _require_silence(objects, stem, objects.read(record_key(stem)).content)


def _require_silence(objects: BucketObjects, stem: str, content: bytes | None) -> None:
    owner = OwnerProcess.of(content or b"")
    if owner is not None and not owner.is_this_process():  # this one was interrupted at a request
        read = lambda: objects.read(record_key(stem)).content or b""  # noqa: E731
        require_silence(owner, False, read, stem, objects.url)
