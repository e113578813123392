"""The lock on the checkpoints of a name in a folder: one process at a time may write them.

Two processes that save under one name would remove each other's unfinished checkpoints. So a
process that saves `ckpt-1`, `ckpt-2`, .. holds the record `.ckpt.writer` in the folder, and a
process that writes `best` holds `.best.writer` while it writes. The record names its holder. A
process may write `ckpt-2` only if no other process holds `.ckpt.writer` or `.ckpt-2.writer`. Each
process first takes its own record and then checks the other one, so that at least one of two is
refused. `disk_lock` and `checkpoint_bucket` take a record.

The holder writes a heartbeat into the record every 10 seconds. A process that finds a holder on
another host watches the record for 60 seconds: after a heartbeat it is refused, without one it
takes the lock. Clocks are not compared.

A process that was stopped for more than 60 seconds may have lost the record. So it checks that the
record is still its own before it gives a checkpoint its name.

Within a process all writers of a name share the lock: checkpoints are written one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Hashable

from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.checkpoint_owner import OwnerProcess
from graphdist.runtime.files.checkpoint_storage import CheckpointFolder, HeldLock

_log = logging.getLogger("graphdist")

SECONDS_BETWEEN_SIGNS = 10.0
SECONDS_OF_SILENCE = 60.0


def stem_of(name: str) -> str:
    """Return the name of a checkpoint without its number.

    >>> stem_of("ckpt-12"), stem_of("best")
    ('ckpt', 'best')
    """
    return re.sub(r"(?<=.)-\d+\Z", "", name, flags=re.ASCII | re.DOTALL)


class CheckpointWriter:
    """The lock on the checkpoints of a name; garbage collection of the object releases it."""

    def __init__(self, folder: CheckpointFolder, stem: str) -> None:
        """Start without the lock."""
        self._folder, self.stem = folder, stem
        self._held: HeldLock | None = None
        self._letting_go: weakref.finalize[..., CheckpointWriter] | None = None

    def take_for(self, name: str) -> None:
        """Create the folder, and become the writer of a checkpoint.

        Raises `CheckpointError` if another process writes the checkpoint, or the folder cannot have
        it.
        """
        self._folder.prepare(name)
        was_writer = self._held is not None
        self.take()
        try:
            for other in {name, stem_of(name)} - {self.stem}:
                check_free(self._folder, other)
        except CheckpointError:
            if not was_writer:
                self.release()
            raise

    def take(self) -> None:
        """Become the writer, in a folder that exists; do nothing if this object is the writer.

        Raises `CheckpointError`, which names the holder, if another process is the writer.
        """
        if self.is_held:
            return
        self.release()
        self._held = _lock_of(self._folder, self.stem)
        self._letting_go = weakref.finalize(self, _let_go, self._held)

    def confirm(self) -> None:
        """Raise `CheckpointError` if another process has taken the lock."""
        if not self.is_held:
            raise CheckpointError(
                f"checkpoints {self.stem!r} of {self._folder} are no longer this process's: it "
                f"wrote no heartbeat for {SECONDS_OF_SILENCE:g} s, or the folder was removed",
                hint="start the program again from the last checkpoint",
            )

    @property
    def is_held(self) -> bool:
        """Return whether this process still holds the lock."""
        return self._held is not None and self._held.is_in_place()

    def release(self) -> None:
        """Release the lock, unless the finalizer has released it at Python's exit."""
        if self._letting_go is not None and self._letting_go.detach() and self._held is not None:
            _let_go(self._held)
        self._held = self._letting_go = None


def check_free(folder: CheckpointFolder, stem: str) -> None:
    """Raise `CheckpointError` if another process writes the checkpoints of a name."""
    if _held_here(folder, stem) is None:
        folder.require_free(stem)


_taking, _lock = threading.RLock(), threading.RLock()
"""`_taking` is held while a lock is taken, which may last a minute. `_lock` guards the variables
below. It is held briefly, since the thread of heartbeats, which must not be late, takes it, too."""
_all_held: dict[Hashable, HeldLock] = {}
_heartbeats: threading.Thread | None = None
_end_of_heartbeats = threading.Event()
"""The thread that writes heartbeats, if there is one, and the event that ends it."""


