"""A relay between JAX's coordination client and its service, which hides the service's end.

JAX's client ends the process, without an exception, as soon as its connection to the service
breaks, and the service runs in worker 0. So on every other worker the client connects to a port of
its own process, and the relay forwards its bytes to the service. When the service is gone, the
client's side stays open and silent: `cluster_workers.py` reports the failure. JAX only gives up
when its heartbeats get no answer for too long.

One thread owns all connections. There are few bytes to forward, most of them at the start of JAX
and of collectives. Other programs of this machine can connect too, so the number of connections is
limited, and further ones are closed.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

CHUNK_BYTES = 1 << 16
SECONDS_TO_CONNECT = 1.0
MAX_CONNECTIONS = 16
_SECONDS_AFTER_REFUSAL = 0.05


class _End:
    """One end of a relayed connection, and its unsent bytes."""

    def __init__(self, stream: socket.socket, *, is_client: bool) -> None:
        self.stream, self.is_client = stream, is_client
        self.unsent = bytearray()
        self.other: _End | None = None
        """The end that received bytes are forwarded to; None once the service is gone."""


class Relay(threading.Thread):
    """Forwards connections to a port of this process to an address, until `stop`.

    If it fails, it passes the reason to `crashed`, on this thread.
    """

    def __init__(self, host: str, port: int, crashed: Callable[[str], None]) -> None:
        """Listen on loopback, for connections that are forwarded to a host and port."""
        super().__init__(name="graphdist-relay", daemon=True)
        self._service, self._crashed = (host, port), crashed
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_stopped = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """The address to connect to instead."""
        self._has_connected = False
        self._num_clients = 0

    def run(self) -> None:
        """Forward bytes."""
        try:
            while not self._is_stopped:
                for key, events in self._selector.select(timeout=0.5):
                    if key.data is None:
                        self._accept()
                    else:
                        self._serve(key.data, events)
        except Exception as error:
            self._crashed(f"its relay failed: {type(error).__name__}: {error}")
        for key in list(self._selector.get_map().values()):
            (self._listener if key.data is None else key.data.stream).close()
        self._selector.close()

    def stop(self) -> None:
        """End the thread soon, and with it the connections."""
        self._is_stopped = True

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            time.sleep(_SECONDS_AFTER_REFUSAL)  # out of files: `select` would report it again
            return
        if self._num_clients >= MAX_CONNECTIONS:
            stream.close()
            return
        client = _End(stream, is_client=True)
        try:
            service = _End(
                socket.create_connection(self._service, SECONDS_TO_CONNECT), is_client=False
            )
        except OSError:
            if not self._has_connected:  # the service has not started: the client tries again
                stream.close()
                return
        else:
            self._has_connected = True
            client.other, service.other = service, client
            self._register(service)
        self._register(client)

    def _register(self, end: _End) -> None:
        self._num_clients += end.is_client
        end.stream.setblocking(False)
        with suppress(OSError):  # macOS refuses it for a connection that has ended
            end.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(end.stream, selectors.EVENT_READ, end)

    def _serve(self, end: _End, events: int) -> None:
        if end.stream.fileno() < 0:
            return  # an earlier event of this round has closed it
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(end)
            if events & selectors.EVENT_READ:
                received = end.stream.recv(CHUNK_BYTES)
                if not received:
                    raise ConnectionResetError
                if end.other is not None:
                    end.other.unsent += received
                    self._serve(end.other, selectors.EVENT_WRITE)
        except OSError:
            self._lose(end)

    def _flush(self, end: _End) -> None:
        with suppress(BlockingIOError):
            while end.unsent:
                del end.unsent[: end.stream.send(end.unsent)]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if end.unsent else 0)
        self._selector.modify(end.stream, wanted, end)

    def _lose(self, end: _End) -> None:
        self._selector.unregister(end.stream)
        end.stream.close()
        self._num_clients -= end.is_client
        other, end.other = end.other, None
        if other is not None:
            other.other = None
            if end.is_client:
                self._lose(other)
