"""A relay between JAX's coordination client and its service: JAX does not see the service go.

JAX's client ends the process, without an exception, as soon as its connection to the service
breaks, and the service is in worker 0. So on every other worker the client is given a port of this
process, and what comes there is passed on to the service. Once JAX runs (`hides_loss`), and the
service is gone, the client's side stays open and silent: the failure is ours to tell
(`processes.py`). JAX gives up by itself when its heartbeats have had no answer for their time.

One thread passes everything on; it is little, and all of it belongs to the start of JAX and of
collectives.
"""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress

CHUNK_BYTES = 1 << 16
SECONDS_TO_CONNECT = 1.0


class _End:
    """One of the two connections that belong together, and what is to be sent on it."""

    def __init__(self, stream: socket.socket, *, is_client: bool) -> None:
        self.stream, self.is_client = stream, is_client
        self.unsent = bytearray()
        self.other: _End | None = None
        """Where to pass on what is read; None once the service is gone."""


class Relay(threading.Thread):
    """Passes connections to a port of this process on to an address, until `stop`."""

    def __init__(self, host: str, port: int) -> None:
        """Listen on loopback, for connections to be passed on to a host and port."""
        super().__init__(name="graphdist-relay", daemon=True)
        self._service = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._is_stopped = False
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """Where to connect to instead."""
        self.hides_loss = False
        """Whether a service that goes is kept from the client."""
        self._is_lost = False

    def run(self) -> None:
        """Pass on."""
        while not self._is_stopped:
            for key, events in self._selector.select(timeout=0.5):
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data, events)
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
            return
        client = _End(stream, is_client=True)
        if not self._is_lost:
            try:
                service = _End(
                    socket.create_connection(self._service, SECONDS_TO_CONNECT), is_client=False
                )
            except OSError:  # not there yet: the client tries again
                stream.close()
                return
            client.other, service.other = service, client
            self._register(service)
        self._register(client)

    def _register(self, end: _End) -> None:
        end.stream.setblocking(False)
        end.stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(end.stream, selectors.EVENT_READ, end)

    def _serve(self, end: _End, events: int) -> None:
        if end.stream.fileno() < 0:
            return  # lost since it was selected
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
        other, end.other = end.other, None
        if other is not None:
            other.other = None
            if self.hides_loss and not end.is_client:
                self._is_lost = True
            else:
                self._lose(other)