def _held_here(folder: CheckpointFolder, stem: str) -> HeldLock | None:
    """Return the lock of a name if this process holds it, else None."""
    with _lock:
        held = _all_held.get(folder.lock_key(stem))
        return held if held is not None and held.is_in_place() else None


def _lock_of(folder: CheckpointFolder, stem: str) -> HeldLock:
    """Return the lock of a name with one more user; take it if this process does not hold it."""
    with _taking:
        with _lock:
            if (held := _held_here(folder, stem)) is not None:
                held.users += 1
                return held
        held = folder.lock(stem)
        with _lock:
            _all_held[held.key] = held
            held.users = 1
            _begin_heartbeats()
        return held


def _begin_heartbeats() -> None:
    """Start the thread that writes heartbeats, unless there is one that runs."""
    global _heartbeats, _end_of_heartbeats
    if _heartbeats is None or not _heartbeats.is_alive():
        _end_of_heartbeats = threading.Event()
        _heartbeats = threading.Thread(
            target=_give, args=(_end_of_heartbeats,), name="graphdist-writer", daemon=True
        )
        with contextlib.suppress(RuntimeError):  # Python is ending, and starts no threads
            _heartbeats.start()


def _give(end: threading.Event) -> None:
    """Write heartbeats for all locks until `end` is set."""
    while not end.wait(SECONDS_BETWEEN_SIGNS):
        with _lock:
            for held in _all_held.values():
                try:
                    held.renew()
                except Exception:  # an error of one lock must not end the heartbeats of the others
                    _log.exception("no heartbeat was written into %s", held.key)


def _let_go(held: HeldLock) -> None:
    """Remove one user of a lock; with the last user remove the record."""
    global _heartbeats
    with _lock:
        if held.process != os.getpid():
            return  # a forked process: the record belongs to its parent
        held.users -= 1
        if held.users:
            return
        if _all_held.get(held.key) is held:
            del _all_held[held.key]
        held.remove()
        held.close()
        if not _all_held:
            _end_of_heartbeats.set()
            _heartbeats = None


def require_silence(
    record: bytes | None,
    read: Callable[[], bytes | None],
    has_lock: bool,
    stem: str,
    folder: object,
) -> None:
    """Wait until the process that a record names is known or assumed to have ended.

    `read` returns the record as it is now, `has_lock` says whether this process has locked it by
    the kernel. Raises `CheckpointError` if the other process lives.
    """
    owner = OwnerProcess.of(record)
    # A record of this process, which does not hold the lock, was left by an interrupted request.
    if owner is None or owner.is_this_process():
        return
    is_gone = owner.is_gone(has_lock)
    if is_gone:
        return
    if is_gone is False:
        raise writer_refused(stem, folder, owner)
    _log.warning(
        "checkpoints %r of %s were written by %s: waiting %g s for a sign of its life",
        *(stem, folder, owner, SECONDS_OF_SILENCE),
    )
    deadline = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < deadline:
        time.sleep(min(0.5, SECONDS_OF_SILENCE / 10))
        if (now := read()) != record and (other := OwnerProcess.of(now)) is not None:
            raise writer_refused(stem, folder, other)


def writer_refused(stem: str, folder: object, owner: OwnerProcess | None) -> CheckpointError:
    """Return the error for a name whose checkpoints another process writes."""
    return CheckpointError(
        f"checkpoints {stem!r} of {folder} are written by {owner or 'another process'}",
        hint="one program writes the checkpoints of a name in a folder: end the other, or give "
        "this one another folder; CheckpointManager(.., read_only=True) only reads",
    )


def _forget() -> None:
    """Drop all locks in a forked process, since they belong to its parent."""
    global _taking, _lock, _heartbeats
    _taking, _lock, _heartbeats = threading.RLock(), threading.RLock(), None
    for held in _all_held.values():
        held.close()
    _all_held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
