"""The one checkpoint that is being written, on a thread beside the step loop.

There is one at a time, and the start of the next waits for it. So memory holds the values of one
checkpoint besides the program's, and all workers write checkpoints in the same order. An error of
the thread is raised by the next call. The thread is not a daemon: Python waits for it before the
process ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from graphdist.errors import GraphdistError
from graphdist.tracing.user_lines import here

_log = logging.getLogger("graphdist")


class _Write:
    """A checkpoint being written."""

    def __init__(self, job: Callable[[], None], name: str) -> None:
        self._job, self._name = job, name
        self._error: BaseException | None = None
        self._done = threading.Event()
        threading.Thread(target=self._run, name="graphdist-checkpoint").start()

    def _run(self) -> None:
        try:
            self._job()
        except BaseException as error:
            self._error = error
            if not threading.main_thread().is_alive():  # no call follows that could raise it
                _log.exception("checkpoint %s was not written", self._name)
        finally:
            self._done.set()

    def wait(self) -> None:
        """Return once the checkpoint is written, or has failed.

        Ctrl-C interrupts this wait. It would also interrupt `Thread.join`, but Python then takes
        the thread for ended, does not wait for it at exit, and crashes.
        """
        self._done.wait()

    def require_success(self) -> None:
        """Raise the error of the thread, if there is one."""
        error, self._error = self._error, None
        if isinstance(error, GraphdistError) and error.source is None:
            error.source = here()  # the thread has no line of the user's
        if error is not None:
            raise error


_lock = threading.RLock()
_under_way: list[_Write] = []


def start_writing(job: Callable[[], None], name: str) -> None:
    """Write a checkpoint on a thread, after the one before it."""
    with _lock:
        finish_writing()
        _under_way.append(_Write(job, name))


def finish_writing() -> None:
    """Return once nothing is being written; raises the error of a failed write."""
    with _lock:
        while _under_way:
            write = _under_way[-1]
            write.wait()
            _under_way.remove(write)  # after the wait: if Ctrl-C interrupts it, the write goes on
            write.require_success()
