"""The processes that JAX connects already, as the workers of a job.

A program or its launcher may have called `jax.distributed.initialize`: Ray Train and most scripts
for JAX do. Then JAX knows the processes, and this package adds its own coordination, which notices
failures at once. The processes exchange their names, the address of worker 0's server and a token
by collectives of the devices.
"""

from __future__ import annotations

import json
import os
import socket
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.processes.abandonable_calls import called_while
from graphdist.runtime.processes.addresses import WorkerError, address_towards
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.jax_service import JaxService
from graphdist.runtime.processes.joining import current_workers, join_cluster, shared_server
from graphdist.runtime.processes.workers import WorkerTimeouts

_BYTES_OF_TEXT = 512


def is_one_of_several() -> bool:
    """Return whether JAX connects this process with others."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def join_processes_of_jax(
    timeouts: WorkerTimeouts,
    job: JobIdentity,
    service: JaxService | None = None,
    at: Source = UNKNOWN,
) -> ClusterWorkers:
    """Connect the processes of JAX as workers, and return them; a process connects once.

    `service` is the connection to JAX's service if this package made it. Raises `WorkerError` if
    not all processes call this function in time.
    """
    workers = current_workers()
    if workers is not None:
        return workers
    index = jax.process_index()
    own = {"host": socket.gethostname(), "process": os.getpid()}
    deadline = time.monotonic() + timeouts.start

    def exchanged() -> tuple[list[str], str, JobIdentity]:
        every = [json.loads(text) for text in _of_all(json.dumps(own))]
        names = [f"{process['host']}, process {process['process']}" for process in every]
        hosts = [process["host"] for process in every]
        others = [host for host in hosts if host != hosts[0]]
        host = (others and index == 0 and address_towards(others[0])) or "127.0.0.1"
        return names, *shared_server(job, host, index, lambda text: _of_all(text)[0])

    def check() -> None:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"JAX has {jax.process_count()} processes, and not all made a strategy of all "
                f"workers within {timeouts.start:g} s",
                source=at,
                hint="make the strategy in every process, with the same code",
            )

    names, server, shared_job = called_while(check, exchanged, lambda: None)
    described = ClusterWorkers(names, index, timeouts, shared_job, server=server)
    return join_cluster(described, at, service)


def _of_all(text: str) -> list[str]:
    """Return the texts of all processes, in their order."""
    data = text.encode().ljust(_BYTES_OF_TEXT)
    rows = multihost_utils.process_allgather(np.frombuffer(data, np.uint8))
    return [bytes(row).decode().strip() for row in np.asarray(rows)]
