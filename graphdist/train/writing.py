"""Writes one checkpoint at a time, on a thread beside the step loop.

A write starts when the previous write has ended. So memory holds the values of one checkpoint
besides the program's own values, and all workers write checkpoints in the same order. If a write
fails, the next call raises its error.

If `save` has returned a path, the checkpoint is on the disk when the process ends, unless the
process is killed. Python waits at exit for the writing thread, because the thread is no daemon,
whichever thread started it. After the main thread has ended, functions that run at exit may save,
too. Python does not wait for threads that they start, and newer Pythons start none, so the calling
thread writes the checkpoint itself. `_end` is the last moment at which Python can wait for a
thread. After `_end`, only the main thread may write.

A forked process has no threads of its parent, and does not wait for them.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from graphdist.data.elements import at_the_users_line
from graphdist.errors import CheckpointError, GraphdistError
from graphdist.tracing.user_lines import here

_log = logging.getLogger("graphdist")


class _Write:
    """A checkpoint being written."""

    def __init__(self, job: Callable[[], None], name: str) -> None:
        self._job, self.name = job, name
        self._outcome = Future[None]()
        self._is_logged = False

    def start(self) -> bool:
        """Start a thread that writes. Return False if Python would not wait for a thread."""
        if is_python_ending():
            return False
        thread = threading.Thread(target=self._run, name="graphdist-checkpoint", daemon=False)
        try:
            thread.start()
        except RuntimeError:  # Python is ending, or the system has no more threads
            return False
        return True

    def _run(self) -> None:
        try:
            self._job()
            self._outcome.set_result(None)
        except BaseException as error:
            self._outcome.set_exception(error)
            if is_python_ending():
                self.log_failure()

    def wait(self) -> BaseException | None:
        """Wait until the checkpoint is written or has failed; return the error.

        Ctrl-C interrupts this wait. If Ctrl-C interrupted `Thread.join`, Python would believe that
        the thread has ended, would not wait for the thread at exit, and would crash.
        """
        return self._outcome.exception()

    def log_failure(self) -> None:
        """Log the error, once, since no call may follow that could raise it."""
        error = self.wait()
        if error is not None and not self._is_logged:
            self._is_logged = True
            _log.error("checkpoint %s was not written", self.name, exc_info=error)


_lock = threading.RLock()
_under_way: list[_Write] = []
_is_over = False


def is_python_ending() -> bool:
    """Return whether the main thread has ended."""
    return not threading.main_thread().is_alive()


def start_writing(job: Callable[[], None], name: str) -> None:
    """Write a checkpoint on a new thread, or on this thread if Python is ending.

    The previous checkpoint is written first.

    Raises `CheckpointError` if Python will no longer wait for this thread.
    """
    with _lock:
        finish_writing()
        if _is_over and threading.current_thread() is not threading.main_thread():
            raise CheckpointError(
                f"checkpoint {name} is not written: the process is ending, and does not wait for "
                f"this thread",
                source=here(),
                hint="end the thread before the program ends: thread.join()",
            )
        write = _Write(job, name)
        if write.start():
            _under_way.append(write)
        else:
            with at_the_users_line():
                job()


def finish_writing() -> None:
    """Wait until nothing is being written; raises the error of a failed write."""
    with _lock:
        while _under_way:
            write = _under_way[-1]
            error = write.wait()
            _under_way.remove(write)  # after the wait: if Ctrl-C interrupts it, the write goes on
            if isinstance(error, GraphdistError) and error.source is None:
                error.source = here()  # the thread has no line of the user's
            if error is not None:
                raise error


weakref.finalize(_Write, bool)
"""Registers Python's finalizers before `_end`, so that they run after `_end` at exit. A temporary
folder is then not removed while a checkpoint is being written to it."""


@atexit.register
def _end() -> None:
    """Wait for the write of another thread. From now on only the main thread may write."""
    global _is_over
    with _lock:
        for write in _under_way:
            try:
                write.log_failure()
            except KeyboardInterrupt:  # Python would drop it here, and end with status 0
                _log.error("checkpoint %s was not written: Ctrl-C came first", write.name)
                os._exit(128 + signal.SIGINT)
        _is_over = True


def _forget() -> None:
    """In a forked process, drop the parent's write and lock, which a parent's thread may hold."""
    global _lock, _is_over
    _lock, _is_over = threading.RLock(), False
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
