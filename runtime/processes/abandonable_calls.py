"""Calls that never return if another worker is gone: made on a thread, so that one can raise.

A wait for other workers inside JAX or XLA cannot be interrupted: joining JAX's service, starting
the devices, a collective on CPUs. A compilation blocks its thread for minutes. So the call is made
on a thread, and the caller waits for that thread and for bad news at the same time. At bad news the
caller raises, and the thread is left to its call: Python cannot end a thread that is inside C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar  # Any: whatever a call takes and returns

Result = TypeVar("Result")
SECONDS_BETWEEN_LOOKS = 0.1


class Call:
    """A call on another thread, and its outcome."""

    def __init__(self) -> None:
        """Have no outcome yet."""
        self._done = threading.Event()
        self.wait = self._done.wait
        self.value: Any = None
        """The result, once the call has returned."""
        self._error: BaseException | None = None

    def ended(self, value: Any, error: BaseException | None) -> None:
        """Take the outcome."""
        self.value, self._error = value, error
        self._done.set()

    def make(self, fn: Callable[[], Any]) -> None:
        """Make the call, on this thread."""
        try:
            self.ended(fn(), None)
        except BaseException as error:
            self.ended(None, error)

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self.value


class Runner:
    """One thread that makes calls, in order; replaced when a call never ends."""

    def __init__(self, name: str) -> None:
        """Name the thread."""
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Any] | None = None

    def start(
        self, fn: Callable[..., Any], arguments: Sequence[Any], ended: Callable[[Any, Any], None]
    ) -> None:
        """Make a call; `ended` is given its result and its exception, of which one is None."""
        with self._lock:
            if self._calls is None:
                self._calls = SimpleQueue()
                threading.Thread(
                    target=_make_calls, args=(self._calls,), name=self._name, daemon=True
                ).start()
            self._calls.put((fn, arguments, ended))

    def abandon(self) -> None:
        """Leave the thread to its call; the next `start` makes a new thread."""
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
    """Return what a function returns; raise what `check` raises meanwhile, or Ctrl-C.

    In that case `given_up` is called: the function continues on a thread that nobody waits for.
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
