"""Which of the processes that run the program this one is, and how they tell each other things.

`workers()` is the one place that says so: everything that is done once and not once a process asks
it. A strategy of several processes installs its own with `set_workers`; before that there is one.

What workers say to each other is small and rare, and goes past the devices: values under names, and
barriers. Any thread may call, also while a step runs, so nothing here may be a collective of the
devices. A name is used once: whoever waits for one made up of a counter finds what was said for it.
"""

from __future__ import annotations

import time
from typing import Protocol

from graphdist.ir.errors import GraphdistError


class WorkerTimeoutError(GraphdistError, TimeoutError):
    """A worker that did not come, or say what others wait for, within the time."""


class Workers(Protocol):
    """The processes that run the program, as one of them sees them."""

    @property
    def index(self) -> int:
        """Return the number of this one."""
        ...

    @property
    def count(self) -> int:
        """Return how many there are."""
        ...

    def publish(self, name: str, value: str) -> None:
        """Say something to all; what was said before under a name stays, and this is dropped."""
        ...

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return what was said under a name, once it is; None if nothing is within the time."""
        ...

    def barrier(self, name: str, timeout_seconds: float) -> None:
        """Return once all workers have come; raises `WorkerTimeoutError` if one does not."""
        ...


class OneWorker:
    """The only process.

    >>> alone = OneWorker()
    >>> alone.publish("step", "3")
    >>> alone.heard("step", timeout_seconds=0)
    '3'
    """

    index = 0
    count = 1

    def __init__(self) -> None:
        """Start with nothing said."""
        self._said: dict[str, str] = {}

    def publish(self, name: str, value: str) -> None:
        """Keep what is said first under a name."""
        self._said.setdefault(name, value)

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return what was said under a name."""
        deadline = time.monotonic() + timeout_seconds
        while name not in self._said and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._said.get(name)

    def barrier(self, name: str, timeout_seconds: float) -> None:
        """Return: all are here."""


_workers: Workers = OneWorker()


def workers() -> Workers:
    """Return which process this is, of how many.

    >>> workers().index, workers().count
    (0, 1)
    """
    return _workers


def set_workers(others: Workers) -> Workers:
    """Install what `workers()` returns, and return what it was."""
    global _workers
    before, _workers = _workers, others
    return before
