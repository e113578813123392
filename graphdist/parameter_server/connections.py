"""Connections between servers and the processes that use their variables.

Ray starts the processes, and knows their addresses and whether they are alive. Values are sent over
separate sockets: a request of Ray's with a megabyte takes several milliseconds, and each step makes
two. `docs/decisions.md` has the figures, also of sizes where Ray wins. A server listens on loopback
if the cluster was started by graphdist, on this machine.

Anyone who reaches the port can connect. So each connection has its own thread from the start, which
closes it unless the other end proves within seconds that it knows the strategy's key. The number of
strangers, which have not proved it yet, is bounded: the oldest is dropped for a new one. So
strangers can neither exhaust the server's files nor keep workers out.

A message is a pickle, after which its arrays follow, uncopied. A header states the number of arrays
and of bytes. It is not trusted: memory is filled only as bytes arrive, and an invalid message ends
the connection. An incomplete request is not run.

Both ends first prove that they know the key, by an HMAC (RFC 2104, with SHA-256) over random bytes
of both ends and the name of the end. So the key is never sent, and an intercepted proof is useless
on another connection. Nothing is unpickled before both proofs.

No system call blocks for long: after a short time `on_wait` decides whether to wait on.
"""

from __future__ import annotations

import errno
import hmac
import logging
import pickle
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, RLock, Thread
from typing import Any  # Any: requests and answers

import numpy as np

from graphdist.errors import RuntimeFailure

SECONDS_FOR_PROOF = 5.0
"""The time within which a stranger must prove that it knows the key, in seconds."""
MAX_STRANGERS = 64
_SECONDS_AFTER_REFUSAL = 0.05
_SECONDS_TO_CONNECT = 20.0
_log = logging.getLogger("graphdist")


SECONDS_OF_A_WAIT = 2.0
_SIZES = struct.Struct("!QQ")
_BYTES_UNDER_WAY = 4 << 20
"""The size of the system's socket buffers between two processes, in bytes."""
_NONCE_BYTES = _PROOF_BYTES = 32
_ALIGNMENT = 64
"""Arrays are received at multiples of so many bytes, where JAX's CPU uses them without a copy."""


class BadMessage(Exception):
    """The received bytes are no message, or the other end does not know the key."""


