"""The queue of closures that wait for a worker, their results, and how long a user waits for them.

A closure runs at least once: if its worker is lost, the closure returns to the front of the queue.
The first error is kept until `wait`, `is_idle` or `put` raises it, once. An error cancels all
waiting closures; running closures run to their end. If closures are left when the queue is closed,
that is an error, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition
from typing import Any  # Any: users' results

from graphdist.errors import (
    ArgumentError,
    ClosureCancelledError,
    GraphdistError,
    WorkerTimeoutError,
)
from graphdist.tracing.user_lines import here

MOST_WAITING = 256 * 1024
"""The number of waiting closures at which `put` waits for room."""


SHUT_DOWN = "the strategy was shut down"


class TimeLimit:
    """A time limit, which begins when it is made."""

    def __init__(self, timeout: Any) -> None:
        """Begin a limit of `timeout` seconds, None for no limit; may raise `ArgumentError`."""
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise ArgumentError(
                f"timeout is {timeout!r}, not a number of seconds",
                hint="leave it out to wait as long as it takes",
            )
        self._seconds = float("inf") if timeout is None else float(timeout)
        self._deadline = time.monotonic() + self._seconds

    def left(self) -> float | None:
        """Return the seconds until the limit; None without a limit."""
        left = max(0.0, self._deadline - time.monotonic())
        return None if left > TIMEOUT_MAX else left

    def __str__(self) -> str:
        return f"{self._seconds:g} s"


class RemoteValue:
    """The result of a scheduled function, available once it has run."""

    def __init__(self, name: str = "function") -> None:
        """Begin without a result; `name` is the name of the function."""
        self.name = name
        self._loader: Future[Callable[[TimeLimit], Any]] = Future()
        self._values: list[Any] = []
        """The loaded value. Several threads may load it at once; then the first value is used."""
        self.worker: int | None = None
        """The index of the worker that runs the function; None before and after."""

    def __repr__(self) -> str:
        state = "waits for a worker" if self.worker is None else f"runs on worker {self.worker}"
        if self._loader.done():
            state = "has failed" if self._loader.exception() else "has run"
        return f"<RemoteValue: {self.name!r} {state}>"

    def set(self, load: Callable[[TimeLimit], Any]) -> None:
        """Set the function that loads the result within a time limit."""
        self._loader.set_result(load)

    def fail(self, error: BaseException) -> None:
        """Set the error to raise in place of a result."""
        self._loader.set_exception(error)

    def fetch(self, timeout: float | None = None) -> Any:
        """Return the result, its arrays as NumPy arrays; wait until the function has run.

        Raises the function's error, `ClosureCancelledError` for a function that did not run, and
        `WorkerTimeoutError` after `timeout` seconds. After a timeout `fetch` may be called again.
        """
        return self.fetch_within(TimeLimit(timeout))

    def fetch_within(self, limit: TimeLimit) -> Any:
        """Return the result as `fetch` does."""
        try:
            error = self._loader.exception(limit.left())
        except TimeoutError:
            raise self._late(limit) from None
        if error is not None:
            raise with_line_of_user(error)
        if not self._values:
            load = self._loader.result()
            self._values.append(load(limit))
        return self._values[0]

    def get(self, timeout: float | None = None) -> Any:
        """Return the result, its arrays as arrays of JAX; raise the errors of `fetch`."""
        import jax
        import numpy as np

        def placed(leaf: Any) -> Any:
            return jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

        return jax.tree.map(placed, self.fetch(timeout))

    def _late(self, limit: TimeLimit) -> WorkerTimeoutError:
        runs = "waits for a worker" if self.worker is None else f"runs on worker {self.worker}"
        return WorkerTimeoutError(
            f"the result of {self.name!r} has not come within {limit}: the function {runs}",
            source=here(),
            hint="fetch it again, or wait longer",
        )


@dataclass(eq=False)
class Waiting:
    """A closure in the queue."""

    number: int
    function: int
    arguments: bytes
    result: RemoteValue
    keeps: tuple[Any, ...] = ()
    """The objects that must live as long as the closure: its function and per-worker values."""
    attempt: int = 0
    """The number of workers that were lost while they ran the closure."""


class ClosureQueue:
    """A queue of closures, whose methods any thread may call."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        """Begin with an empty queue."""
        self._most = most
        self._changed = Condition()
        self._waiting: deque[Waiting] = deque()
        self._running: dict[Waiting, float] = {}
        """The time at which each running closure was taken."""
        self._error: BaseException | None = None
        self._why_cancelled = ""
        """The reason of the last cancellation."""
        self.is_closed = False

    def put(self, closure: Waiting) -> None:
        """Add a closure at the end; wait while the queue is full. Raises a pending error."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) < self._most or self._error or self.is_closed
            )
            self._raise()
            if self.is_closed:
                raise with_line_of_user(cancelled(SHUT_DOWN))
            self._waiting.append(closure)
            self._changed.notify_all()

    def take(self, worker: int = 0) -> Waiting | None:
        """Return the first closure, for the worker to run; None if the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self.is_closed)
            if self.is_closed:
                return None
            closure = self._waiting.popleft()
            self._running[closure] = time.monotonic()
            closure.result.worker = worker
            self._changed.notify_all()
            return closure

    def put_back(self, closure: Waiting) -> None:
        """Put a closure of a lost worker back to the front, unless closures are cancelled."""
        with self._changed:
            self._end(closure)
            closure.attempt += 1
            if self._error is not None or self.is_closed:
                closure.result.fail(cancelled(f"its worker is lost, and {self._why_cancelled}"))
            else:
                self._waiting.appendleft(closure)

    def finish(self, closure: Waiting, load: Callable[[TimeLimit], Any]) -> None:
        """Record that a closure has run, and how to load its result."""
        closure.result.set(load)
        with self._changed:
            self._end(closure)

    def fail(self, closure: Waiting, error: BaseException) -> None:
        """Record the error of a closure, and cancel the waiting closures."""
        closure.result.fail(error)
        with self._changed:
            self._end(closure)
            self._cancel_for(error, "another scheduled function failed before its turn")

    def fail_all(self, error: GraphdistError) -> None:
        """Cancel the waiting closures, if any, and record `error` as the reason."""
        with self._changed:
            if self._waiting:
                self._cancel_for(error, error.what)

    def close(self) -> None:
        """Cancel waiting closures, let `take` return None, and drop running closures."""
        with self._changed:
            self.is_closed = True
            if count := self._left():
                what = f"scheduled functions have not run to the end, {count} of them"
                self._cancel_for(cancelled(SHUT_DOWN, what), SHUT_DOWN)
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all closures have run or been cancelled, and raise the first error.

        Raises `WorkerTimeoutError` after `timeout` seconds, and changes nothing.
        """
        limit = TimeLimit(timeout)
        with self._changed:
            has_ended = self._changed.wait_for(
                lambda: self.is_closed or not self._left(), limit.left()
            )
            self._raise()
            if not has_ended:
                raise WorkerTimeoutError(
                    f"the scheduled functions have not all run within {limit}: "
                    f"{self._unfinished()}",
                    source=here(),
                    hint="nothing is cancelled: call join again to wait longer",
                )

    def is_idle(self) -> bool:
        """Return whether no closure waits or runs; raise a pending error."""
        with self._changed:
            self._raise()
            return not self._left()

    def _left(self) -> int:
        return len(self._running) + len(self._waiting)

    def _unfinished(self) -> str:
        now = time.monotonic()
        running = [
            f"{closure.result.name!r} runs on worker {closure.result.worker} "
            f"for {now - began:.0f} s"
            for closure, began in self._running.items()
        ]
        return ", ".join([*running, f"{len(self._waiting)} wait for a worker"])

    def _end(self, closure: Waiting) -> None:
        del self._running[closure]
        closure.result.worker = None
        self._changed.notify_all()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise with_line_of_user(error)

    def _cancel_for(self, error: BaseException, why: str) -> None:
        if self._error is None:
            self._error = error
        self._why_cancelled = why
        while self._waiting:
            self._waiting.popleft().result.fail(cancelled(why))
        self._changed.notify_all()


def with_line_of_user(error: BaseException) -> BaseException:
    """Return an error of another thread with the user's line that asks for the result."""
    if isinstance(error, GraphdistError) and (error.source is None or error.source.frame is None):
        error = copy(error)  # other lines may request the same result
        error.source = here()
    return error


def cancelled(why: str, what: str = "a scheduled function was not run") -> ClosureCancelledError:
    """Return the error for functions that do not run, or whose results are lost."""
    first = "call coordinator.join() before strategy.shutdown()"
    hint = first if SHUT_DOWN in why else "schedule it again"
    return ClosureCancelledError(f"{what}: {why}", hint=hint)
