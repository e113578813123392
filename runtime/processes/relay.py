"""A relay between JAX's coordination client and its service, which hides the service's end.

JAX's client ends the process, without an exception, as soon as its connection to the service
breaks, and the service runs in worker 0. So on every other worker the client connects to a port of
its own process, and the relay forwards the client's bytes to the service. When the service is gone,
the client's connection stays open and silent, and `cluster_workers.py` reports the failure. JAX
only gives up when its heartbeats get no answer for too long.

One thread owns all connections. There are few bytes to forward, most of them at the start of JAX
and of collectives. Other programs of this machine can connect too, so the number of connections is
limited, and further connections are closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from graphdist.runtime.processes.event_loop import EventLoopThread, accepted, ready

CHUNK_BYTES = 1 << 16
SECONDS_TO_CONNECT = 1.0
MAX_CONNECTIONS = 16


class Relay(EventLoopThread):
    """Accepts connections at a port of this process, and forwards them to an address."""

    def __init__(self, host: str, port: int, crashed: Callable[[str], None]) -> None:
        """Listen on loopback, for connections that are forwarded to a host and port."""
        super().__init__("relay", socket.create_server(("127.0.0.1", 0)), crashed)
        self._service = host, port
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        """The address to which JAX's client connects instead of the service's."""
        self._has_connected = False
        self._num_clients = 0

    async def serve(self) -> None:
        """Accept connections, and forward their bytes, until the task is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                client = await accepted(self.listener)
                if self._num_clients < MAX_CONNECTIONS:
                    self._num_clients += 1
                    tasks.create_task(self._serve_client(client))
                else:
                    client.close()

    async def _serve_client(self, client: socket.socket) -> None:
        """Forward between a client and the service until the client ends."""
        with client, ready(socket.socket(self._family)) as service:
            with suppress(OSError):
                async with asyncio.timeout(SECONDS_TO_CONNECT):
                    await asyncio.get_running_loop().sock_connect(service, self._service)
                self._has_connected = True
            if self._has_connected:  # if not, the service has not started: the client tries again
                async with asyncio.TaskGroup() as tasks:
                    answers = tasks.create_task(_forward(service, client))
                    await _forward(client, service)
                    answers.cancel()
        self._num_clients -= 1


async def _forward(source: socket.socket, target: socket.socket) -> None:
    """Forward bytes until the source ends; bytes for a target that has ended are dropped."""
    loop = asyncio.get_running_loop()
    with suppress(OSError):
        while chunk := await loop.sock_recv(source, CHUNK_BYTES):
            with suppress(OSError):
                await loop.sock_sendall(target, chunk)
