"""The workers of a cluster, of which this process is one: how they start, fail and leave.

Theory of operation. Worker 0's address in the cluster is where the workers meet, through
`coordination.py`. When all are there, worker 0 says where JAX's own coordination service is going
to be, on a free port of the same host, and `jax.distributed` is started. All that can be wrong
until then (an address, a port, a worker that is not there) is an error with a time limit.

From then on JAX leaves failures to us (`jax_service.py`). What the coordination server tells of a
worker becomes this process's `failure`, and everything that waits for other workers raises it.

At its end a worker says goodbye. Worker 0 stays until the others are gone: they take leave of JAX's
service, and would wait for an answer. Those whose worker 0 failed end without that.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, cast  # Any: JSON

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.addresses import WorkerError, free_port, listen, listener_host, split_address
from graphdist.runtime.coordination import PROTOCOL, Connection, LeftError, Server
from graphdist.runtime.jax_service import JaxService
from graphdist.runtime.workers import WorkerTimeoutError, set_workers

SECONDS_TO_LEAVE = 5.0
"""How long worker 0, when it fails, keeps JAX's service up, and others wait for its answer."""
SECONDS_TO_NOTICE = 2.0
"""How much later than a collective's failure the news of a dead worker may come."""
EXIT_CODE = 1


class CollectiveTimeoutError(WorkerError, TimeoutError):
    """Workers that did not come to where the others wait for them in time."""


@dataclass(frozen=True)
class Patience:
    """How long workers wait for each other, in seconds.

    `start`: for all to be there. `silence`: until one that is not heard of counts as dead.
    """

    start: float = 300.0
    silence: float = 60.0


