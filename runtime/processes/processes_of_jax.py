"""The processes that JAX connects already, as the workers of a job.

A program or its launcher may have called `jax.distributed.initialize`, as Ray Train and most
scripts for JAX do. Then JAX knows the processes, and this package adds its own
coordination, which notices failures at once: worker 0 chooses a port and a token, and sends them to
the others with the processes' names, by collectives of the devices.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np
from jax.experimental import multihost_utils

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.processes.abandonable_calls import called_while
from graphdist.runtime.processes.addresses import (
    ReservedPort,
    WorkerError,
    address_towards,
    join_address,
)
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.jax_service import JaxService
from graphdist.runtime.processes.joining import current_workers, join_named
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
    port: ReservedPort | None = None

    def exchanged() -> tuple[list[str], str, str]:
        nonlocal port
        every = [json.loads(text) for text in _of_all(json.dumps(own))]
        hosts = [process["host"] for process in every]
        server = ""
        if index == 0:
            others = [host for host in hosts if host != hosts[0]]
            host = (others and address_towards(others[0])) or "127.0.0.1"
            port = ReservedPort(host)
            server = join_address(host, port.number)
        # A token that all workers have is not sent.
        announced = {"server": server, "token": "" if job.token else secrets.token_hex(16)}
        first = json.loads(_of_all(json.dumps(announced))[0])
        names = [f"{process['host']}, process {process['process']}" for process in every]
        return names, first["server"], job.token or first["token"]

    names, server, token = _in_time(exchanged, timeouts.start, at)
    if port is not None:
        port.close()
    return join_named(names, index, server, timeouts, replace(job, token=token), service, at)


def _of_all(text: str) -> list[str]:
    """Return the texts of all processes, in their order."""
    data = text.encode().ljust(_BYTES_OF_TEXT)
    rows = multihost_utils.process_allgather(np.frombuffer(data, np.uint8))
    return [bytes(row).decode().strip() for row in np.asarray(rows)]


def _in_time(
    fn: Callable[[], tuple[list[str], str, str]], seconds: float, at: Source
) -> tuple[list[str], str, str]:
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise WorkerError(
                f"JAX has {jax.process_count()} processes, and not all made a strategy of all "
                f"workers within {seconds:g} s",
                source=at,
                hint="make the strategy in every process, with the same code",
            )

    return called_while(check, fn, lambda: None)
