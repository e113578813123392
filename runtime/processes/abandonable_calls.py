"""Calls that may never return if another worker fails, and therefore run on a thread.

A wait for other workers inside JAX or XLA cannot be interrupted: joining JAX's service, starting
the devices, a collective on CPUs. A compilation blocks its thread for minutes. So the call runs on
a thread, and the caller waits for this thread and for reports of failures at the same time. After a
failure the caller raises and abandons the thread: Python cannot end a thread that is inside C++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar  # Any: whatever a call takes and returns

Result = TypeVar("Result")
SECONDS_BETWEEN_LOOKS = 0.1


class Runner:
    """One thread that makes calls, in order. After a call is abandoned, a new thread is used."""

    def __init__(self, name: str) -> None:
        """Name the thread."""
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Any] | None = None

    def start(self, call: Future[Any], fn: Callable[..., Any], *arguments: Any) -> None:
        """Call `fn` on the thread, and set the result of the future `call`.

        The caller makes the future, and so has the future even if Ctrl-C interrupts `start`.
        """
        with self._lock:
            if self._calls is None:
                self._calls = SimpleQueue()
                threading.Thread(
                    target=_make_calls, args=(self._calls,), name=self._name, daemon=True
                ).start()
            self._calls.put((call, fn, arguments))

    def abandon(self) -> None:
        """Abandon the thread and its call; the next `start` starts a new thread."""
        with self._lock:
            self._calls = None


def _make_calls(calls: SimpleQueue[Any]) -> None:
    while True:
        _make(*calls.get())  # a local variable would keep arguments, which may be large


def _make(call: Future[Any], fn: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        call.set_result(fn(*arguments))
    except BaseException as error:
        call.set_exception(error)


def has_ended(call: Future[Any], seconds: float) -> bool:
    """Return whether a call ends within `seconds`."""
    try:
        call.exception(seconds)
    except TimeoutError:
        return False
    return True


def called_while(
    check: Callable[[], None], fn: Callable[[], Result], given_up: Callable[[], None]
) -> Result:
    """Return the result of `fn`, which runs on another thread.

    While `fn` runs, `check` is called again and again. If it raises an error, or Ctrl-C comes,
    `given_up` is called, the error is raised, and `fn` continues on the abandoned thread.
    """
    call: Future[Result] = Future()
    threading.Thread(target=_make, args=(call, fn, ()), name="graphdist-call", daemon=True).start()
    try:
        while not has_ended(call, SECONDS_BETWEEN_LOOKS):
            check()
    except BaseException:
        if not call.done():
            given_up()
        raise
    return call.result()
