"""The lock on the checkpoints of a name in a folder: one process at a time may write them.

Two processes that save under one name would remove each other's partial checkpoints. So a process
that saves `ckpt-1`, `ckpt-2`, .. holds the file `.ckpt.writer` in the folder, and a process that
writes `best` holds `.best.writer` while it writes. The file names its holder. A process may write
`ckpt-2` only if no other process holds `.ckpt.writer` or `.ckpt-2.writer`. Each process first takes
its own file and then checks the other file, so that at least one of two is refused. There are two
mechanisms:

* The file is locked (`flock`). The kernel releases the lock when the process ends in any way.
  Forked processes and started programs do not inherit the lock.
* A network file system may have no such locks, or locks that other hosts do not see. So the holder
  writes a heartbeat into the file every 10 seconds. A process that finds a holder on another host
  watches the file for 60 seconds: after a heartbeat it is refused, without one it takes the lock.
  Clocks are not compared. On one host without locks, the holder is looked up by its process id and
  start time, since process ids are reused.

Only a regular file with one name is written to: links are not followed, and hard links and pipes
are refused.

A process that was stopped for more than 60 seconds may have lost the file. So it checks that the
file is still its own before it gives a checkpoint its name.

Within a process all writers of a name share the lock: checkpoints are written one after the other.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import threading
import time
import weakref
from pathlib import Path

from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    not_written,
    read_small,
)
from graphdist.runtime.files.checkpoint_owner import LENGTH, OwnerProcess
from graphdist.runtime.files.regular_files import NotAFileError, open_regular

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

_log = logging.getLogger("graphdist")

SECONDS_BETWEEN_SIGNS = 10.0
SECONDS_OF_SILENCE = 60.0
_HINT = (
    "one program writes the checkpoints of a name in a folder: end the other, or give this one "
    "another folder; CheckpointManager(.., read_only=True) only reads"
)


def stem_of(path: Path) -> str:
    """Return the name of a checkpoint without its number.

    >>> stem_of(Path("saved/ckpt-12")), stem_of(Path("saved/best"))
    ('ckpt', 'best')
    """
    return re.sub(r"(?<=.)-\d+\Z", "", path.name, flags=re.ASCII | re.DOTALL)


class CheckpointWriter:
    """The lock on the checkpoints of a name, released when the object is garbage collected."""

    def __init__(self, folder: Path, stem: str) -> None:
        """Start without the lock."""
        self._folder, self._stem = folder, stem
        self._held: _Held | None = None
        self._letting_go: weakref.finalize[..., CheckpointWriter] | None = None

    def take_for(self, path: Path) -> None:
        """Become the writer, and check that no other process writes this checkpoint; see `take`."""
        was_writer = self._held is not None
        self.take()
        try:
            for name in {path.name, stem_of(path)} - {self._stem}:
                check_free(self._folder, name)
        except CheckpointError:
            if not was_writer:
                self.release()
            raise

    def take(self) -> None:
        """Become the writer, in a folder that exists; does nothing if it is the writer already.

        Raises `CheckpointError`, which names the holder, if another process is the writer.
        """
        if self._held is not None and self._held.is_in_place():
            return
        self.release()
        file = _file_of(self._folder, self._stem)
        try:
            with _taking:
                self._held = held = _shared(file) or _kept(_take(file, self._stem))
        except OSError as error:
            if (failure := not_written(error, self._folder)) is None:
                raise
            raise failure from error
        self._letting_go = weakref.finalize(self, held.let_go)

    def confirm(self) -> None:
        """Raise `CheckpointError` if another process has taken the lock."""
        if self._held is None or not self._held.is_in_place():
            raise CheckpointError(
                f"checkpoints {self._stem!r} of {self._folder} are no longer this process's: it "
                f"wrote no heartbeat for {SECONDS_OF_SILENCE:g} s, or the folder was removed",
                hint="start the program again from the last checkpoint",
            )

    @property
    def stem(self) -> str:
        """Return the name."""
        return self._stem

    def release(self) -> None:
        """Release the lock, unless Python's exit has called the finalizer already."""
        if self._letting_go is not None and self._letting_go.detach() and self._held is not None:
            self._held.let_go()
        self._held = self._letting_go = None


def check_free(folder: Path, stem: str) -> None:
    """Raise `CheckpointError` if another process writes the checkpoints of a name."""
    file = _file_of(folder, stem)
    with _lock:
        if file in _all_held and _all_held[file].is_in_place():
            return
    try:
        descriptor = _opened(file, os.O_RDONLY)
    except FileNotFoundError:
        return
    except OSError as error:
        raise not_written(error, folder) or error from error
    try:
        has_lock = _has_locked(descriptor, is_shared=True)
        owner = _owner_in(file)
        if owner is not None:
            _wait_for_silence(owner, has_lock, stem, file)
    except BlockingIOError:
        raise _refused(stem, file) from None
    finally:
        os.close(descriptor)


def _file_of(folder: Path, stem: str) -> Path:
    return Path(os.path.realpath(folder)) / f".{stem}.writer"


def _opened(file: Path, flags: int) -> int:
    """Return the descriptor of a writer's file; raises `NotAFileError` if it has other names."""
    descriptor = open_regular(file, flags)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise NotAFileError(errno.EMLINK, "it is a hard link", str(file))
    return descriptor


