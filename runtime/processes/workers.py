"""Which of the program's processes this one is, and the messages between them.

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
    """A worker did not arrive, or did not send what others wait for, in time."""


class Workers(Protocol):
    """The processes that run the program, seen from one of them."""

    @property
    def index(self) -> int:
        """Return the number of this process."""
        ...

    @property
    def count(self) -> int:
        """Return the number of processes."""
        ...

    def publish(self, name: str, value: str) -> None:
        """Send a text to all; the first text under a name stays, later ones are dropped."""
        ...

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Wait for the text under a name and return it; None if there is none in time.

        May raise an error of its own earlier, when it learns that a worker has failed.
        """
        ...

    def heard_from(self, worker: int, name: str, timeout_seconds: float) -> str | None:
        """Wait for a worker's text under a name and return it; None if there is none in time.

        May raise an error of its own earlier, when it learns that this worker says nothing more. A
        worker that has failed may still answer, as with the rest of a checkpoint.
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
        """Start without texts."""
        self._said: dict[str, str] = {}

    def publish(self, name: str, value: str) -> None:
        """Keep the first text under a name."""
        self._said.setdefault(name, value)

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return the text under a name; None if there is none in time."""
        deadline = time.monotonic() + timeout_seconds
        while name not in self._said and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._said.get(name)

    def heard_from(self, worker: int, name: str, timeout_seconds: float) -> str | None:
        """Return the text of a worker under a name; None if there is none in time."""
        return self.heard(f"{name}/{worker}", timeout_seconds)


_workers: Workers = OneWorker()


def worker_group() -> Workers:
    """Return which process this is, of how many.

    >>> worker_group().index, worker_group().count
    (0, 1)
    """
    return _workers


def set_workers(others: Workers) -> Workers:
    """Install the group that `worker_group()` returns, and return the one before."""
    global _workers
    before, _workers = _workers, others
    return before


def exchange(group: Workers, name: str, said: str, timeout_seconds: float, doing: str) -> list[str]:
    """Return the texts of all workers, once they have arrived; an error says `doing` what.

    Raises `WorkerTimeoutError` for a worker that sends nothing, and what `Workers.heard_from`
    raises for one that is gone.

    >>> exchange(OneWorker(), "greeting", "hello", timeout_seconds=1, doing="workers start")
    ['hello']
    """
    group.publish(f"{name}/{group.index}", said)
    answers: list[str] = []
    for worker in range(group.count):
        heard = group.heard_from(worker, name, timeout_seconds)
        if heard is None:
            raise WorkerTimeoutError(
                f"worker {worker} of {group.count} said nothing within {timeout_seconds:g} s, "
                f"while {doing}",
                hint="it may be dead or stopped: restart from the last checkpoint",
            )
        answers.append(heard)
    return answers
