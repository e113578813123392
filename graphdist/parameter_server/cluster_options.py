"""The user's options of a cluster: the numbers of workers and servers, Ray's worker options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: values of users, and Ray's options

from graphdist.cluster.resolver import ClusterResolver
from graphdist.errors import ArgumentError
from graphdist.parameter_server.heartbeats import GROUP
from graphdist.parameter_server.ray_cluster import ray
from graphdist.values.distributed import type_name
from graphdist.whole_numbers import whole_number

JOBS = ("chief", "evaluator", "ps", "worker")
OWN: Mapping[str, Any] = {
    "max_restarts": -1,
    "max_task_retries": 0,
    "concurrency_groups": {GROUP: 1},
}
"""The options of all workers."""


def counts_of_tasks(resolver: Any, num_workers: int, num_servers: int) -> tuple[int, int]:
    """Return the numbers of workers and servers; raise errors as `ParameterServerStrategy`."""
    if resolver is None:
        found = {
            "worker": whole_number(num_workers, "num_workers"),
            "ps": whole_number(num_servers, "num_servers"),
        }
    elif isinstance(resolver, ClusterResolver):
        spec = resolver.cluster_spec()
        found = {job: spec.num_tasks(job) for job in spec.jobs}
    else:
        raise ArgumentError(
            f"cluster_resolver is of type {type_name(resolver)}, not a ClusterResolver",
            hint="leave it out for workers on this machine",
        )
    for job in found:
        if job not in JOBS:
            raise ArgumentError(f"the cluster has a job {job!r}: the jobs are {', '.join(JOBS)}")
    if found.get("chief", 0) > 1:
        raise ArgumentError(f"the cluster has {found['chief']} chiefs")
    for job in ("worker", "ps"):
        if found.get(job, 0) < 1:
            raise ArgumentError(
                f"the cluster has no {job!r}: it takes one worker and one ps at least",
                hint='name them: gd.cluster.ClusterSpec({"worker": [...], "ps": [...]})',
            )
    return found["worker"], found["ps"]


class _Actor:
    """A stand-in for a worker, since Ray checks options when it registers a class."""


def checked_worker_options(given: Any) -> dict[str, Any]:
    """Return the user's options; raise `ArgumentError` for options that Ray does not accept."""
    hint = 'worker_options are Ray\'s options of an actor, such as {"num_gpus": 1}'
    if not isinstance(given, Mapping | None):
        raise ArgumentError(f"worker_options is of type {type_name(given)}, not a dict", hint=hint)
    options = dict(given or {})
    for name, value in OWN.items():
        if name in options:
            raise ArgumentError(
                f"worker_options has {name!r}, which is {value!r} for all workers",
                hint="leave it out",
            )
    module = ray()
    try:
        module.remote(**OWN, **options)(_Actor)
    except (TypeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise ArgumentError(
            f"Ray does not take these worker_options: {first_line}", hint=hint
        ) from error
    return options
