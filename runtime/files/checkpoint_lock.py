"""The lock on the checkpoints of a name in a folder: one process at a time may write them.

Two processes that save under one name would remove each other's unfinished checkpoints. So a
process that saves `ckpt-1`, `ckpt-2`, .. holds the record `.ckpt.writer` in the folder, and a
process that writes `best` holds `.best.writer` while it writes. The record names its holder. A
process may write `ckpt-2` only if no other process holds `.ckpt.writer` or `.ckpt-2.writer`. Each
process first takes its own record and then checks the other one, so that at least one of two is
refused. `disk_lock` and `bucket_lock` take a record.

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
    """The lock on the checkpoints of a name, released when the object is garbage collected."""

    def __init__(self, folder: CheckpointFolder, stem: str) -> None:
        """Start without the lock."""
        self._folder, self._stem = folder, stem
        self._held: HeldLock | None = None
        self._letting_go: weakref.finalize[..., CheckpointWriter] | None = None

    def take_for(self, name: str) -> None:
        """Become the writer, and check that no other process writes this checkpoint; see `take`."""
        was_writer = self._held is not None
        self.take()
        try:
            for other in {name, stem_of(name)} - {self._stem}:
                check_free(self._folder, other)
        except CheckpointError:
            if not was_writer:
                self.release()
            raise

    def take(self) -> None:
        """Become the writer, in a folder that exists; does nothing if it is the writer already.

        Raises `CheckpointError`, which names the holder, if another process is the writer.
        """
        if self.is_held:
            return
        self.release()
        with _taking:
            self._held = _shared(self._folder.lock_key(self._stem)) or _kept(
                self._folder.lock(self._stem)
            )
        self._letting_go = weakref.finalize(self, _let_go, self._held)

    def confirm(self) -> None:
        """Raise `CheckpointError` if another process has taken the lock."""
        if not self.is_held:
            raise CheckpointError(
                f"checkpoints {self._stem!r} of {self._folder} are no longer this process's: it "
                f"wrote no heartbeat for {SECONDS_OF_SILENCE:g} s, or the folder was removed",
                hint="start the program again from the last checkpoint",
            )

    @property
    def is_held(self) -> bool:
        """Return whether this process holds the lock still."""
        return self._held is not None and self._held.is_in_place()

    @property
    def stem(self) -> str:
        """Return the name."""
        return self._stem

    def release(self) -> None:
        """Release the lock, unless Python's exit has called the finalizer already."""
        if self._letting_go is not None and self._letting_go.detach() and self._held is not None:
            _let_go(self._held)
        self._held = self._letting_go = None


def check_free(folder: CheckpointFolder, stem: str) -> None:
    """Raise `CheckpointError` if another process writes the checkpoints of a name."""
    with _lock:
        held = _all_held.get(folder.lock_key(stem))
        if held is not None and held.is_in_place():
            return
    folder.require_free(stem)


class _Heartbeats:
    """The thread that writes heartbeats while this process holds a lock."""

    def __init__(self) -> None:
        self._end: threading.Event | None = None

    def begin(self) -> None:
        if self._end is None:
            self._end = threading.Event()
            thread = threading.Thread(
                target=self._give, args=(self._end,), name="graphdist-writer", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # Python is ending, and starts no threads
                thread.start()

    def end(self) -> None:
        if self._end is not None:
            self._end.set()
        self._end = None

    @staticmethod
    def _give(end: threading.Event) -> None:
        while not end.wait(SECONDS_BETWEEN_SIGNS):
            with _lock:
                for held in _all_held.values():
                    held.renew()


_taking, _lock = threading.RLock(), threading.RLock()
"""`_taking` is held while a lock is taken, which may last a minute. `_lock` guards the state below,
and is held briefly: the thread of heartbeats, which must not be late, takes it too."""
_all_held: dict[Hashable, HeldLock] = {}
_heartbeats = _Heartbeats()


def _shared(key: Hashable) -> HeldLock | None:
    """Return the lock with one more user if this process holds it already, else None."""
    with _lock:
        held = _all_held.get(key)
        if held is None or not held.is_in_place():
            return None
        held.users += 1
        return held


def _kept(held: HeldLock) -> HeldLock:
    """Register a lock that was just taken, with its first user."""
    with _lock:
        _all_held[held.key] = held
        held.users = 1
        _heartbeats.begin()
        return held


def _let_go(held: HeldLock) -> None:
    """Remove one user, and with the last user the record."""
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
            _heartbeats.end()


def require_silence(
    owner: OwnerProcess,
    has_lock: bool,
    read: Callable[[], bytes],
    stem: str,
    folder: object,
) -> None:
    """Wait until the owner of a record is known or assumed to have ended.

    `read` returns the record, `has_lock` says whether the kernel has locked it for this process.
    Raises `CheckpointError` if the owner lives.
    """
    is_gone = owner.is_gone(has_lock)
    if is_gone:
        return
    if is_gone is False:
        raise writer_refused(stem, folder, owner)
    _log.warning(
        "checkpoints %r of %s were written by %s: waiting %g s for a sign of its life",
        *(stem, folder, owner, SECONDS_OF_SILENCE),
    )
    before = read()
    deadline = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < deadline:
        time.sleep(min(0.5, SECONDS_OF_SILENCE / 10))
        if (now := read()) != before and (other := OwnerProcess.of(now)) is not None:
            raise writer_refused(stem, folder, other)


def writer_refused(stem: str, folder: object, owner: OwnerProcess | None) -> CheckpointError:
    """Return the error for a name whose checkpoints another process writes."""
    return CheckpointError(
        f"checkpoints {stem!r} of {folder} are written by {owner or 'another process'}",
        hint="one program writes the checkpoints of a name in a folder: end the other, or give "
        "this one another folder; CheckpointManager(.., read_only=True) only reads",
    )


def _forget() -> None:
    """Drop all locks in a forked process: they and the state of the locks are its parent's."""
    global _taking, _lock, _heartbeats
    _taking, _lock, _heartbeats = threading.RLock(), threading.RLock(), _Heartbeats()
    for held in _all_held.values():
        held.close()
    _all_held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
