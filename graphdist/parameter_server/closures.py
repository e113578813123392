"""Closures that wait for a worker, and what becomes of them.

A closure is run at least once: one whose worker dies goes back to the front. The first error stays
until `wait`, `is_idle` or `put` raises it, once; it cancels all closures that wait. Those that run
already run to their end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition
from typing import Any  # Any: users' results

from graphdist.errors import ClosureCancelledError, GraphdistError
from graphdist.tracing.user_lines import here

MOST_WAITING = 256 * 1024
"""How many closures may wait before `put` waits for room."""


class RemoteValue:
    """The result of a scheduled function, once it has run."""

    def __init__(self) -> None:
        """Begin without a result."""
        self._changed = Condition()
        self._is_done = False
        self._load: Callable[[], Any] = lambda: None
        self._error: BaseException | None = None
        self._has_value = False
        self._value: Any = None

    def set(self, load: Callable[[], Any]) -> None:
        """Take the function that loads the result."""
        with self._changed:
            self._load, self._is_done = load, True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Take the error that is raised in place of a result."""
        with self._changed:
            self._error, self._is_done = error, True
            self._changed.notify_all()

    def fetch(self) -> Any:
        """Return the result, its arrays as NumPy arrays; wait until the function has run.

        Raises the function's error, and `ClosureCancelledError` for a function that was not run.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_done)
            if self._error is not None:
                raise with_line_of_user(self._error)
            if not self._has_value:
                self._value, self._has_value = self._load(), True
            return self._value

    def get(self) -> Any:
        """Return the result, its arrays as arrays of JAX; raises as `fetch` does."""
        import jax
        import numpy as np

        def placed(leaf: Any) -> Any:
            return jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf

        return jax.tree.map(placed, self.fetch())


@dataclass
class Waiting:
    """A closure in the queue."""

    number: int
    function: int
    arguments: bytes
    result: RemoteValue
    keeps: tuple[Any, ...] = ()
    """What must live as long as the closure: its function and per-worker values."""
    is_again: bool = field(default=False)


class ClosureQueue:
    """Closures in order; any thread may call any method."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        """Start empty."""
        self._most = most
        self._changed = Condition()
        self._waiting: deque[Waiting] = deque()
        self._num_running = 0
        self._error: BaseException | None = None
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Return whether the queue is closed."""
        return self._is_closed

    def put(self, closure: Waiting) -> None:
        """Add a closure at the end; wait while the queue is full. Raises a pending error."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._waiting) < self._most or self._error or self._is_closed
            )
            self._raise()
            if self._is_closed:
                raise _cancelled("the coordinator was shut down")
            self._waiting.append(closure)
            self._changed.notify_all()

    def take(self) -> Waiting | None:
        """Return the first closure, which now runs; None when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            if self._is_closed:
                return None
            self._num_running += 1
            self._changed.notify_all()
            return self._waiting.popleft()

    def put_back(self, closure: Waiting) -> None:
        """Return a closure whose worker died to the front, unless closures are cancelled."""
        with self._changed:
            self._num_running -= 1
            closure.is_again = True
            if self._error is not None or self._is_closed:
                closure.result.fail(_cancelled("its worker died, and another function had failed"))
            else:
                self._waiting.appendleft(closure)
            self._changed.notify_all()

    def finish(self, closure: Waiting, load: Callable[[], Any]) -> None:
        """Note that a closure has run, and how its result is loaded."""
        closure.result.set(load)
        with self._changed:
            self._num_running -= 1
            self._changed.notify_all()

    def fail(self, closure: Waiting, error: BaseException) -> None:
        """Note the error of a closure, and cancel those that wait."""
        closure.result.fail(error)
        with self._changed:
            self._num_running -= 1
            if self._error is None:
                self._error = error
            self._cancel("another scheduled function failed before its turn")
            self._changed.notify_all()

    def close(self) -> None:
        """Cancel what waits, and let `take` return None."""
        with self._changed:
            self._is_closed = True
            self._cancel("the coordinator was shut down")
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all closures have run, or those that run after an error; raise the error."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or (self._num_running == 0 and not self._waiting)
            )
            self._raise()

    def is_idle(self) -> bool:
        """Return whether no closure waits or runs; raises a pending error."""
        with self._changed:
            self._raise()
            return self._num_running == 0 and not self._waiting

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise with_line_of_user(error)

    def _cancel(self, why: str) -> None:
        while self._waiting:
            self._waiting.popleft().result.fail(_cancelled(why))


def with_line_of_user(error: BaseException) -> BaseException:
    """Return an error of another thread with the line that asks for its result."""
    if isinstance(error, GraphdistError) and (error.source is None or error.source.frame is None):
        error.source = here()
    return error


def _cancelled(why: str) -> ClosureCancelledError:
    return ClosureCancelledError(
        f"a scheduled function was not run: {why}",
        hint="schedule it again",
    )
