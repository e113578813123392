"""The right to write the checkpoints of a name in a folder, which one process has at a time.

Two processes that save under one name would remove each other's partial checkpoints. So a process
that saves `ckpt-1`, `ckpt-2`, .. holds the file `.ckpt.writer` in the folder, and a process that
writes `best` holds `.best.writer` while it writes. The file names its holder. A process may write
`ckpt-2` only if no other process holds `.ckpt.writer` or `.ckpt-2.writer`. Each process first takes
its own file and then looks for the other file, so that at least one of two is refused. Two
mechanisms keep others out:

* The file is locked (`flock`). The kernel releases the lock when the process ends, however it ends,
  so a crash leaves no doubt. Forked processes and started programs do not inherit the lock.
* A network file system may have no such locks, or locks that other hosts do not see. So the holder
  writes a sign of life into the file every 10 seconds. A process that finds the file of a holder on
  another host watches it for 60 seconds: it is refused if a sign comes, and else takes the holder
  for dead. Clocks are not compared. On one host without locks, the holder is looked up by its
  process number and start time, since process numbers are reused.

What strangers put in the place of the file is not written to: a link is not followed, a file with
another name elsewhere (a hard link) is refused, and so is a pipe.

A process that was stopped for longer than that may have lost the file. It notices, because it
checks that the file is still its own before it gives a checkpoint its name.

Within a process all writers of a name share the lock: there, checkpoints are written one after the
other.
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
    """The right to write the checkpoints of a name, released when the object is collected."""

    def __init__(self, folder: Path, stem: str) -> None:
        """Take nothing yet."""
        self._folder, self._stem = folder, stem
        self._held: _Held | None = None
        self._letting_go: weakref.finalize[..., CheckpointWriter] | None = None

    def take_for(self, path: Path) -> None:
        """Become the writer, and check that nobody else writes this very checkpoint; see `take`."""
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
        """Raise `CheckpointError` if another process has taken this one for dead."""
        if self._held is None or not self._held.is_in_place():
            raise CheckpointError(
                f"checkpoints {self._stem!r} of {self._folder} are no longer this process's: it "
                f"gave no sign of life for {SECONDS_OF_SILENCE:g} s, or the folder was removed",
                hint="start the program again from the last checkpoint",
            )

    @property
    def stem(self) -> str:
        """Return the name."""
        return self._stem

    def release(self) -> None:
        """Release the right to write.

        A finalizer is not called any more when Python has called them all at exit.
        """
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
    """A file that this process holds."""

    def __init__(self, file: Path, descriptor: int) -> None:
        self.file, self.users = file, 0
        self._descriptor = descriptor
        self._owner = OwnerProcess.this_process()
        self._signs = 0
        self._write()

    def renew(self) -> None:
        """Give a sign of life, unless another process has taken this one for dead."""
        if self.is_in_place():
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """Write the record. The file is opened and closed: closing sends it over a network."""
        self._signs += 1
        descriptor = _opened(self.file, os.O_WRONLY)
        try:
            if not os.path.samestat(os.fstat(descriptor), os.fstat(self._descriptor)):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.file))
            written = os.write(descriptor, self._owner.record(self._signs))
            os.ftruncate(descriptor, written)  # what was no record may have been longer
        finally:
            os.close(descriptor)

    def is_in_place(self) -> bool:
        """Return whether the file exists, and is this process's."""
        if self._owner.process != os.getpid() or not _is_at(self._descriptor, self.file):
            return False
        return _owner_in(self.file) == self._owner

    def let_go(self) -> None:
        """Remove one user, and the file with the last of them."""
        with _lock:
            if self._owner.process != os.getpid():
                return  # a copy in a forked process: the file is its parent's
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
                _signs.end()

    def close(self) -> None:
        """Close the file, and so unlock it."""
        os.close(self._descriptor)


class _Signs:
    """The thread that gives signs of life while any file is held."""

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
for moments only: the thread that gives signs of life takes it too, and must not be late."""
_all_held: dict[Path, _Held] = {}
_signs = _Signs()


def _shared(file: Path) -> _Held | None:
    """Return the file that this process holds already, with one more user."""
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
        _signs.begin()
        return held


def _take(file: Path, stem: str) -> _Held:
    """Take the file of a name; see the top of this module."""
    while True:
        descriptor = _opened(file, os.O_RDWR | os.O_CREAT)
        try:
            try:
                has_lock = _has_locked(descriptor)
            except BlockingIOError:
                raise _refused(stem, file) from None
            if not _is_at(descriptor, file):
                os.close(descriptor)  # its holder has removed it: the lock is on a nameless file
                continue
            owner = _owner_in(file)
            if owner is not None:
                _wait_for_silence(owner, has_lock, stem, file)
            return _Held(file, descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def _has_locked(descriptor: int, is_shared: bool = False) -> bool:
    """Lock a file; return False where there are no locks, raise `BlockingIOError` if it is locked.

    It is tried more than once, since `check_free` of another process locks the file for a moment.
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
    """Return once the owner counts as dead; raises `CheckpointError` if it lives."""
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
        time.sleep(0.01)  # the holder has locked the file, and not yet written its record
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
    """Forget all files in a forked process: they are its parent's, and locks may be held there."""
    global _taking, _lock, _signs
    _taking, _lock, _signs = threading.RLock(), threading.RLock(), _Signs()
    for held in _all_held.values():
        held.close()
    _all_held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
