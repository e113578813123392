"""Limits the number of dispatched steps that are not finished.

JAX dispatches without waiting. On CPU that can deadlock: when two steps with collectives over
several devices run on few cores, the threads of each can wait for ever for threads of the other,
and XLA aborts the process after a minute. So a call waits until the number of unfinished steps is
below the platform's bound. On CPU the bound is 1. On other platforms the devices run steps in
order, and the bound only keeps the host from running so far ahead that inputs fill the memory.

No thread waits for a step while it holds the lock of the variables, because the step may call back
code that needs the lock. So several threads may wait for the same step, and all of them continue
when the step ends. Each thread acquires the lock and checks again whether there is room. The first
thread dispatches its step, and all other threads wait again.

The token of a step is one of the step's outputs, which is ready when the step is finished. If the
token was a variable's buffer, a later step may have consumed the token. In this case the caller
waits for the next token, because the step that consumed the first token ends later. A failed step
counts as finished. The error of the failed step is kept for the next step of the same program,
because the waiting thread may run another program.
"""

from __future__ import annotations

from collections import deque
from threading import Lock

import jax

BOUNDS = {"cpu": 1}
DEFAULT_BOUND = 32


class Backpressure:
    """The unfinished steps of one platform.

    >>> steps = Backpressure(bound=1)
    >>> steps.wait()
    >>> steps.dispatched(jax.numpy.ones(3), [])
    >>> len(steps)
    1
    """

    def __init__(self, bound: int) -> None:
        """Allow `bound` unfinished steps; the user may change `bound` later."""
        self.bound = bound
        self.tokens: deque[tuple[jax.Array, list[Exception]]] = deque()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.tokens)

    def wait(self) -> None:
        """Wait until there is room for a step. Another thread may dispatch its step first."""
        bound = self.bound
        while (first := self._unfinished(bound)) is not None:
            token, failures = first
            is_consumed = token.is_deleted()
            if not is_consumed:
                try:
                    token.block_until_ready()
                except Exception as error:
                    if not token.is_deleted():  # else another thread's step has just consumed it
                        failures.append(error)
            with self._lock:
                if self.tokens and self.tokens[0] is first:
                    self.tokens.popleft()
                if is_consumed:  # wait for the next token instead, even if there is room now
                    bound = len(self.tokens) or bound

    def _unfinished(self, bound: int) -> tuple[jax.Array, list[Exception]] | None:
        """Return the oldest unfinished step; None if there are fewer than `bound`."""
        with self._lock:
            return self.tokens[0] if len(self.tokens) >= bound else None

    def dispatched(self, token: jax.Array, failures: list[Exception]) -> None:
        """Add a step that was dispatched. If the step fails, append its error to `failures`."""
        self.tokens.append((token, failures))


_by_kind: dict[tuple[str, bool], Backpressure] = {}


def backpressure(platform: str, *, spans_devices: bool) -> Backpressure:
    """Return the `Backpressure` that all programs of a platform share.

    Steps on a single device have a `Backpressure` of their own. Such steps cannot deadlock, because
    they wait for no other device.
    """
    found = _by_kind.get((platform, spans_devices))
    if found is None:
        bound = BOUNDS.get(platform, DEFAULT_BOUND) if spans_devices else DEFAULT_BOUND
        found = _by_kind[platform, spans_devices] = Backpressure(bound)
    return found
