"""The addresses of a cluster's processes, by job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias  # Any: what users pass, before it is checked

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.quoted import quoted, unquoted
from graphdist.values.distributed import type_name, wrong_type
from graphdist.whole_numbers import whole_number

Tasks: TypeAlias = "list[str] | dict[int, str]"
"""The addresses of one job: a list if task indices have no gap, otherwise a dict by index."""


class ClusterSpec:
    """A cluster: jobs by name, with the addresses of their tasks.

    Tasks are a list of addresses, or a dict by index, which may have gaps. Raises
    `ArgumentTypeError` for anything else, `ArgumentError` for a key that is no index.

    >>> cluster = ClusterSpec({"worker": ["a:1", "b:1"], "ps": {3: "p:1"}})
    >>> cluster.task_address("worker", 1)
    'b:1'
    >>> cluster.as_dict()
    {'worker': ['a:1', 'b:1'], 'ps': {3: 'p:1'}}
    """

    __hash__ = None  # type: ignore[assignment]  # equal to a dict, which has none

    def __init__(self, cluster: Any) -> None:
        """Keep the tasks of a dict of jobs, or of another spec."""
        if isinstance(cluster, ClusterSpec):
            cluster = cluster.as_dict()
        if not isinstance(cluster, Mapping):
            hint = 'write gd.cluster.ClusterSpec({"worker": ["host:port", ...]})'
            raise wrong_type("a cluster", cluster, "a dict of jobs", hint)
        self._jobs: dict[str, dict[int, str]] = {
            name: _addresses(name, tasks) for name, tasks in cluster.items()
        }

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ClusterSpec):
            return self._jobs == other._jobs
        return self._jobs == other or self.as_dict() == other

    def __repr__(self) -> str:
        jobs = ", ".join(f"{job!r}: {tasks!r}" for job, tasks in sorted(self.as_dict().items()))
        return f"ClusterSpec({{{jobs}}})"

    @property
    def jobs(self) -> list[str]:
        """Return the names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, Tasks]:
        """Return the addresses by job: a list if task indices have no gap, otherwise a dict."""
        return {
            job: list(tasks.values()) if tasks and max(tasks) + 1 == len(tasks) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of a job; raises `ArgumentError` for an unknown job."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of a job's tasks; raises `ArgumentError` for an unknown job."""
        return list(self._tasks(job_name))

    def task_address(self, job_name: str | None, task_index: int | None) -> str:
        """Return the address of a task; raises `ArgumentError` for an unknown task."""
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            raise ArgumentError(
                f"job {job_name!r} has no task {quoted(task_index)}: it has "
                f"{unquoted(', '.join(map(str, tasks)) or 'none')}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return a job's addresses in order, None for an index without a task.

        Raises `ArgumentError` for an unknown job.
        """
        tasks = self._tasks(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def _tasks(self, job_name: str | None) -> dict[int, str]:
        if job_name not in self._jobs:
            raise ArgumentError(
                f"the cluster has no job {quoted(job_name)}: it has "
                f"{', '.join(map(quoted, list(self._jobs)[:9])) or 'none'}"
            )
        return self._jobs[job_name]


def _addresses(job: Any, tasks: Any) -> dict[int, str]:
    """Return the addresses of a job by index; raise errors for a wrong name or wrong tasks."""
    if not isinstance(job, str):
        raise ArgumentTypeError(f"the name of a job is {quoted(job)}, not a string")
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise ArgumentTypeError(
            f"the tasks of job {quoted(job)} are of type {type_name(tasks)}, not a list of "
            f"addresses or a dict of them by index"
        )
    addresses: dict[int, str] = {}
    for key, address in tasks.items():
        index = whole_number(key, f"the index of a task of job {quoted(job)}")
        if index in addresses:
            raise ArgumentError(f"job {quoted(job)} has the task {index} twice")
        if not isinstance(address, str):
            raise ArgumentTypeError(
                f"an address in job {quoted(job)} is {quoted(address)}, not a string like "
                f"'host:port'"
            )
        addresses[index] = address
    return dict(sorted(addresses.items()))
