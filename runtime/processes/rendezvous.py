"""The rendezvous of a cluster: each process connects to worker 0's server, with the handshake.

Names may not resolve yet, and worker 0 may not listen yet, so all steps are retried until a
deadline. An error that no retry can solve ends the rendezvous at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from graphdist.ir.source import UNKNOWN, Source
from graphdist.quoted import unquoted
from graphdist.runtime.processes import messages as ms
from graphdist.runtime.processes.addresses import (
    WorkerError,
    address_towards,
    listen,
    numeric_addresses,
    resolved,
    split_address,
)
from graphdist.runtime.processes.handshake import PROTOCOL, JobIdentity

HINT = (
    "start the program once for every worker, each with the same addresses and its own number, and "
    "with the same GRAPHDIST_JOB_ID and GRAPHDIST_JOB_TOKEN if these are set"
)
_SECONDS_BETWEEN_TRIES = 0.1
_SECONDS_TO_CONNECT = 1.0
_SECONDS_TO_ANSWER = 5.0
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
Result = TypeVar("Result")


@dataclass
class Rendezvous:
    """The rendezvous of this process, which has the index `index` among the workers `names`.

    `server` is the address of worker 0. `cluster` has the known addresses of workers, from which
    this process finds out which of its own addresses other workers can reach. `seconds` is the time
    limit.
    """

    names: Sequence[str]
    server: str
    cluster: Sequence[str]
    index: int
    job: JobIdentity
    seconds: float
    at: Source = UNKNOWN
    bound: str = field(default="", init=False)
    """The IP address at which this process listens as worker 0; "" before, and in other workers."""

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.seconds
        self._port = split_address(self.server, self.at)[1]

    def listener(self, bind: str) -> socket.socket:
        """Return the listening socket of worker 0: at its address, or at `bind` if given.

        Raises `WorkerError` if the address is in use, or is no address of this machine.
        """
        who = self.names[0]

        def candidates() -> list[str]:
            if bind:
                return resolved(bind, self._port)
            return numeric_addresses(self.server, self.cluster, self.at)

        address = self._until_deadline(candidates, f"{who} cannot listen")[0]
        listener = listen(address, self._port, who, self.at)
        self.bound = str(listener.getsockname()[0])
        return listener

    def connection(self) -> socket.socket:
        """Return a connection to worker 0's server, after the handshake.

        Raises `WorkerError` if there is no connection in time, or the server refuses.
        """
        what = f"{self.names[self.index]} cannot reach {self.names[0]}"
        return self._until_deadline(self._connected, what)

    def own_address(self, stream: socket.socket) -> str:
        """Return the IP address at which the other workers reach this process.

        `stream` is the connection to worker 0's server.
        """
        if self.bound in _LOOPBACK_OF:
            for address in self.cluster[1:]:
                towards = address_towards(split_address(address)[0])
                if towards is not None:
                    return towards
        return str(stream.getsockname()[0])

    def refused(self, what: str) -> WorkerError:
        """Return the error of a worker that cannot join the other workers."""
        return WorkerError(what, source=self.at, hint=HINT)

    def _until_deadline(self, attempt: Callable[[], Result], what: str) -> Result:
        while True:
            try:
                return attempt()
            except TimeoutError:
                trouble = "no answer"
            except OSError as error:
                trouble = error.strerror or str(error)
            except _RefusedError as error:
                trouble = unquoted(error.refused.why)
                if not error.refused.may_retry:
                    raise self.refused(f"{what}: {trouble}") from None
            if time.monotonic() > self.deadline:
                raise self.refused(f"{what} within {self.seconds:g} s: {trouble}")
            time.sleep(_SECONDS_BETWEEN_TRIES)

    def _connected(self) -> socket.socket:
        candidates = [_LOOPBACK_OF.get(self.bound, self.bound)]
        if not self.bound:
            candidates = numeric_addresses(self.server, self.cluster, self.at)
        for number, address in enumerate(candidates):
            try:
                stream = socket.create_connection((address, self._port), _SECONDS_TO_CONNECT)
                break
            except OSError:
                if number == len(candidates) - 1:
                    raise
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            left = self.deadline - time.monotonic()
            stream.settimeout(min(_SECONDS_TO_ANSWER, max(0.1, left)))
            self._greet(stream)
        except (TimeoutError, ms.MessageError) as error:
            stream.close()
            raise OSError("another program answers there") from error
        except BaseException:
            stream.close()
            raise
        return stream

    def _greet(self, stream: socket.socket) -> None:
        challenge = _next(stream)
        if not isinstance(challenge, ms.Challenge) or challenge.protocol != PROTOCOL:
            raise ms.MessageError("no server of this protocol")
        hello = self.job.hello(challenge, self.index, len(self.names))
        stream.sendall(hello.line())
        answer = _next(stream)
        if isinstance(answer, ms.Refused):
            raise _RefusedError(answer)
        if not isinstance(answer, ms.Welcome):
            raise ms.MessageError("no greeting")
        if not self.job.is_welcome(answer, hello, challenge):
            why = "the program that answers there does not know the job's token"
            raise _RefusedError(ms.Refused(why, may_retry=0))


@dataclass(eq=False)
class _RefusedError(Exception):
    refused: ms.Refused


def _next(stream: socket.socket) -> ms.Message:
    line, until = bytearray(), time.monotonic() + _SECONDS_TO_ANSWER
    while not line.endswith(b"\n"):  # byte by byte, since `Connection` reads what follows the line
        if time.monotonic() > until:
            raise TimeoutError
        byte = stream.recv(1)
        if not byte or len(line) > ms.MAX_HELLO_BYTES:
            raise ms.MessageError("the connection ends without an answer")
        line += byte
    return ms.parsed(bytes(line), ms.TO_STRANGERS)