class Channel:
    """One end of a connection, which one thread uses at a time."""

    def __init__(self, stream: socket.socket, on_wait: Callable[[], None]) -> None:
        """Use a connected socket; `on_wait` raises an error if waiting is useless."""
        self._stream, self.on_wait = stream, on_wait
        self.deadline = float("inf")
        """When a waiting call raises `TimeoutError`, in seconds of `time.monotonic`."""
        stream.settimeout(SECONDS_OF_A_WAIT)
        # Small messages are sent at once, large ones in large pieces.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            stream.setsockopt(socket.SOL_SOCKET, buffer, _BYTES_UNDER_WAY)

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def prove(self, key: bytes) -> None:
        """Prove that this end knows the key; raise `BadMessage` if the listener does not know it.

        Raises `EOFError` if the listener rejects the proof and closes the connection.
        """
        theirs, ours = self._received(_NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
        self._send(memoryview(ours + _proof(key, b"asks", theirs, ours)))
        if not hmac.compare_digest(self._received(_PROOF_BYTES), _proof(key, b"is", theirs, ours)):
            raise BadMessage("the listener does not know the key")

    def require_proof(self, key: bytes) -> None:
        """Require the connecting end to prove that it knows the key; raise `BadMessage` if not."""
        ours = secrets.token_bytes(_NONCE_BYTES)
        self._send(memoryview(ours))
        said = bytes(self._received(_NONCE_BYTES + _PROOF_BYTES))
        theirs, proof = said[:_NONCE_BYTES], said[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, b"asks", ours, theirs)):
            raise BadMessage("it does not know the key")
        self._send(memoryview(_proof(key, b"is", ours, theirs)))

    def send(self, message: object) -> None:
        """Send a message."""
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        views = [buffer.raw() for buffer in buffers]
        sizes = struct.pack(f"!{len(views)}Q", *(view.nbytes for view in views))
        self._send(memoryview(_SIZES.pack(len(views), len(head)) + sizes + head))
        for view in views:
            self._send(view)

    def receive(self) -> Any:
        """Return the next message; raise `EOFError`, `OSError` or `BadMessage`."""
        count, head_bytes = _SIZES.unpack(self._received(_SIZES.size))
        sizes = struct.unpack(f"!{count}Q", self._received(8 * count))
        head = self._received(head_bytes)
        buffers = [self._received(size) for size in sizes]
        try:
            return pickle.loads(head, buffers=buffers)
        except Exception as error:
            raise BadMessage(f"{type(error).__name__}: {error}") from error

    def _send(self, view: memoryview) -> None:
        while view.nbytes:
            view = view[self._turn(self._stream.send, view) :]

    def _received(self, size: int) -> memoryview:
        try:
            memory = np.empty(size + _ALIGNMENT, np.uint8)  # the system allocates it lazily
        except (MemoryError, OverflowError, ValueError) as error:
            raise BadMessage(f"a message with a part of {size} bytes") from error
        start = -memory.ctypes.data % _ALIGNMENT
        left = found = memory[start : start + size].data
        while left.nbytes:
            count = self._turn(self._stream.recv_into, left)
            if not count:
                raise EOFError("the other end has closed the connection")
            left = left[count:]
        return found

    def _turn(self, call: Callable[[memoryview], int], view: memoryview) -> int:
        """Return the number of bytes that a call has sent or received."""
        while True:
            if time.monotonic() > self.deadline:
                raise TimeoutError(errno.ETIMEDOUT, "it took too long")
            try:
                return call(view)
            except TimeoutError as error:
                if error.errno is not None:  # from the system: the other machine does not answer
                    raise
            self.on_wait()


def _proof(key: bytes, end: bytes, of_listener: bytes | memoryview, other: bytes) -> bytes:
    return hmac.digest(key, end + bytes(of_listener) + other, "sha256")


class ServerIsLost(Exception):
    """A server no longer answers; `why` says the reason, such as "has died"."""

    def __init__(self, server: int, why: str) -> None:
        """Keep the index of the server and the reason."""
        super().__init__(server, why)
        self.server, self.why = server, why


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
        self,
        server: int,
        address: Callable[[], tuple[str, int]],
        problem: Callable[[], str],
        key: bytes,
    ) -> None:
        """Keep functions that return the server's address, and its problem ("" if none)."""
        self._server = server
        self._find, self._problem, self._key = address, problem, key
        self._address: tuple[str, int] | None = None
        self._channel: Channel | None = None
        self._lost_at, self._why = float("-inf"), ""
        """The time at which the server was found lost, and the reason."""
        self._lock = RLock()

    @contextmanager
    def held(self, since: float) -> Iterator[None]:
        """Lock the connection for one thread, from its request to the answer.

        Raises `ServerIsLost` if another thread has found the server lost after `since`, in
        seconds of `time.monotonic`, so that only one of many waiting threads has to find out.
        """
        with self._lock:
            if self._lost_at > since:
                raise ServerIsLost(self._server, self._why)
            yield

    def request(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Send a request; raise `ServerIsLost` if the server is lost."""
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
        """Raise `ServerIsLost` unless the server is alive, and so still computing."""
        if problem := self._problem():
            raise self._silent(problem)

    def _lost(self, error: Exception) -> ServerIsLost:
        """Return the error for a server whose connection has failed."""
        broken = f"cannot be reached, since its connection has failed ({error})"
        return self._silent(self._problem() or broken)

    def _silent(self, why: str) -> ServerIsLost:
        self._lost_at, self._why = time.monotonic(), why
        return ServerIsLost(self._server, why)
