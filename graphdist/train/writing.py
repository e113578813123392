"""The one checkpoint that is being written, on a thread beside the step loop.

There is one at a time: whoever starts the next waits for it, so that memory holds the values of one
checkpoint besides the program's, and workers write theirs in one order. An error of the thread is
raised by whoever asks next. Python waits for the thread before the process ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from graphdist.errors import GraphdistError
from graphdist.tracing.sources import here

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
            if not threading.main_thread().is_alive():  # nobody asks any more
                _log.exception("checkpoint %s was not written", self._name)
        finally:
            self._done.set()

    def wait(self) -> None:
        """Return once it is written, or failed.

        Ctrl-C ends the waiting. It would end `Thread.join` too, but Python takes the thread for
        ended then, does not wait for it when the process ends, and takes the process down with it.
        """
        self._done.wait()

    def require_success(self) -> None:
        """Raise what went wrong."""
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
    """Return once nothing is being written; raises what went wrong."""
    with _lock:
        while _under_way:
            write = _under_way[-1]
            write.wait()
            _under_way.remove(write)  # after the wait, which Ctrl-C may end
            write.require_success()
