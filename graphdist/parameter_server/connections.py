"""Connections between servers and the processes that use their variables.

Ray starts the processes, finds out where they are and whether they are alive. Values go over a
socket of their own: a request of Ray's with a megabyte costs several milliseconds, mostly in its
store of objects, and each step makes two. Both ends prove that they know the strategy's key, and a
server listens on loopback where all processes are on one machine.

A message is a pickle whose arrays follow it, uncopied. A request is complete or it is not carried
out: a worker that dies while it sends changes nothing.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from threading import RLock, Thread
from typing import Any  # Any: requests and answers

import numpy as np

_SECONDS_OF_SILENCE = 5.0
"""How long a server may be silent before Ray is asked whether it is alive."""
_COUNT = struct.Struct("!I")
_BYTES_UNDER_WAY = 4 << 20
"""The bytes that the system may keep between two processes."""


class ServerIsSilent(Exception):
    """A server has closed its connection, or it is dead."""


def send(connection: Connection, message: object) -> None:
    """Send a message."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    sizes = struct.pack(f"!I{len(views)}Q", len(views), *(view.nbytes for view in views))
    connection.send_bytes(sizes + head)
    for view in views:
        # Around the connection, which would copy what arrives, piece by piece.
        while view.nbytes:
            view = view[os.write(connection.fileno(), view) :]


def receive(connection: Connection) -> Any:
    """Return the next message; raises `EOFError` or `OSError` when there is none."""
    head = connection.recv_bytes()
    (count,) = _COUNT.unpack_from(head)
    sizes = struct.unpack_from(f"!{count}Q", head, _COUNT.size)
    buffers = [_received(connection, size) for size in sizes]
    return pickle.loads(memoryview(head)[_COUNT.size + 8 * count :], buffers=buffers)


def _received(connection: Connection, size: int) -> memoryview:
    found: memoryview = np.empty(size, np.uint8).data
    left = found
    while left.nbytes:
        count = os.readv(connection.fileno(), [left])
        if not count:
            raise EOFError
        left = left[count:]
    return found


class RequestListener:
    """Answers requests on a thread for each process that connects."""

    def __init__(self, host: str, key: bytes, answer: Callable[[str, Any], Any]) -> None:
        """Listen; `answer` is called with the name of a request and its arguments."""
        self._listener = Listener((host, 0), authkey=key, backlog=64)
        self._answer = answer
        Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port."""
        host, port = self._listener.address
        return str(host), int(port)

    def _accept(self) -> None:
        while True:
            with suppress(Exception):  # of a process without the key, or one that died meanwhile
                connection = self._listener.accept()
                Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Any) -> None:
        with suppress(EOFError, OSError), connection:
            _without_delay(connection)
            while True:
                name, arguments = receive(connection)
                try:
                    answer = True, self._answer(name, arguments)
                except Exception as error:
                    answer = False, error
                send(connection, answer)


class ServerConnection:
    """A process's connection to one server; it is opened when it is first used."""

    def __init__(
        self, address: Callable[[], tuple[str, int]], is_alive: Callable[[], bool], key: bytes
    ) -> None:
        """Take functions that find the server, and find out whether it is alive."""
        self._address, self._is_alive, self._key = address, is_alive, key
        self._connection: Any = None
        self.lock = RLock()
        """Held from a request to its answer."""

    def request(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Send a request; raises `ServerIsSilent`."""
        try:
            if self._connection is None:
                self._connection = Client(self._address(), authkey=self._key)
                _without_delay(self._connection)
            send(self._connection, (name, arguments))
        except (EOFError, OSError) as error:
            raise ServerIsSilent from error

    def close(self) -> None:
        """Close it; the next request opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def answer(self) -> Any:
        """Return the answer to the request, or raise the error that is the answer."""
        try:
            while not self._connection.poll(_SECONDS_OF_SILENCE):
                if not self._is_alive():
                    raise ServerIsSilent
            is_answer, value = receive(self._connection)
        except (EOFError, OSError) as error:
            raise ServerIsSilent from error
        if not is_answer:
            raise value
        return value


def _without_delay(connection: Any) -> None:
    """Send small messages at once, and large ones in large pieces."""
    with socket.socket(fileno=socket.dup(connection.fileno())) as found:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            found.setsockopt(socket.SOL_SOCKET, buffer, _BYTES_UNDER_WAY)
