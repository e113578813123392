"""Connections between servers and the processes that use their variables.

Ray starts the processes, and knows their addresses and whether they are alive. Values are sent over
separate sockets: a request of Ray's with a megabyte takes several milliseconds, mostly in its
object store, and each step makes two. A server listens on loopback if all processes are on one
machine.

Anyone who reaches the port can connect. So each connection has its own thread from the start, which
closes it unless the other end proves within seconds that it knows the strategy's key. The number of
strangers, which have not proved it yet, is bounded: the oldest is dropped for a new one. So
strangers can neither exhaust the server's files nor keep workers out.
"""

from __future__ import annotations

import logging
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, RLock, Thread
from typing import Any  # Any: requests and answers

from graphdist.errors import RuntimeFailure
from graphdist.parameter_server.channel import BadMessage, Channel

SECONDS_FOR_PROOF = 5.0
"""The time within which a stranger must prove that it knows the key, in seconds."""
MAX_STRANGERS = 64
_SECONDS_AFTER_REFUSAL = 0.05
_SECONDS_TO_CONNECT = 20.0
_log = logging.getLogger("graphdist")


class ServerIsSilent(Exception):
    """A server no longer answers; the text says why, such as "has died"."""


class RequestListener:
    """Answers requests on a thread for each process that connects."""

    def __init__(self, host: str, key: bytes, answer: Callable[[str, Any], Any]) -> None:
        """Listen, and call `answer` with the name and the arguments of each request."""
        self._listener = socket.create_server((host, 0), backlog=128)
        self._key, self._answer = key, answer
        self._strangers: dict[socket.socket, None] = {}  # in the order of connection
        self._lock = Lock()
        """Held while strangers are added or removed."""
        Thread(target=self._accept, daemon=True, name="graphdist-requests").start()

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def _accept(self) -> None:
        while True:
            try:
                stream, (peer, *_) = self._listener.accept()
                self._drop_oldest(MAX_STRANGERS - 1)
                with self._lock:
                    self._strangers[stream] = None
                self._begin(stream, str(peer))
            except Exception as error:  # out of files or threads, most likely
                _log.warning("parameter server: a connection was not accepted: %s", error)
                self._drop_oldest(MAX_STRANGERS // 2)
                time.sleep(_SECONDS_AFTER_REFUSAL)

    def _begin(self, stream: socket.socket, peer: str) -> None:
        try:
            Thread(target=self._serve, args=(stream, peer), daemon=True).start()
        except BaseException:
            self._forget(stream)
            stream.close()
            raise

    def _drop_oldest(self, most: int) -> None:
        with self._lock:
            for stream in list(self._strangers)[: max(0, len(self._strangers) - most)]:
                del self._strangers[stream]
                with suppress(OSError):  # its thread alone closes it, since the number of a
                    stream.shutdown(socket.SHUT_RDWR)  # closed file may be reused at once

    def _forget(self, stream: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(stream, None)

    def _serve(self, stream: socket.socket, peer: str) -> None:
        try:
            channel = Channel(stream, lambda: None)
            channel.deadline = time.monotonic() + SECONDS_FOR_PROOF
            channel.require_proof(self._key)
            channel.deadline = float("inf")
            self._forget(stream)
            while True:
                name, arguments = channel.receive()
                self._send_answer(channel, name, arguments)
        except (EOFError, OSError):
            pass
        except Exception as error:
            _log.warning("parameter server: the connection of %s was ended: %s", peer, error)
        finally:
            self._forget(stream)
            stream.close()

    def _send_answer(self, channel: Channel, name: str, arguments: Any) -> None:
        try:
            answer = True, self._answer(name, arguments)
        except Exception as error:
            answer = False, error
        try:
            channel.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError):  # raised before anything is sent
            found = answer[1]
            channel.send((False, RuntimeFailure(f"{type(found).__name__}: {found}")))


class ServerConnection:
    """A process's connection to one server, which is opened on first use."""

    def __init__(
        self, address: Callable[[], tuple[str, int]], problem: Callable[[], str], key: bytes
    ) -> None:
        """Keep functions that return the server's address, and its problem ("" if none)."""
        self._find, self._problem, self._key = address, problem, key
        self._address: tuple[str, int] | None = None
        self._channel: Channel | None = None
        self._lost_at, self._why = float("-inf"), ""
        """The time at which the server was found lost, and the reason."""
        self._lock = RLock()

    @contextmanager
    def held(self, since: float) -> Iterator[None]:
        """Lock the connection for one thread, from its request to the answer.

        Raises `ServerIsSilent` if another thread has found the server lost after `since`, in
        seconds of `time.monotonic`, so that only one of many waiting threads has to find out.
        """
        with self._lock:
            if self._lost_at > since:
                raise ServerIsSilent(self._why)
            yield

    def request(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Send a request; raise `ServerIsSilent` if the server is lost."""
        try:
            if self._channel is None:
                self._channel = self._open()
            self._channel.send((name, arguments))
        except (EOFError, OSError, BadMessage) as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def answer(self) -> Any:
        """Return the answer to the request, or raise the error that is the answer."""
        assert self._channel is not None, "there was a request"
        try:
            is_answer, value = self._channel.receive()
        except (EOFError, OSError, BadMessage) as error:
            raise self._lost(error) from error
        if not is_answer:
            raise value
        return value

    def _open(self) -> Channel:
        # The address is found once: a server that has started needs no time to start again.
        self._address = self._address or self._find()
        stream = socket.create_connection(self._address, _SECONDS_TO_CONNECT)
        try:
            channel = Channel(stream, self._require_alive)
            channel.prove(self._key)
        except BaseException:
            stream.close()
            raise
        return channel

    def _require_alive(self) -> None:
        """Raise `ServerIsSilent` unless the server is alive, and so still computing."""
        if problem := self._problem():
            raise self._silent(problem)

    def _lost(self, error: Exception) -> ServerIsSilent:
        """Return the error for a server whose connection has failed."""
        broken = f"cannot be reached, since its connection has failed ({error})"
        return self._silent(self._problem() or broken)

    def _silent(self, why: str) -> ServerIsSilent:
        self._lost_at, self._why = time.monotonic(), why
        return ServerIsSilent(why)
