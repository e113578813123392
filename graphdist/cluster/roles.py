"""The role of each process of a cluster: which process is chief, and the order of workers.

A cluster has jobs `chief` (at most one task), `worker`, `ps` and `evaluator` (at most one). The
chief is the task of that job or, without one, worker 0. Workers are the chief and the tasks of
`worker`, in this order. The evaluator is on its own. These are `tf.distribute`'s rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: a cluster before it is checked

from graphdist.cluster.spec import ClusterSpec
from graphdist.errors import ArgumentError, ClusterError
from graphdist.quoted import quoted
from graphdist.runtime.processes.addresses import split_address
from graphdist.tracing.user_lines import here
from graphdist.whole_numbers import whole_number

JOBS = ("chief", "worker", "evaluator", "ps")
ALONE = ("chief", "evaluator")
"""The jobs that have at most one task."""


def checked_cluster(cluster: Any, task_type: str | None, task_id: int | None) -> ClusterSpec:
    """Return the cluster; raises `ArgumentError` for an invalid cluster, or a task not in it.

    An evaluator need not be in the cluster, since no task waits for evaluators.
    """
    spec = ClusterSpec(cluster)
    if task_id is not None:
        whole_number(task_id, "the index of this process's task")
    for kind in (*spec.jobs, *([task_type] if task_type is not None else [])):
        if kind not in JOBS:
            raise ArgumentError(f"a task of kind {quoted(kind)}: there are {', '.join(JOBS)}")
    if task_type is not None and task_type not in spec.jobs and task_type != "evaluator":
        raise ArgumentError(f"the cluster has no {task_type!r}: {quoted(spec, 400)}")
    for kind in ALONE:
        if kind in spec.jobs and spec.num_tasks(kind) > 1:
            raise ArgumentError(
                f"the cluster has {spec.num_tasks(kind)} tasks of kind {kind!r}: one at most"
            )
    if task_type in spec.jobs and task_id not in spec.task_indices(str(task_type)):
        last = spec.num_tasks(str(task_type)) - 1
        raise ArgumentError(
            f"this process is {task_type} {task_id}, the last {task_type} of the cluster is {last}"
        )
    return spec


def is_chief(cluster: Any, task_type: str | None, task_id: int | None) -> bool:
    """Return whether a task is the chief, which does the work that must be done once.

    >>> is_chief({"worker": ["a:1", "b:1"]}, "worker", 0)
    True
    """
    spec = checked_cluster(cluster, task_type, task_id)
    return task_type in ALONE or (
        "chief" not in spec.jobs and task_type == "worker" and task_id == 0
    )


def worker_count(cluster: Any, task_type: str | None) -> int:
    """Return the number of workers with the chief; for an evaluator, the number of evaluators.

    Raises `ArgumentError` for the kind `ps`, `ClusterError` for an evaluator not in the cluster.

    >>> worker_count({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker")
    3
    """
    spec = checked_cluster(cluster, task_type, 0)
    if task_type == "evaluator":
        if "evaluator" not in spec.jobs:
            raise ClusterError("the cluster has no 'evaluator' to count")
        return spec.num_tasks("evaluator")
    if task_type not in ("chief", "worker"):
        raise ArgumentError(f"a task of kind {task_type!r} is no worker")
    return sum(spec.num_tasks(kind) for kind in ("chief", "worker") if kind in spec.jobs)


def id_in_cluster(cluster: Any, task_type: str | None, task_id: int | None) -> int:
    """Return the index of a worker, where the chief has 0; raises `ArgumentError` for a `ps`.

    >>> id_in_cluster({"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "worker", 1)
    2
    """
    spec = checked_cluster(cluster, task_type, task_id)
    if task_type == "chief":
        return 0
    if task_type not in ("worker", "evaluator"):
        raise ArgumentError(f"a task of kind {task_type!r} has no index among workers")
    if task_type == "evaluator" or task_id is None:
        return task_id or 0
    before = spec.num_tasks("chief") if "chief" in spec.jobs else 0
    return before + spec.task_indices("worker").index(task_id)  # indices may have gaps


def worker_addresses(cluster: Any) -> list[str]:
    """Return the addresses of the workers, in order.

    For several workers, raises `ArgumentError` for an address that two workers have, and
    `WorkerError` for an address that is not like "host:port".

    >>> worker_addresses({"worker": ["b:1", "c:1"], "chief": ["a:1"]})
    ['a:1', 'b:1', 'c:1']
    """
    spec = ClusterSpec(cluster)
    addresses = [
        spec.task_address(kind, index)
        for kind in ("chief", "worker")
        if kind in spec.jobs
        for index in spec.task_indices(kind)
    ]
    if len(addresses) > 1:
        _check(addresses)
    return addresses


def _check(addresses: Sequence[str]) -> None:
    workers: dict[tuple[str, int], int] = {}
    for worker, address in enumerate(addresses):
        host, port = split_address(address, here())
        first = workers.setdefault((host.lower().rstrip("."), port), worker)
        if first != worker:
            raise ArgumentError(
                f"worker {first} ({addresses[first]}) and worker {worker} ({address}) have the "
                f"same address",
                hint="give each worker a port of its own, if they are on one machine",
            )


def collective_leader(cluster: Any, task_type: str | None, task_id: int | None) -> str:
    """Return the device name of the task that leads collectives; "" for an evaluator."""
    spec = ClusterSpec(cluster)
    if spec:
        checked_cluster(spec, task_type, task_id)
    return "" if task_type == "evaluator" else _first_of(spec, "chief", "worker")


def coordination_leader(cluster: Any) -> str:
    """Return the device name of the task with the coordination service; "" without a cluster."""
    return _first_of(ClusterSpec(cluster), "ps", "chief", "worker")


def _first_of(spec: ClusterSpec, *kinds: str) -> str:
    """Return the device name of the first task of the first of these jobs; "" without a cluster."""
    if not spec:
        return ""
    kind = next((kind for kind in kinds if kind in spec.jobs), None)
    if kind is None:
        raise ArgumentError(f"the cluster has no worker: {quoted(spec, 400)}")
    return f"/job:{kind}/replica:0/task:0"
