"""Which of the processes that run the program this one is, and how they tell each other things.

`worker_group()` is the only place that knows. Code that must run once per job, and not once per
process, asks it. A strategy of several processes installs its own group with `set_workers`; before
that the group is a single process.

Messages between workers are small and rare: texts under names, which do not pass through the
devices. Any thread may send one while a step runs, so nothing here may be a device collective. A
name is used once: the name of a repeated exchange ends in a number that all workers count alike.
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
        """Return what was said under a name, once it is; None if nothing is within the time.

        May raise an error of its own before that, if it learns that a worker is gone.
        """
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


_workers: Workers = OneWorker()


def worker_group() -> Workers:
    """Return which process this is, of how many.

    >>> worker_group().index, worker_group().count
    (0, 1)
    """
    return _workers


def set_workers(others: Workers) -> Workers:
    """Install what `worker_group()` returns, and return what it was."""
    global _workers
    before, _workers = _workers, others
    return before


def exchange(group: Workers, name: str, said: str, timeout_seconds: float, doing: str) -> list[str]:
    """Return what each worker says, once all have; `doing` is what for, in an error.

    Raises `WorkerTimeoutError` if one says nothing.

    >>> exchange(OneWorker(), "greeting", "hello", timeout_seconds=1, doing="workers meet")
    ['hello']
    """
    group.publish(f"{name}/{group.index}", said)
    answers: list[str] = []
    for worker in range(group.count):
        heard = group.heard(f"{name}/{worker}", timeout_seconds)
        if heard is None:
            raise WorkerTimeoutError(
                f"worker {worker} of {group.count} said nothing within {timeout_seconds:g} s, "
                f"while {doing}",
                hint="it may be dead or stopped: restart from the last checkpoint",
            )
        answers.append(heard)
    return answers
