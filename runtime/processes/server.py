"""The server at worker 0's address, which forwards all messages between workers.

JAX's coordination service does the same inside JAX, without a supported interface. So worker 0 runs
its own server, and every worker connects to it, including worker 0.

In an exchange every worker sends a value under a key and gets the values of all, in the order of
workers. The server answers when the last value has arrived, so an exchange is also a barrier. An
announcement of one worker is sent to all. Twice a second the server sends all workers, for each
worker, the count of steps that it has begun and its seconds of silence.

The states of a connection:

    state       input                              consequence
    ----------  ---------------------------------  ----------------------------------------------
    stranger    Hello with a valid proof           Welcome; it becomes a worker
                another Hello                      Refused, then closed
                other input, more than 4 KiB,      closed
                or none for 5 s
    worker      Put, Say, Beat, Ask                answered
                Fail                               sent to all; its threads may still answer
                Bye                                sent to all; it has left
                other input, silence, or the       sent to all: it failed, and is gone
                end of the connection
    has left    any                                none
                the end of the connection          closed

One thread owns every connection and all state, so no locks are needed; other threads only read. The
thread never waits for a peer: asyncio keeps the bytes that cannot be written yet. The
number of strangers is limited, and the oldest is closed for a new one, so that strangers can
neither use up the process's files nor keep workers out. An error of the server itself ends the job,
with the error as the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any  # Any: what asyncio passes to a handler of exceptions

from graphdist.runtime.processes import messages as ms
from graphdist.runtime.processes.event_loop import EventLoopThread, accepted
from graphdist.runtime.processes.handshake import JobIdentity

BEAT_SECONDS = 0.5
"""How often each side sends a heartbeat."""
SECONDS_FOR_HELLO = 5.0
"""How long a stranger may take to send its hello."""
MAX_STRANGERS = 64
_SECONDS_TO_SEND_LAST = 1.0
_SECONDS_OF_REST = 0.02
_log = logging.getLogger("graphdist")


SECONDS_BETWEEN_WARNINGS = 60.0


class CountedWarnings:
    """Warnings that may come thousands of times a second: a first line, then one line per minute.

    A line has the last text, and the number of texts since the previous line. `remind` writes a due
    line even if no more texts come. `warn` writes a line, `clock` returns seconds.

    >>> seconds, lines = [0.0], []
    >>> refused = CountedWarnings(lines.append, lambda: seconds[0])
    >>> for text in ("a was refused", "b was refused", "c was refused"):
    ...     refused.add(text)
    >>> seconds[0] = 60.0
    >>> refused.remind()
    >>> lines
    ['a was refused', 'c was refused (2 of this kind in 60 s)']
    """

    def __init__(
        self, warn: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start without texts."""
        self._warn, self._clock = warn, clock
        self._last, self._count = "", 0
        self._warned_at = float("-inf")

    def add(self, text: str) -> None:
        """Warn of a text, or count it."""
        self._last, self._count = text, self._count + 1
        self.remind()

    def remind(self) -> None:
        """Warn of the last text and the count since the last line, once per minute."""
        since = self._clock() - self._warned_at
        if self._count and since >= SECONDS_BETWEEN_WARNINGS:
            counted = f" ({self._count:,} of this kind in {since:.0f} s)" if self._count > 1 else ""
            self._warn(self._last + counted)
            self._count, self._warned_at = 0, self._clock()


