"""How this process joins the workers of a cluster: once, for all of its strategies."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import replace

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.processes.addresses import ReservedPort, WorkerError, join_address
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.jax_service import JaxService
from graphdist.runtime.processes.workers import set_workers, worker_group


def current_workers() -> ClusterWorkers | None:
    """Return the workers of this process's cluster, None without a cluster."""
    group = worker_group()
    return group if isinstance(group, ClusterWorkers) else None


def join_cluster(
    described: ClusterWorkers, at: Source = UNKNOWN, jax_service: JaxService | None = None
) -> ClusterWorkers:
    """Connect this process to the workers `described`, or return its workers if it has connected.

    `jax_service` is the connection to JAX's service if this package made one already. Raises
    `WorkerError` if the process belongs to another cluster.
    """
    workers = current_workers()
    if workers is None:
        described.start(at, jax_service)
        set_workers(described)
        return described
    if (workers.addresses, workers.index) != (described.addresses, described.index):
        raise WorkerError(
            f"this process is {workers.name(workers.index)} of {len(workers)} already, and cannot "
            f"be worker {described.index} of {len(described)} too",
            source=at,
            hint="give all strategies of a process the same cluster",
        )
    return workers


def shared_server(
    job: JobIdentity, host: str, index: int, share: Callable[[str], str]
) -> tuple[str, JobIdentity]:
    """Return the address of worker 0's server, and the job with the token that all workers have.

    Worker 0 chooses a port of its address `host` and, unless the job has one, a token. `share`
    returns worker 0's text in all workers.
    """
    port = ReservedPort(host) if index == 0 else None
    # A token that all workers have is not sent.
    token = "" if job.token else secrets.token_hex(16)
    announced = {"server": join_address(host, port.number), "token": token} if port else {}
    first = json.loads(share(json.dumps(announced)))
    if port is not None:
        port.close()
    return first["server"], replace(job, token=job.token or first["token"])
