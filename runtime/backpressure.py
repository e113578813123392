"""How many steps may be on their way to the devices at once.

JAX dispatches without waiting. On CPU that is a trap: when two steps with collectives over several
devices are in flight on few cores, the threads of one can wait for the threads of the other for
ever, and XLA aborts the process after a minute. So a step waits until fewer than the platform's
bound are unfinished. On CPU the bound is 1; elsewhere the devices run steps in order, and the bound
only keeps the host from running so far ahead that inputs pile up in memory.

Several threads may wait for one step, and only one of them dispatches the next: it looks once more
whether there is room when it holds the lock of the variables, with which nobody waits.

A step's token is one of its outputs. If a later step has consumed it (it was a variable's buffer),
the next unfinished token stands for it. A step that failed is done: its error is kept for the next
step of its program, and is nothing to the program that happens to wait for it.
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
        """Allow `bound` unfinished steps."""
        self.bound = bound
        self.tokens: deque[tuple[jax.Array, list[Exception]]] = deque()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.tokens)

    def wait(self) -> None:
        """Return once another step may be dispatched, unless another thread does so first."""
        bound = self.bound
        while (first := self._unfinished(bound)) is not None:
            token, failures = first
            is_consumed = token.is_deleted()
            if not is_consumed:
                try:
                    token.block_until_ready()
                except Exception as error:
                    if not token.is_deleted():  # by another thread's step, meanwhile
                        failures.append(error)
            with self._lock:
                if self.tokens and self.tokens[0] is first:
                    self.tokens.popleft()
                if is_consumed:  # the next one stands for it, and is waited for in its place
                    bound = len(self.tokens) or bound

    def _unfinished(self, bound: int) -> tuple[jax.Array, list[Exception]] | None:
        """Return the oldest of so many steps, or None if there are fewer."""
        with self._lock:
            return self.tokens[0] if len(self.tokens) >= bound else None

    def dispatched(self, token: jax.Array, failures: list[Exception]) -> None:
        """Note a step that was dispatched, and where to put why it failed, if it does."""
        self.tokens.append((token, failures))


_by_kind: dict[tuple[str, bool], Backpressure] = {}


def backpressure(platform: str, *, spans_devices: bool) -> Backpressure:
    """Return the one bound on steps in flight of a platform, over several devices or on one.

    Steps on a single device wait for no other device, so that they need no such caution.
    """
    found = _by_kind.get((platform, spans_devices))
    if found is None:
        bound = BOUNDS.get(platform, DEFAULT_BOUND) if spans_devices else DEFAULT_BOUND
        found = _by_kind[platform, spans_devices] = Backpressure(bound)
    return found
