"""How this process joins the workers of a cluster: once, for all of its strategies."""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.jax_service import JaxService
from graphdist.runtime.processes.workers import WorkerTimeouts, set_workers, worker_group


def current_workers() -> ClusterWorkers | None:
    """Return the workers of this process's cluster, None without a cluster."""
    group = worker_group()
    return group if isinstance(group, ClusterWorkers) else None


def join_named(
    names: Sequence[str],
    index: int,
    server: str,
    timeouts: WorkerTimeouts,
    job: JobIdentity,
    jax_service: JaxService | None = None,
    at: Source = UNKNOWN,
) -> ClusterWorkers:
    """Connect to workers of which only the address of worker 0's server is known; return them.

    `jax_service` is the connection to JAX's service if this package made one already.
    """
    workers = ClusterWorkers(names, index, timeouts, job, server=server)
    workers.start(at, jax_service)
    set_workers(workers)
    return workers


def join_workers(
    addresses: Sequence[str],
    index: int,
    timeouts: WorkerTimeouts,
    job: JobIdentity,
    bind: str = "",
    at: Source = UNKNOWN,
) -> ClusterWorkers:
    """Return the workers at these addresses; this process has the index `index`.

    A process connects once. Raises `WorkerError` if it belongs to another cluster already.
    """
    workers = current_workers()
    if workers is None:
        workers = ClusterWorkers(addresses, index, timeouts, job, bind)
        workers.start(at)
        set_workers(workers)
    elif (workers.addresses, workers.index) != (tuple(addresses), index):
        raise WorkerError(
            f"this process is {workers.name(workers.index)} of {len(workers)} already, and cannot "
            f"be worker {index} of {len(addresses)} too",
            source=at,
            hint="give all strategies of a process the same cluster",
        )
    return workers
