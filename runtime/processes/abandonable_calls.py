"""Calls that may never return if another worker fails: they run on a thread, and the caller raises.

A wait for other workers inside JAX or XLA cannot be interrupted: joining JAX's service, starting
the devices, a collective on CPUs. A compilation blocks its thread for minutes. So the call runs on
a thread, and the caller waits for this thread and for reports of failures at the same time. After a
failure the caller raises and abandons the thread: Python cannot end a thread that is inside C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar  # Any: whatever a call takes and returns

Result = TypeVar("Result")
SECONDS_BETWEEN_LOOKS = 0.1


class Call:
    """A call on another thread, and its result or exception."""

    def __init__(self) -> None:
        """Start without a result."""
        self._done = threading.Event()
        self.wait = self._done.wait
        self.value: Any = None
        """The result, once the call has returned."""
        self._error: BaseException | None = None

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Store the result or the exception."""
        self.value, self._error = value, error
        self._done.set()

    def make(self, fn: Callable[[], Any]) -> None:
        """Make the call, on this thread."""
        try:
            self.ended(fn(), None)
        except BaseException as error:
            self.ended(None, error)

    def result(self) -> Any:
        """Return the call's result, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self.value


class Runner:
    """One thread that makes calls, in order; it is replaced when a call is abandoned."""

    def __init__(self, name: str) -> None:
        """Name the thread."""
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Any] | None = None

    def start(
        self, fn: Callable[..., Any], arguments: Sequence[Any], ended: Callable[[Any, Any], None]
    ) -> None:
        """Make a call, then call `ended` with its result or None, and its exception or None."""
        with self._lock:
            if self._calls is None:
                self._calls = SimpleQueue()
                threading.Thread(
                    target=_make_calls, args=(self._calls,), name=self._name, daemon=True
                ).start()
            self._calls.put((fn, arguments, ended))

    def abandon(self) -> None:
        """Abandon the thread and its call; the next `start` starts a new thread."""
        with self._lock:
            self._calls = None


def _make_calls(calls: SimpleQueue[Any]) -> None:
    while True:
        fn, arguments, ended = calls.get()
        try:
            value, error = fn(*arguments), None
        except BaseException as raised:
            value, error = None, raised
        ended(value, error)
        del fn, arguments, ended, value, error  # not while waiting: they may be large


def called_while(
    check: Callable[[], None], fn: Callable[[], Result], given_up: Callable[[], None]
) -> Result:
    """Return a function's result; meanwhile raise the error of `check`, or KeyboardInterrupt.

    If that raises, `given_up` is called, and the function continues on an abandoned thread.
    """
    call = Call()
    threading.Thread(target=call.make, args=(fn,), name="graphdist-call", daemon=True).start()
    try:
        while not call.wait(SECONDS_BETWEEN_LOOKS):
            check()
    except BaseException:
        if not call.wait(0):
            given_up()
        raise
    result: Result = call.result()
    return result