class Workers:
    """All workers, and this one's connection to the others."""

    def __init__(self, addresses: Sequence[str], index: int, patience: Patience) -> None:
        """Describe the workers; `start` meets them."""
        self.addresses, self.index, self.patience = tuple(addresses), index, patience
        self.failure: WorkerError | None = None
        self._connection: Any = None  # from `start` on
        self._jax: Any = None  # the same
        self._server: Server | None = None
        self._ordinals: dict[str, int] = {}
        self._failed = threading.Event()
        self._is_stuck = False
        self._crash = ""

    def __len__(self) -> int:
        return len(self.addresses)

    def name(self, worker: int) -> str:
        """Return how errors call one."""
        return f"worker {worker} ({self.addresses[worker]})"

    def names(self, workers: Sequence[int]) -> str:
        """Return how errors call several workers."""
        return ", ".join(map(self.name, workers))

    def start(self, at: Source = UNKNOWN) -> None:
        """Meet the others and start JAX; raises `WorkerError` for what keeps it from that."""
        address, patience = self.meet(at), self.patience
        self._jax = JaxService(address, len(self), self.index, patience.start, patience.silence)
        atexit.register(self._leave)
        hook = sys.excepthook

        def report(
            kind: type[BaseException], error: BaseException, where: TracebackType | None
        ) -> None:
            hook(kind, error, where)
            self._crashed(error)

        sys.excepthook = report

    def meet(self, at: Source = UNKNOWN) -> str:
        """Meet the others, and return where JAX's coordination service is going to be.

        Raises `WorkerError` for what keeps the workers apart.
        """
        deadline = time.monotonic() + self.patience.start
        host, port = split_address(self.addresses[0], at)
        if self.index == 0:
            listener = listen(host, port, self.name(0), at)
            self._server = Server(listener, len(self), self.patience.silence)
            self._server.start()
        stream = self._meet(host, port, deadline, at)
        self._connection = Connection(stream, self._note_failure, self.patience.silence)
        jax_address = f"{host}:{free_port(listener_host(host))}" if self.index == 0 else ""
        self._connection.put("start", jax_address)
        left = max(0.0, deadline - time.monotonic())
        given = self._connection.take("start", left, self._raise_failure)
        if given is None:
            missing = self._missing("start")
            raise self._refused(
                f"{self.names(missing)} did not start within {self.patience.start:g} s", at
            )
        address: str = given[0]
        return address

    def exchange(
        self, key: str, value: Any, what: str, at: Source = UNKNOWN, seconds: float | None = None
    ) -> list[Any]:
        """Return what all workers gave under a key, in their order.

        Raises `WorkerError` when one has failed, `CollectiveTimeoutError` when one does not come
        within `seconds`, by default as long as it may take to start.
        """
        limit = self.patience.start if seconds is None else seconds
        self._connection.put(key, value)
        try:
            given: list[Any] | None = self._connection.take(key, limit, self._raise_failure)
        except LeftError as left:
            raise self._ended_early(max(left.args[0], 0)) from None
        if given is None:
            self.fail(
                CollectiveTimeoutError(
                    f"{what} waits for {self.names(self._missing(key))}, which did not come "
                    f"within {limit:g} s",
                    source=at,
                    hint="all workers run the same program: the same steps in the same order",
                )
            )
        return given

    @property
    def count(self) -> int:
        """Return how many workers there are."""
        return len(self)

    def publish(self, name: str, value: str) -> None:
        """Say something to all; what was said before under a name stays, and this is dropped."""
        self._connection.say(name, value)

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return what was said under a name; None if nothing is within the time.

        Raises `WorkerError` when a worker has failed.
        """
        return cast("str | None", self._connection.hear(name, timeout_seconds, self._raise_failure))

    def barrier(self, name: str, timeout_seconds: float) -> None:
        """Return once all workers have come; raises `WorkerTimeoutError` if one does not."""
        try:
            self.exchange(f"barrier {name}", None, name, seconds=timeout_seconds)
        except CollectiveTimeoutError as error:
            raise WorkerTimeoutError(error.what, source=error.source, hint=error.hint) from error

    def ordinal(self, kind: str) -> int:
        """Return how often this was asked of a kind of thing: the same on all workers."""
        number = self._ordinals[kind] = self._ordinals.get(kind, -1) + 1
        return number

    def begin_step(self) -> int:
        """Note that a step begins, and return its number."""
        self._connection.steps += 1
        number: int = self._connection.steps
        return number

    def behind(self, step: int) -> list[int]:
        """Return the workers that have not begun a step, or of which nothing is heard."""
        if time.monotonic() - self._connection.heard > SECONDS_TO_NOTICE:
            return [0]  # who tells of all others
        found = [
            worker
            for worker, known in enumerate(self._connection.beats)
            if known is None or known[0] < step or known[1] > SECONDS_TO_NOTICE
        ]
        return [worker for worker in found if worker != self.index]

    def check(self, step: int = 0) -> None:
        """Raise the failure of another worker, or that one has left before a step, if so."""
        if self.failure is None and self._connection.left:
            for worker, steps in list(self._connection.left.items()):
                if steps < step and worker != self.index:
                    self.failure = self._ended_early(worker)
        if self.failure is not None:
            self._raise_failure()

    def fail(self, error: WorkerError) -> NoReturn:
        """Make an error the failure of all workers, and raise it."""
        self.failure = error
        self._connection.tell_failed(f"gave up: {error.what}")
        raise error

    def failure_behind(self, error: BaseException) -> WorkerError | None:
        """Return the failure that made a collective fail here, once it is known."""
        deadline = time.monotonic() + SECONDS_TO_NOTICE
        while time.monotonic() < deadline and not self._connection.left:
            if self._failed.wait(0.02):
                break
        if self.failure is None and self._connection.left:
            self.failure = self._ended_early(next(iter(self._connection.left)))
        return None if self.failure is error else self.failure

    def leave(self) -> None:
        """Say goodbye to the others."""
        self._connection.leave()
        self._connection.close()
        if self._server is not None:
            self._server.stop()

    def note_stuck(self) -> None:
        """Note that something is held up for ever: the interpreter cannot end as usual."""
        self._is_stuck = True

    # How it starts.

    def _meet(self, host: str, port: int, deadline: float, at: Source) -> socket.socket:
        """Return a connection on which the server has said welcome."""
        trouble = "no answer"
        while True:
            try:
                stream = socket.create_connection((host, port), timeout=1.0)
                try:
                    answer = self._greet(stream, deadline)
                    if "welcome" in answer:
                        return stream
                    if "refused" in answer:
                        stream.close()
                        raise self._refused(answer["refused"], at)
                    trouble = "something else answers there"
                except (TimeoutError, ValueError):
                    trouble = "something else answers there"
                stream.close()
            except OSError as error:
                trouble = error.strerror or str(error)
            if time.monotonic() > deadline:
                raise self._refused(
                    f"{self.name(self.index)} cannot reach {self.name(0)} within "
                    f"{self.patience.start:g} s: {trouble}",
                    at,
                )
            time.sleep(0.1)

    def _greet(self, stream: socket.socket, deadline: float) -> dict[str, Any]:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = {"hello": PROTOCOL, "worker": self.index, "workers": len(self)}
        stream.sendall(json.dumps(hello).encode() + b"\n")
        stream.settimeout(min(5.0, max(0.1, deadline - time.monotonic())))
        line = bytearray()
        while not line.endswith(b"\n"):  # byte by byte: what follows is not for us
            byte = stream.recv(1)
            if not byte or len(line) > 10_000:
                raise ValueError("no answer of ours")
            line += byte
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}

    def _refused(self, what: str, at: Source) -> WorkerError:
        error = WorkerError(
            what,
            source=at,
            hint="start the program once for every worker, each with the same addresses and its "
            "own number",
        )
        if self._connection is not None:
            self._connection.tell_failed(f"gave up: {what}")
        return error

    def _missing(self, key: str) -> list[int]:
        given = self._connection.who_gave(key)
        return [worker for worker in range(len(self)) if worker not in given]

    # How it fails.

    def _note_failure(self, worker: int, why: str) -> None:
        if worker == 0 and why == "died":
            self.note_stuck()  # JAX would wait for its service
        if worker == self.index or self.failure is not None:
            return
        self.failure = WorkerError(
            f"{self.name(worker)} {why}",
            hint="all workers stop when one does: look at what that one said, and start all again",
        )
        self._failed.set()

    def _ended_early(self, worker: int) -> WorkerError:
        return WorkerError(
            f"{self.name(worker)} ended its program before the others",
            hint="all workers run the same number of steps: see what ends the loop of that one",
        )

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise WorkerError(self.failure.what, hint=self.failure.hint)

    def _crashed(self, error: BaseException) -> None:
        """Tell the others of an exception that ends this worker, and say whose fault it is."""
        self._crash = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        self._connection.tell_failed(self._crash)
        if isinstance(error, WorkerError):
            return
        if isinstance(error, ValueError | RuntimeError) and "Gloo" in str(error):
            behind = self.failure_behind(error)
            if behind is not None:
                print(f"graphdist.errors.WorkerError: {behind}", file=sys.stderr, flush=True)

    # How it leaves.

    def _leave(self) -> None:
        is_well = self.failure is None and not self._crash
        self._connection.leave()
        if self._server is not None:
            self._server.all_left.wait(None if is_well else SECONDS_TO_LEAVE)
        limit = self.patience.silence if is_well else SECONDS_TO_LEAVE
        if self._is_stuck or not self._jax.leave(limit):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_CODE)
        self.leave()


def end_process(error: WorkerError) -> NoReturn:
    """End the process at once, with the stack of the main thread and an error."""
    sys.stdout.flush()
    print("Traceback of the main thread (most recent call last):", file=sys.stderr)
    traceback.print_stack(sys._current_frames().get(threading.main_thread().ident or 0))
    print(f"graphdist.errors.{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(EXIT_CODE)


_workers: Workers | None = None


def current_workers() -> Workers | None:
    """Return the workers that this process is one of, None if it is alone."""
    return _workers


def join_workers(
    addresses: Sequence[str], index: int, patience: Patience, at: Source = UNKNOWN
) -> Workers:
    """Return the workers at these addresses, of which this process is number `index`.

    They are met once a process. Raises `WorkerError` when it is or becomes one of other workers.
    """
    global _workers
    if _workers is None:
        found = Workers(addresses, index, patience)
        found.start(at)
        _workers = found
        set_workers(found)
    elif (_workers.addresses, _workers.index) != (tuple(addresses), index):
        raise WorkerError(
            f"this process is {_workers.name(_workers.index)} of {len(_workers)} already, and "
            f"cannot be worker {index} of {len(addresses)} too",
            source=at,
            hint="give all strategies of a process the same cluster",
        )
    return _workers