class Peer(asyncio.Protocol):
    """One connection, and its state."""

    transport: asyncio.Transport

    def __init__(self, server: Server, stream: socket.socket, challenge: ms.Challenge) -> None:
        """Start as a stranger."""
        self._server, self.stream, self.challenge = server, stream, challenge
        self.address = str(stream.getpeername()[0])
        self.worker: int | None = None
        self.unread = bytearray()
        self.began = self.heard = time.monotonic()
        self.steps = 0
        self.has_left = self.is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.begin_handshake(self)

    def data_received(self, data: bytes) -> None:
        """Answer the messages in the bytes that were received."""
        self.heard = time.monotonic()
        self.unread += data
        try:
            self._server.read_lines(self)
        except ms.MessageError as error:
            if self.worker is not None:
                _log.warning("worker %d sent an invalid message: %s", self.worker, error)
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the server that the connection has ended."""
        if error is not None and self.worker is not None:
            self._read_the_rest()
        self._server.lose(self)

    def _read_the_rest(self) -> None:
        """Answer what a worker sent before its connection broke, such as that it leaves.

        asyncio reads no more once a write has failed.
        """
        with suppress(OSError):  # nothing more is there
            while data := self.stream.recv(1 << 16):
                self.unread += data
        with suppress(ms.MessageError):
            self._server.read_lines(self)

    def send(self, line: bytes) -> None:
        """Send a line, or keep it until it can be sent. Abort if too many bytes are kept."""
        if not self.transport.is_closing():
            self.transport.write(line)
            if self.transport.get_write_buffer_size() > 2 * ms.MAX_LINE_BYTES:
                self.transport.abort()


class Server(EventLoopThread):
    """The server of a cluster, which runs until `stop`.

    If the server fails, its thread calls `crashed` with the reason.
    """

    def __init__(
        self,
        listener: socket.socket,
        num_workers: int,
        silence_seconds: float,
        job: JobIdentity,
        crashed: Callable[[str], None],
    ) -> None:
        """Take a listening socket; `start` begins to accept its connections."""
        super().__init__("coordination server", listener, crashed)
        self._num_workers, self._job = num_workers, job
        self.silence_seconds = silence_seconds
        self._strangers: dict[Peer, None] = {}  # in the order of their connections
        self._peers: dict[int, Peer] = {}
        self._exchanges: dict[str, dict[int, str]] = {}
        self._said: dict[str, str] = {}
        self._failed: dict[int, str] = {}
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self.refusals: list[str] = []
        """The reasons why the last strangers that sent a hello were refused."""
        self._refused = CountedWarnings(partial(_log.warning, "coordination server: %s"))

    async def serve(self) -> None:
        """Accept and handle connections; at the end, send the unsent messages."""
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(partial(_fail_with, failed))
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._accept())
                tasks.create_task(self._beat_for_ever())
                await failed
        except asyncio.CancelledError:
            await self._send_last()
            raise
        except Exception as error:
            _log.exception("the coordination server failed")
            self._fail(0, self.report(error))
        finally:
            for peer in [*self._strangers, *self._peers.values()]:
                peer.transport.abort()
            await asyncio.sleep(0)  # asyncio closes aborted connections in the loop's next round

    async def _send_last(self) -> None:
        """Wait until nothing more is received and all is sent, for a second at most."""
        until = time.monotonic() + _SECONDS_TO_SEND_LAST
        while time.monotonic() < until:
            since = time.monotonic()
            await asyncio.sleep(_SECONDS_OF_REST)
            peers = [peer for peer in self._peers.values() if not peer.transport.is_closing()]
            is_busy = any(peer.heard > since for peer in peers)
            if not is_busy and not any(peer.transport.get_write_buffer_size() for peer in peers):
                return

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets. The parent still uses its own."""
        for stream in (self.listener, *(peer.stream for peer in self._peers.values())):
            if stream.fileno() >= 0:
                os.close(stream.detach())

    def has_others(self) -> bool:
        """Return whether other workers still send messages; any thread may call it."""
        now, others = time.monotonic(), [peer for peer in list(self._peers.values()) if peer.worker]
        return self.is_alive() and any(now - peer.heard < self.silence_seconds for peer in others)

    # Strangers.

    async def _accept(self) -> None:
        while True:
            stream = await accepted(self.listener)
            while len(self._strangers) >= MAX_STRANGERS:
                self._drop(next(iter(self._strangers)))
            try:
                peer = partial(Peer, self, stream, self._job.challenge())
                await self._loop.connect_accepted_socket(peer, stream)
            except OSError:  # the connection has ended already
                stream.close()

    def begin_handshake(self, peer: Peer) -> None:
        """Send the first message to a stranger."""
        self._strangers[peer] = None
        peer.send(peer.challenge.line())

    def _drop(self, peer: Peer) -> None:
        self._strangers.pop(peer, None)
        peer.transport.abort()

    def _greet(self, peer: Peer, hello: ms.Hello) -> None:
        refused = self._job.refusal(hello, peer.challenge, self._num_workers)
        if refused is None and hello.worker in self._peers:
            refused = ms.Refused(f"there is a worker {hello.worker} already", 0)
        if refused is not None:
            text = f"{peer.address} was refused: {refused.why}"
            self.refusals = [*self.refusals[-2:], text]
            self._refused.add(text)
            peer.is_refused = True
            peer.send(refused.line())
            peer.transport.close()
            return
        self._strangers.pop(peer, None)
        peer.worker = hello.worker
        self._peers[hello.worker] = peer
        peer.send(self._job.welcome(hello, peer.challenge).line())
        for worker, why in self._failed.items():
            peer.send(ms.Failed(worker, why).line())

    # Workers.

    def read_lines(self, peer: Peer) -> None:
        """Answer the full lines of a peer; raises `MessageError` for a line that is no message."""
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
                pass  # another thread of the worker sent it while it left
            case ms.Put(key, value):
                self._put(worker, key, value)
            case ms.Say(name, value):
                if name not in self._said:
                    self._said[name] = value
                    self._tell_all(ms.Said(name, value))
            case ms.Ask(key):
                peer.send(ms.Given(key, sorted(self._exchanges.get(key, {}))).line())
            case ms.Fail(why):
                self._fail(worker, why)
            case ms.Bye(steps):
                peer.steps, peer.has_left = steps, True
                self._left.add(worker)
                self._tell_all(ms.Left(worker, steps))
                self._give_up_exchanges_of(worker)

    def _put(self, worker: int, key: str, value: str) -> None:
        values = self._exchanges.setdefault(key, {})
        values[worker] = value
        if len(values) == self._num_workers:
            del self._exchanges[key]
            in_order = [values[index] for index in range(self._num_workers)]
            self._tell_all(ms.All(key, in_order))
        else:
            for other in self._left:
                self._give_up_exchanges_of(other)

    def _give_up_exchanges_of(self, worker: int) -> None:
        """End the exchanges that wait for a worker that has left."""
        for key, values in list(self._exchanges.items()):
            if worker not in values:
                del self._exchanges[key]
                for index in values:
                    if index in self._peers:
                        self._peers[index].send(ms.Never(key, worker).line())

    # Heartbeats, and the end of connections.

    async def _beat_for_ever(self) -> None:
        while True:
            self._beat()
            await asyncio.sleep(BEAT_SECONDS)

    def _beat(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer in self._strangers if now - peer.began > SECONDS_FOR_HELLO]:
            self._drop(peer)
        self._refused.remind()
        steps, silent = [-1] * self._num_workers, [0.0] * self._num_workers
        for worker, peer in list(self._peers.items()):
            steps[worker], silent[worker] = peer.steps, round(now - peer.heard, 2)
            if silent[worker] > self.silence_seconds and not peer.has_left:
                self._give_up(worker, f"was not heard of for {silent[worker]:.0f} s")
        self._tell_all(ms.Beats(steps, silent))

    def lose(self, peer: Peer) -> None:
        """Forget a connection that has ended; a worker that has not left has failed."""
        self._strangers.pop(peer, None)
        if peer.worker is not None and self._peers.get(peer.worker) is peer:
            del self._peers[peer.worker]
            if not peer.has_left:
                self._give_up(peer.worker, "died")

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
            peer.send(line)


def _fail_with(
    failed: asyncio.Future[None], loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    """Set the exception of a callback as the exception of `failed`."""
    error = context.get("exception")
    if isinstance(error, Exception) and not failed.done():
        failed.set_exception(error)
