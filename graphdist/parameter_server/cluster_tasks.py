"""How many workers and servers a cluster has."""

from __future__ import annotations

from typing import Any  # Any: users' resolvers

from graphdist.cluster.resolver import ClusterResolver
from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name
from graphdist.whole_numbers import whole_number

JOBS = ("chief", "evaluator", "ps", "worker")


def counts_of_tasks(resolver: Any, num_workers: int, num_servers: int) -> tuple[int, int]:
    """Return the numbers of workers and servers; raises as `ParameterServerStrategy` says."""
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
            source=here(),
            hint="leave it out for workers on this machine",
        )
    for job in found:
        if job not in JOBS:
            raise ArgumentError(
                f"the cluster has a job {job!r}: the jobs are {', '.join(JOBS)}", source=here()
            )
    if found.get("chief", 0) > 1:
        raise ArgumentError(f"the cluster has {found['chief']} chiefs", source=here())
    for job in ("worker", "ps"):
        if found.get(job, 0) < 1:
            raise ArgumentError(
                f"the cluster has no {job!r}: it takes one worker and one ps at least",
                source=here(),
                hint='name them: gd.cluster.ClusterSpec({"worker": [...], "ps": [...]})',
            )
    return found["worker"], found["ps"]