class _Held:
    """A writer's file that this process holds."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file, self.users = file, 0
        self._descriptor = descriptor
        self._owner = OwnerProcess.this_process()
        self._signs = 0
        self._write()

    def renew(self) -> None:
        """Write a heartbeat, unless another process has taken the lock."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """Write the record. The file is closed, since a network file system sends it then."""
        self._signs += 1
        descriptor = _opened(self.file, os.O_WRONLY)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor)):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.file))
            written = os.write(descriptor, self._owner.record(self._signs))
            os.ftruncate(descriptor, written)  # other content may have been longer than a record
        finally:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Return whether the file exists and belongs to this process."""
        if self._owner.process != os.getpid() or not _is_at(self._descriptor, self.file):
            return False
        return _owner_in(self.file) == self._owner

    def let_go(self) -> None:
        """Remove one user, and with the last user the file."""
        with _lock:
            if self._owner.process != os.getpid():
                return  # a forked process: the file belongs to its parent
            self.users -= 1
            if self.users:
                return
            if _all_held.get(self.file) is self:
                del _all_held[self.file]
            if self.is_in_place():
                with contextlib.suppress(OSError):
                    self.file.unlink()
            self.close()
            if not _all_held:
                _heartbeats.end()

    def close(self) -> None:
        """Close the file, and so unlock it."""
        os.close(self._descriptor)


class _Heartbeats:
    """The thread that writes heartbeats while this process holds a file."""

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
"""`_taking` is held while a file is taken, which may last a minute. `_lock` guards the state below,
and is held briefly: the thread of heartbeats, which must not be late, takes it too."""
_all_held: dict[Path, _Held] = {}
_heartbeats = _Heartbeats()


def _shared(file: Path) -> _Held | None:
    """Return the file with one more user if this process holds it already, else None."""
    with _lock:
        held = _all_held.get(file)
        if held is None or not held.is_in_place():
            return None
        held.users += 1
        return held


def _kept(held: _Held) -> _Held:
    """Register a file that was just taken, with its first user."""
    with _lock:
        _all_held[held.file] = held
        held.users = 1
        _heartbeats.begin()
        return held


def _take(file: Path, stem: str) -> _Held:
    """Open and lock the file of the checkpoints named `stem`, as the module's docstring explains.

    Raises `CheckpointError` if another process holds the file.
    """
    while True:
        descriptor = _opened(file, os.O_RDWR | os.O_CREAT)
        try:
            try:
                has_lock = _has_locked(descriptor)
            except BlockingIOError:
                raise _refused(stem, file) from None
            if not _is_at(descriptor, file):
                os.close(descriptor)  # its holder has removed the locked file meanwhile
                continue
            owner = _owner_in(file)
            if owner is not None:
                _wait_for_silence(owner, has_lock, stem, file)
            return _Held(file, descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def _has_locked(descriptor: int, is_shared: bool = False) -> bool:
    """Lock a file; return False if there are no locks, raise `BlockingIOError` if it is locked.

    It tries three times, since `check_free` of another process locks the file briefly.
    """
    if fcntl is None:
        return False
    for tries_left in (2, 1, 0):
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(0.01)
        except OSError:
            return False
        else:
            break
    return True


def _wait_for_silence(owner: OwnerProcess, has_lock: bool, stem: str, file: Path) -> None:
    """Return once the owner is known or assumed to have ended; raises `CheckpointError` if not."""
    is_gone = owner.is_gone(has_lock)
    if is_gone:
        return
    if is_gone is False:
        raise _refused(stem, file)
    _log.warning(
        "checkpoints %r of %s were written by %s: waiting %g s for a sign of its life",
        *(stem, file.parent, owner, SECONDS_OF_SILENCE),
    )
    before = _content(file)
    deadline = time.monotonic() + SECONDS_OF_SILENCE
    while time.monotonic() < deadline:
        time.sleep(min(0.5, SECONDS_OF_SILENCE / 10))
        if (now := _content(file)) != before and OwnerProcess.of(now) is not None:
            raise _refused(stem, file)


def _refused(stem: str, file: Path) -> CheckpointError:
    for _ in range(20):
        if (owner := _owner_in(file)) is not None:
            break
        time.sleep(0.01)  # the holder has locked the file, but not written its record yet
    return CheckpointError(
        f"checkpoints {stem!r} of {file.parent} are written by {owner or 'another process'}",
        hint=_HINT,
    )


def _owner_in(file: Path) -> OwnerProcess | None:
    return OwnerProcess.of(_content(file))


def _content(file: Path) -> bytes:
    try:
        return read_small(file, file.parent, 4 * LENGTH)
    except (OSError, ValueError):
        return b""


def _is_at(descriptor: int, file: Path) -> bool:
    """Return whether an open file still has its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(file))
    except OSError:
        return False


def _forget() -> None:
    """Drop all files in a forked process: they and the state of the locks are its parent's."""
    global _taking, _lock, _heartbeats
    _taking, _lock, _heartbeats = threading.RLock(), threading.RLock(), _Heartbeats()
    for held in _all_held.values():
        held.close()
    _all_held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
