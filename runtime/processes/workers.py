"""The index of this process among the program's processes, and messages between them.

Code that must run once per job, not once per process, calls `worker_group()`. A strategy of several
processes installs their group with `set_workers`. Before, the group is a single process.

Messages between workers are small and rare: texts under names, sent without the devices. Any thread
may send one while a step runs, so no message may be a collective of the devices. A name is used
once: the name of a repeated exchange ends in a count that is the same on all workers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # Any: JSON

from graphdist.ir.errors import GraphdistError


class WorkerTimeoutError(GraphdistError, TimeoutError):
    """A worker did not arrive in time, or did not send a message that other workers wait for."""


@dataclass(frozen=True)
class WorkerTimeouts:
    """How long workers wait for each other, in seconds; `gd.config` sets it.

    `start`: until all have connected. `silence`: until a silent worker counts as dead. `step`: for
    the end of a step and, at the end of worker 0, for the other workers; None means for ever.
    """

    start: float = 300.0
    silence: float = 60.0
    step: float | None = 1800.0


class Workers:
    """The processes that run the program: here one process, in a subclass the workers of a cluster.

    >>> alone = Workers()
    >>> alone.publish("step", "3")
    >>> alone.heard("step", timeout_seconds=0)
    '3'
    """

    index = 0
    """The index of this process."""
    count = 1
    """The number of processes."""

    def __init__(self) -> None:
        """Start without texts."""
        self._said: dict[str, str] = {}

    def publish(self, name: str, value: str) -> None:
        """Send a text to all workers; only the first text under a name is kept."""
        self._said.setdefault(name, value)

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return the text under a name; None if it does not arrive in time.

        With several workers this may raise an error earlier, if a worker has failed.
        """
        deadline = time.monotonic() + timeout_seconds
        while name not in self._said and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._said.get(name)

    def heard_from(self, worker: int, name: str, timeout_seconds: float) -> str | None:
        """Return a worker's text under a name; None if it does not arrive in time.

        With several workers this may raise an error earlier, if the worker sends no more messages.
        A worker that has failed may still answer, for example to finish a checkpoint.
        """
        return self.heard(f"{name}/{worker}", timeout_seconds)


_workers: Workers = Workers()


def worker_group() -> Workers:
    """Return the group of processes of this job.

    >>> worker_group().index, worker_group().count
    (0, 1)
    """
    return _workers


def set_workers(others: Workers) -> Workers:
    """Install the group that `worker_group()` returns, and return the former group."""
    global _workers
    before, _workers = _workers, others
    return before


def exchange(group: Workers, name: str, value: Any, seconds: float, doing: str) -> list[Any]:
    """Return the JSON values of all workers, which arrive within `seconds`.

    `doing` says in errors what the workers do.

    Raises `WorkerTimeoutError` for a worker that sends nothing, and the errors of
    `Workers.heard_from` for a worker that is gone.

    >>> exchange(Workers(), "greeting", "hello", seconds=1, doing="workers start")
    ['hello']
    """
    if group.count == 1:
        return [value]
    group.publish(f"{name}/{group.index}", json.dumps(value))
    answers = []
    for worker in range(group.count):
        heard = group.heard_from(worker, name, seconds)
        if heard is None:
            raise WorkerTimeoutError(
                f"worker {worker} of {group.count} said nothing within {seconds:g} s, "
                f"while {doing}",
                hint="it may be dead or stopped: restart from the last checkpoint",
            )
        answers.append(json.loads(heard))
    return answers


def first_different(values: Sequence[object]) -> int | None:
    """Return the first worker whose value differs from worker 0's; None if all are equal.

    >>> first_different([1, 1, 2])
    2
    """
    return next((worker for worker, value in enumerate(values) if value != values[0]), None)
