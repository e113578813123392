"""A connection that carries messages with arrays, between processes that know one key.

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
import pickle
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Any  # Any: requests and answers

import numpy as np

SECONDS_OF_A_WAIT = 2.0
_SIZES = struct.Struct("!QQ")
_BYTES_UNDER_WAY = 4 << 20
"""The size of the system's socket buffers between two processes, in bytes."""
_NONCE_BYTES = _PROOF_BYTES = 32


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
            found: memoryview = np.empty(size, np.uint8).data  # the system allocates it lazily
        except (MemoryError, OverflowError, ValueError) as error:
            raise BadMessage(f"a message with a part of {size} bytes") from error
        left = found
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
