"""How the processes of a cluster talk about what they do: all-gathers of small values, heartbeats.

JAX's coordination service does this inside JAX, without a supported way in for others. So worker 0
runs a server of its own, at its address in the cluster, and every worker is connected to it, worker
0 too. Messages are lines of JSON.

Theory of operation. In an exchange every worker gives a value under a key and gets the values of
all, in the order of workers. The server answers when the last value is there, so that an exchange
is a barrier too. What one worker says under a name all get to hear. The server notes when it last
heard of each worker: a connection that breaks is a worker that died, one that is silent for too
long belongs to a worker that is stopped or cut off. Both are told to all others at once. Every
second or so it sends all workers what it knows of each: the number of steps it has begun, and for
how long nothing was heard of it. A worker that hears nothing of the server takes worker 0 for dead.

The server is one thread and never waits for a worker. Whoever can connect can speak: like JAX's own
service it belongs on a private network, and on loopback where all workers are on one host.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias  # Any: JSON

Message: TypeAlias = dict[str, Any]

BEAT_SECONDS = 0.5
"""How often each side lets the other know that it is there."""
MAX_HELLO_BYTES = 1 << 12
MAX_LINE_BYTES = 1 << 28
PROTOCOL = "graphdist 1"


class LeftError(Exception):
    """A worker has left that others wait for; its number, -1 for this one."""


@dataclass(eq=False)
class Peer:
    """What the server knows of one connection."""

    socket: socket.socket
    worker: int | None = None
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    heard: float = field(default_factory=time.monotonic)
    steps: int = 0
    is_done: bool = False


class Server(threading.Thread):
    """The server of a cluster; runs until every worker has said goodbye, or `stop`."""

    def __init__(self, listener: socket.socket, num_workers: int, silence_seconds: float) -> None:
        """Listen on a bound socket."""
        super().__init__(name="graphdist-coordination", daemon=True)
        self._listener, self._num_workers = listener, num_workers
        self.silence_seconds = silence_seconds
        self._peers: dict[int, Peer] = {}
        self._exchanges: dict[str, dict[int, Any]] = {}
        self._said: dict[str, str] = {}
        self._failed: dict[int, str] = {}
        self._left: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._stopped = False
        self.all_left = threading.Event()
        """Set once no other worker is connected any more."""

    def run(self) -> None:
        """Serve."""
        self._listener.setblocking(False)
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ)
        next_beat = time.monotonic()
        while not self._stopped:
            for key, events in self._selector.select(BEAT_SECONDS / 2):
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data, events)
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + BEAT_SECONDS
        for key in list(self._selector.get_map().values()):
            self._selector.unregister(key.fileobj)
            (self._listener if key.data is None else key.data.socket).close()
        self._selector.close()

    def stop(self) -> None:
        """End the thread soon."""
        self._stopped = True

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, Peer(connection))

    def _serve(self, peer: Peer, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ:
                received = peer.socket.recv(1 << 16)
                if not received:
                    raise ConnectionResetError
                peer.heard = time.monotonic()
                peer.unread += received
                self._read_lines(peer)
        except (OSError, ValueError, KeyError, TypeError):  # the last three from a stranger
            self._lose(peer)

    def _read_lines(self, peer: Peer) -> None:
        while (end := peer.unread.find(b"\n")) >= 0:
            line = bytes(peer.unread[:end])
            del peer.unread[: end + 1]
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError("not one of ours")
            self._answer(peer, message)
        if len(peer.unread) > (MAX_HELLO_BYTES if peer.worker is None else MAX_LINE_BYTES):
            raise ValueError("a line without an end")

    def _answer(self, peer: Peer, message: Message) -> None:
        if peer.worker is None:
            self._greet(peer, message)
        elif "put" in message:
            self._put(peer.worker, message["put"], message["value"])
        elif "say" in message:
            self._say(message["say"], message["value"])
        elif "beat" in message:
            peer.steps = message["beat"]
        elif "asks" in message:
            given = self._exchanges.get(message["asks"], {})
            self._send(peer, {"given": sorted(given), "asks": message["asks"]})
        elif "failed" in message:
            self._fail(peer.worker, message["failed"])
        elif "bye" in message:
            peer.steps = message["bye"]
            peer.is_done = True
            self._left.add(peer.worker)
            self._tell_all({"left": peer.worker, "steps": peer.steps})
            self._give_up_exchanges_of(peer.worker)

    def _greet(self, peer: Peer, message: Message) -> None:
        worker, count = message.get("worker"), message.get("workers")
        if message.get("hello") != PROTOCOL or not isinstance(worker, int):
            raise ValueError("not one of ours")
        refusal = ""
        if count != self._num_workers or not 0 <= worker < self._num_workers:
            refusal = f"worker {worker} says there are {count} workers, worker 0 says "
            refusal += str(self._num_workers)
        elif worker in self._peers:
            refusal = f"there is a worker {worker} already"
        if refusal:
            self._send(peer, {"refused": refusal})
            return
        peer.worker = worker
        self._peers[worker] = peer
        self._send(peer, {"welcome": worker})
        for failed, why in self._failed.items():
            self._send(peer, {"failed": failed, "why": why})

    def _put(self, worker: int, key: str, value: Any) -> None:
        given = self._exchanges.setdefault(key, {})
        given[worker] = value
        if len(given) == self._num_workers:
            del self._exchanges[key]
            values = [given[index] for index in range(self._num_workers)]
            self._tell_all({"all": key, "values": values})
        else:
            for one in self._left:
                self._give_up_exchanges_of(one)

    def _say(self, name: str, value: str) -> None:
        """Tell all workers what is said first under a name."""
        if name not in self._said:
            self._said[name] = value
            self._tell_all({"said": name, "value": value})

    def _give_up_exchanges_of(self, worker: int) -> None:
        """Let nobody wait for a worker that has left."""
        for key, given in list(self._exchanges.items()):
            if worker not in given:
                del self._exchanges[key]
                for index in given:
                    if index in self._peers:
                        self._send(self._peers[index], {"never": key, "left": worker})

    def _beat(self) -> None:
        now = time.monotonic()
        known: list[Any] = [None] * self._num_workers
        for worker, peer in list(self._peers.items()):
            silent = now - peer.heard
            known[worker] = [peer.steps, round(silent, 2)]
            if silent > self.silence_seconds and not peer.is_done:
                self._fail(worker, f"was not heard of for {silent:.0f} s")
        self._tell_all({"beats": known})

    def _lose(self, peer: Peer) -> None:
        if peer.socket.fileno() >= 0:
            self._selector.unregister(peer.socket)
            peer.socket.close()
        if peer.worker is not None and self._peers.get(peer.worker) is peer:
            del self._peers[peer.worker]
            if not peer.is_done:
                self._fail(peer.worker, "died")
            if not set(self._peers) - {0}:
                self.all_left.set()

    def _fail(self, worker: int, why: str) -> None:
        if worker not in self._failed:
            self._failed[worker] = why
            self._tell_all({"failed": worker, "why": why})

    def _tell_all(self, message: Message) -> None:
        line = _line(message)
        for peer in list(self._peers.values()):
            self._write(peer, line)

    def _send(self, peer: Peer, message: Message) -> None:
        self._write(peer, _line(message))

    def _write(self, peer: Peer, line: bytes) -> None:
        peer.unsent += line
        try:
            self._flush(peer)
        except OSError:
            self._lose(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.unsent:
                sent = peer.socket.send(peer.unsent)
                del peer.unsent[:sent]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.socket, wanted, peer)


class Connection:
    """A worker's end: sends from any thread; a thread of its own hears what the server says.

    `on_failure(worker, why)` is called on that thread, once a worker; worker 0 fails when its
    server is gone.
    """

    def __init__(self, stream: socket.socket, on_failure: Any, silence_seconds: float) -> None:
        """Take a socket on which the server has said welcome."""
        self._socket, self._on_failure = stream, on_failure
        self._silence_seconds = silence_seconds
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[str, list[Any]] = {}
        self._given: dict[str, list[int]] = {}
        self._never: dict[str, int] = {}
        self._said: dict[str, str] = {}
        self._is_closed = False
        self.steps = 0
        """How many steps this worker has begun; sent with every heartbeat."""
        self.beats: list[Any] = []
        """What the server last knew of each worker: its steps, and how long it was silent."""
        self.left: dict[int, int] = {}
        """The workers that have left, and after how many steps."""
        self.heard = time.monotonic()
        """When the server last said something."""
        stream.settimeout(silence_seconds)
        for body in (self._hear, self._beat):
            threading.Thread(target=body, name="graphdist-worker", daemon=True).start()

    def put(self, key: str, value: Any) -> None:
        """Give this worker's value of an exchange."""
        self._send({"put": key, "value": value})

    def take(self, key: str, timeout_seconds: float | None, stop: Any) -> list[Any] | None:
        """Return all workers' values of an exchange, None if not all came in time.

        `stop()` is asked whenever something was heard; it may raise. Raises `LeftError` for a
        worker that has left, this one included.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            while key not in self._answers:
                stop()
                if key in self._never:
                    raise LeftError(self._never.pop(key))
                if self._is_closed:
                    raise LeftError(-1)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(BEAT_SECONDS if left is None else min(left, BEAT_SECONDS))
            return self._answers.pop(key)

    def say(self, name: str, value: str) -> None:
        """Tell all workers something, unless it is said already under that name."""
        self._send({"say": name, "value": value})

    def hear(self, name: str, timeout_seconds: float, stop: Any) -> str | None:
        """Return what was said under a name, None if nothing in time; `stop()` may raise."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while name not in self._said:
                stop()
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, BEAT_SECONDS))
            return self._said[name]

    def who_gave(self, key: str) -> list[int]:
        """Return which workers have given a value of an exchange that is not complete."""
        self._send({"asks": key})
        deadline = time.monotonic() + 2 * BEAT_SECONDS
        with self._changed:
            while key not in self._given and time.monotonic() < deadline:
                self._changed.wait(BEAT_SECONDS)
            return self._given.pop(key, [])

    def tell_failed(self, why: str) -> None:
        """Tell all that this worker fails."""
        self._send({"failed": why})

    def leave(self) -> None:
        """Say goodbye: what comes after is no failure."""
        self._send({"bye": self.steps})

    def close(self) -> None:
        """Close the connection; call `leave` before."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _send(self, message: Message) -> None:
        with self._sending, suppress(OSError):  # the thread that hears notices
            self._socket.sendall(_line(message))

    def _beat(self) -> None:
        while not self._is_closed:
            self._send({"beat": self.steps})
            time.sleep(BEAT_SECONDS)

    def _hear(self) -> None:
        why = "died"
        try:
            with self._socket.makefile("rb") as lines:
                for line in lines:
                    self._heard(json.loads(line))
        except TimeoutError:
            why = f"was not heard of for {self._silence_seconds:.0f} s"
        except (OSError, ValueError):
            pass
        if not self._is_closed:
            self._on_failure(0, why)
            with self._changed:
                self._changed.notify_all()

    def _heard(self, message: Message) -> None:
        if "failed" in message:
            self._on_failure(message["failed"], message["why"])
        self.heard = time.monotonic()
        if "steps" in message:
            self.left[message["left"]] = message["steps"]
        with self._changed:
            if "never" in message:
                self._never[message["never"]] = message["left"]
            elif "all" in message:
                self._answers[message["all"]] = message["values"]
            elif "said" in message:
                self._said[message["said"]] = message["value"]
            elif "given" in message:
                self._given[message["asks"]] = message["given"]
            elif "beats" in message:
                self.beats = message["beats"]
            self._changed.notify_all()


def _line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
