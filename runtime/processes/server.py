"""The server at worker 0's address, through which all messages between workers go.

JAX's coordination service does the same inside JAX, without a supported interface. So worker 0 runs
a server of its own, and every worker connects to it, including worker 0.

In an exchange every worker gives a value under a key and gets the values of all, in the order of
workers. The server answers when the last value has arrived, so an exchange is also a barrier. An
announcement of one worker goes to all. Twice a second the server tells all workers what it knows of
each: the number of steps it has begun, and how long it has been silent.

The states of a connection:

    state       input                              consequence
    ----------  ---------------------------------  ----------------------------------------------
    stranger    Hello that proves the job          Welcome; it is a worker now
                Hello that does not                Refused, and dropped once that is sent
                anything else, more than 4 KiB,    dropped
                or nothing for 5 s
    worker      Put, Say, Beat, Ask                answered
                Fail                               all hear of it; its threads may still answer
                Bye                                all hear of it; it has left
                anything else, silence, or the     all hear that it failed, and is gone
                end of the connection
    has left    anything                           nothing
                the end of the connection          forgotten

One thread owns every connection and all state, so nothing here is locked; other threads only set
flags and read. It never waits for a peer: a write that would block is kept in `unsent`. The number
of strangers is bounded, and the oldest is dropped for a new one, so that strangers can neither use
up the process's files nor keep workers out. An error of the server itself ends the job, and is
given as the reason.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from graphdist.runtime.processes import messages as ms
from graphdist.runtime.processes.counted_warnings import CountedWarnings
from graphdist.runtime.processes.handshake import JobIdentity

BEAT_SECONDS = 0.5
"""How often each side sends a heartbeat."""
SECONDS_FOR_HELLO = 5.0
"""How long a stranger may take to say who it is."""
MAX_STRANGERS = 64
_SECONDS_TO_SEND_LAST = 1.0
_log = logging.getLogger("graphdist")


@dataclass(eq=False)
class Peer:
    """The state of one connection."""

    socket: socket.socket
    address: str
    challenge: ms.Challenge
    worker: int | None = None
    unread: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    steps: int = 0
    has_left: bool = False
    is_refused: bool = False


class Server(threading.Thread):
    """The server of a cluster; runs until `stop`.

    When it cannot go on it passes the reason to `crashed`, on this thread.
    """

    def __init__(
        self,
        listener: socket.socket,
        num_workers: int,
        silence_seconds: float,
        job: JobIdentity,
        crashed: Callable[[str], None],
    ) -> None:
        """Take a socket that listens."""
        super().__init__(name="graphdist-coordination", daemon=True)
        self._listener, self._num_workers, self._job = listener, num_workers, job
        self.silence_seconds, self._crashed = silence_seconds, crashed
        self._strangers: dict[Peer, None] = {}  # in the order of their coming
        self._peers: dict[int, Peer] = {}
        self._exchanges: dict[str, dict[int, str]] = {}
        self._said: dict[str, str] = {}
        self._failed: dict[int, str] = {}
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._is_listening = False
        self._stop_at: float | None = None
        self.refusals: list[str] = []
        """Why the last strangers were refused; only those that identified themselves."""
        self._refused = CountedWarnings(partial(_log.warning, "coordination server: %s"))

    def run(self) -> None:
        """Serve."""
        try:
            self._listener.setblocking(False)
            self._listener.listen(128)
            self._listen(True)
            self._serve_until_stopped()
        except Exception as error:
            why = f"its coordination server failed: {type(error).__name__}: {error}"
            _log.exception("the coordination server failed")
            self._crashed(why)
            with suppress(Exception):
                self._fail(0, why)
        finally:
            for peer in [*self._strangers, *self._peers.values()]:
                peer.socket.close()
            self._listener.close()
            self._selector.close()

    def stop(self) -> None:
        """End the thread soon, once the unsent messages are sent."""
        self._stop_at = time.monotonic() + _SECONDS_TO_SEND_LAST

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets; its parent goes on serving."""
        for stream in (self._listener, *(peer.socket for peer in self._peers.values())):
            if stream.fileno() >= 0:
                os.close(stream.detach())

    def has_others(self) -> bool:
        """Return whether other workers are still heard from; any thread may ask."""
        now, others = time.monotonic(), [peer for peer in list(self._peers.values()) if peer.worker]
        return self.is_alive() and any(now - peer.heard < self.silence_seconds for peer in others)

    def _serve_until_stopped(self) -> None:
        next_beat = time.monotonic()
        while True:
            is_stopping = self._stop_at is not None
            events = self._selector.select(0.01 if is_stopping else BEAT_SECONDS / 2)
            for key, mask in events:
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data, mask)
            if is_stopping and self._has_said_all(bool(events)):
                return
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + BEAT_SECONDS

    def _has_said_all(self, is_busy: bool) -> bool:
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            return True
        return not is_busy and not any(peer.unsent for peer in self._peers.values())

    # Strangers.

    def _listen(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_listening:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._is_listening and not is_wanted:
            self._selector.unregister(self._listener)
        self._is_listening = is_wanted

    def _accept(self) -> None:
        while len(self._strangers) >= MAX_STRANGERS:
            self._drop(next(iter(self._strangers)))
        try:
            connection, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._listen(False)  # until the next beat: `select` would report it again
            return
        connection.setblocking(False)
        with suppress(OSError):  # of one that has gone already, on macOS
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(connection, str(address[0]), self._job.challenge())
        self._strangers[peer] = None
        self._selector.register(connection, selectors.EVENT_READ, peer)
        self._send(peer, peer.challenge)

    def _greet(self, peer: Peer, hello: ms.Hello) -> None:
        refused = self._job.refusal(hello, peer.challenge, self._num_workers)
        if refused is None and hello.worker in self._peers:
            refused = ms.Refused(f"there is a worker {hello.worker} already", 0)
        if refused is not None:
            text = f"{peer.address} was refused: {refused.why}"
            self.refusals = [*self.refusals[-2:], text]
            self._refused.add(text)
            peer.is_refused = True
            self._send(peer, refused)
            return
        self._strangers.pop(peer, None)
        peer.worker = hello.worker
        self._peers[hello.worker] = peer
        self._send(peer, self._job.welcome(hello, peer.challenge))
        for worker, why in self._failed.items():
            self._send(peer, ms.Failed(worker, why))

    def _drop(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)
        self._close(peer)

    # Workers.

    def _serve(self, peer: Peer, events: int) -> None:
        if peer.socket.fileno() < 0:
            return  # an earlier event of this round has closed it
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
        except ms.MessageError as error:
            if peer.worker is not None:
                _log.warning("worker %d said what makes no sense: %s", peer.worker, error)
            self._lose(peer)
        except OSError:
            self._lose(peer)

    def _read_lines(self, peer: Peer) -> None:
        while not peer.is_refused and (end := peer.unread.find(b"\n")) >= 0:
            line = bytes(peer.unread[:end])
            del peer.unread[: end + 1]
            if peer.worker is None:
                if len(line) > ms.MAX_HELLO_BYTES:
                    raise ms.MessageError("a hello that is too long")
                hello = ms.parsed(line, ms.FROM_STRANGERS)
                assert isinstance(hello, ms.Hello)
                self._greet(peer, hello)
            else:
                self._answer(peer, peer.worker, ms.parsed(line, ms.FROM_WORKERS))
        if len(peer.unread) > (ms.MAX_HELLO_BYTES if peer.worker is None else ms.MAX_LINE_BYTES):
            raise ms.MessageError("a line without an end")

    def _answer(self, peer: Peer, worker: int, message: ms.Message) -> None:
        match message:
            case ms.Beat(steps):
                peer.steps = steps
            case _ if peer.has_left:
                pass  # another thread of the worker sent it while it was leaving
            case ms.Put(key, value):
                self._put(worker, key, value)
            case ms.Say(name, value):
                if name not in self._said:
                    self._said[name] = value
                    self._tell_all(ms.Said(name, value))
            case ms.Ask(key):
                self._send(peer, ms.Given(key, sorted(self._exchanges.get(key, {}))))
            case ms.Fail(why):
                self._fail(worker, why)
            case ms.Bye(steps):
                peer.steps, peer.has_left = steps, True
                self._left.add(worker)
                self._tell_all(ms.Left(worker, steps))
                self._give_up_exchanges_of(worker)

    def _put(self, worker: int, key: str, value: str) -> None:
        given = self._exchanges.setdefault(key, {})
        given[worker] = value
        if len(given) == self._num_workers:
            del self._exchanges[key]
            values = [given[index] for index in range(self._num_workers)]
            self._tell_all(ms.All(key, values))
        else:
            for other in self._left:
                self._give_up_exchanges_of(other)

    def _give_up_exchanges_of(self, worker: int) -> None:
        """End the exchanges that wait for a worker that has left."""
        for key, given in list(self._exchanges.items()):
            if worker not in given:
                del self._exchanges[key]
                for index in given:
                    if index in self._peers:
                        self._send(self._peers[index], ms.Never(key, worker))

    # Time passes, connections end.

    def _beat(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer in self._strangers if now - peer.began > SECONDS_FOR_HELLO]:
            self._drop(peer)
        self._listen(True)
        self._refused.remind()
        steps, silent = [-1] * self._num_workers, [0.0] * self._num_workers
        for worker, peer in list(self._peers.items()):
            steps[worker], silent[worker] = peer.steps, round(now - peer.heard, 2)
            if silent[worker] > self.silence_seconds and not peer.has_left:
                self._give_up(worker, f"was not heard of for {silent[worker]:.0f} s")
        self._tell_all(ms.Beats(steps, silent))

    def _lose(self, peer: Peer) -> None:
        self._drop(peer)
        if peer.worker is not None and self._peers.get(peer.worker) is peer:
            del self._peers[peer.worker]
            if not peer.has_left:
                self._give_up(peer.worker, "died")

    def _close(self, peer: Peer) -> None:
        if peer.socket.fileno() >= 0:
            self._selector.unregister(peer.socket)
            peer.socket.close()

    def _give_up(self, worker: int, why: str) -> None:
        self._fail(worker, why)
        if worker not in self._gone:
            self._gone.add(worker)
            self._tell_all(ms.Gone(worker))

    def _fail(self, worker: int, why: str) -> None:
        if worker not in self._failed:
            self._failed[worker] = why
            self._tell_all(ms.Failed(worker, why))

    # Sending.

    def _tell_all(self, message: ms.Message) -> None:
        line = message.line()
        for peer in list(self._peers.values()):
            self._write(peer, line)

    def _send(self, peer: Peer, message: ms.Message) -> None:
        self._write(peer, message.line())

    def _write(self, peer: Peer, line: bytes) -> None:
        if peer.socket.fileno() < 0:
            return
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
        if len(peer.unsent) > 2 * ms.MAX_LINE_BYTES:
            raise OSError("it does not read what it is sent")
        if peer.is_refused and not peer.unsent:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        self._selector.modify(peer.socket, wanted, peer)
