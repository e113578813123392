"""The workers of a cluster, of which this process is one: how they start, fail and leave.

Start. All workers connect to the server at worker 0's address in the cluster (`rendezvous.py`,
`server.py`). When all are connected, worker 0 announces its port for JAX's own coordination
service; then `jax.distributed` and the devices are started. Every problem before that (an address,
a port, a missing worker) is an error within a time limit.

Failure. After the rendezvous this package reports failures, not JAX (`jax_service.py`). When the
coordination server reports that a worker failed, this process has a `failure`, and every call that
waits for other workers raises the failure. A thread of this package that fails has the same effect.

End. A worker tells the server that it leaves. Worker 0 stays until the other workers have left,
because these disconnect from JAX's service in worker 0 and wait for an answer of the service. If
worker 0 failed, the other workers end without disconnecting.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar  # Any: JSON, and the arguments of handlers

import jax

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.processes.abandonable_calls import called_while
from graphdist.runtime.processes.addresses import ReservedPort, WorkerError, is_loopback
from graphdist.runtime.processes.connection import Connection, LeftError
from graphdist.runtime.processes.handshake import JobIdentity
from graphdist.runtime.processes.interrupts import raise_ignored_interrupts
from graphdist.runtime.processes.jax_service import JaxService, ServiceAddress
from graphdist.runtime.processes.process_end import leaves_at_exit
from graphdist.runtime.processes.rendezvous import Rendezvous
from graphdist.runtime.processes.server import Server
from graphdist.runtime.processes.workers import Workers, WorkerTimeouts

SECONDS_TO_LEAVE = 5.0
"""How long a failing worker 0 keeps JAX's service, and other workers wait for its answer."""
SECONDS_FOR_OTHERS_TO_END = 30.0
"""How long worker 0, interrupted at its end, waits for the others to finish writing."""
SECONDS_TO_NOTICE = 2.0
"""How long after a collective's failure the report of a dead worker may arrive."""
_HINT = "all workers stop when one does: look at what that one said, and start all again"
EXIT_CODE = 1
INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
Result = TypeVar("Result")
_log = logging.getLogger("graphdist")


class CollectiveTimeoutError(WorkerError, TimeoutError):
    """Workers did not arrive in time at a point where other workers wait for them."""


class ClusterWorkers(Workers):
    """All workers of a cluster, and this worker's connection to the others."""

    def __init__(
        self,
        addresses: Sequence[str],
        index: int,
        timeouts: WorkerTimeouts,
        job: JobIdentity | None = None,
        bind: str = "",
        server: str = "",
    ) -> None:
        """Describe the workers; `start` connects to them.

        `bind` is the address at which worker 0 listens; the default is its own. `server` is the
        address of worker 0's server, if `addresses` are names only.
        """
        self.addresses, self.timeouts = tuple(addresses), timeouts
        self.index, self.count = index, len(addresses)
        self.failure: WorkerError | None = None
        self._job, self._bind, self._server_address = job or JobIdentity(), bind, server
        self._connection: Any = None  # from `start` on
        self._jax: JaxService | None = None
        self._jax_port: ReservedPort | None = None
        self._server: Server | None = None
        self._ordinals: dict[str, int] = {}
        self._last_check = 0
        self._failed = threading.Event()
        self._is_stuck = self._was_interrupted = self._is_interrupted_at_end = False
        self._crash = ""
        self._reasons: dict[int, str] = {}
        """The reasons why workers have failed."""

    def __len__(self) -> int:
        return self.count

    def name(self, worker: int) -> str:
        """Return the name of a worker in errors."""
        return f"worker {worker} ({self.addresses[worker]})"

    def names(self, workers: Sequence[int]) -> str:
        """Return the names of several workers in errors."""
        return ", ".join(map(self.name, workers))

    def start(self, at: Source = UNKNOWN, jax_service: JaxService | None = None) -> None:
        """Connect to the other workers and start JAX; raises `WorkerError` if that fails.

        `jax_service` is the connection to JAX's service if this package made one already.
        """
        place, timeouts = self.rendezvous(at), self.timeouts
        leaves_at_exit(self)
        hook = sys.excepthook

        def report(*raised: Any) -> None:
            try:
                hook(*raised)
            finally:  # stderr may be closed
                self._crashed(raised[1])

        sys.excepthook = report
        raise_ignored_interrupts()
        if jax.distributed.is_initialized():
            self._jax = jax_service
            self._close_port()
            self._require_processes_of_jax(at)
            return
        service = self._jax = JaxService(place, len(self), self.index, self.thread_failed)
        try:
            self.supervise(lambda: service.join(timeouts.start))
        except WorkerError:
            raise
        except (RuntimeError, ValueError) as error:
            raise self.failure_behind(error) or error from None
        finally:
            self._close_port()

    def _require_processes_of_jax(self, at: Source) -> None:
        of_jax = jax.process_index(), jax.process_count()
        if of_jax != (self.index, len(self)):
            raise WorkerError(
                f"this process is {self.name(self.index)} of {len(self)}, and process {of_jax[0]} "
                f"of {of_jax[1]} of JAX, which is initialized already",
                source=at,
                hint="leave jax.distributed.initialize out, or TF_CONFIG and the resolver",
            )

    def _close_port(self) -> None:
        if self._jax_port is not None:
            self._jax_port.close()

    def supervise(self, fn: Callable[[], Result]) -> Result:
        """Return the result of a function on another thread; raise if a worker fails meanwhile."""
        return called_while(self.check, fn, self.set_stuck)

    def rendezvous(self, at: Source = UNKNOWN) -> ServiceAddress:
        """Connect to the other workers, and return the address for JAX's coordination service.

        Raises `WorkerError` if the workers do not all arrive.
        """
        server = self._server_address or self.addresses[0]
        cluster = (server,) if self._server_address else self.addresses
        names, seconds = list(map(self.name, range(len(self)))), self.timeouts.start
        rendezvous = Rendezvous(names, server, cluster, self.index, self._job, seconds, at)
        try:
            return self._joined(rendezvous)
        except BaseException as error:
            if self._connection is not None:
                self._connection.tell_failed(f"gave up: {getattr(error, 'what', error)}")
                self._connection.close()
            if self._server is not None:
                self._server.stop()
            self._close_port()
            raise

    def _joined(self, rendezvous: Rendezvous) -> ServiceAddress:
        silence = self.timeouts.silence
        if self.index == 0:
            listener = rendezvous.listener(self._bind)
            self._server = Server(listener, len(self), silence, self._job, self.thread_failed)
            self._server.start()
            if not self._job.token and len(self) > 1 and not is_loopback(rendezvous.bound):
                _log.warning(
                    "worker 0 listens at %s and the job has no token: any program that reaches it "
                    "can join. Give all workers the same secret in GRAPHDIST_JOB_TOKEN",
                    rendezvous.bound,
                )
        stream = rendezvous.connection()
        own, host = rendezvous.own_address(stream), str(stream.getpeername()[0])
        self._connection = Connection(stream, self._set_failure, silence)
        bind = rendezvous.bound or host
        if self.index == 0:
            self._jax_port = ReservedPort(bind)
        self._connection.put("start", self._jax_port.number if self._jax_port else 0)
        left = max(0.0, rendezvous.deadline - time.monotonic())
        ports = self._connection.take("start", left, self._raise_failure)
        if ports is None:
            refusals = [] if self._server is None else self._server.refusals
            what = f"{self._missing('start')} did not start within {self.timeouts.start:g} s"
            raise rendezvous.refused("; ".join([what, *refusals]))
        return ServiceAddress(host, int(ports[0]), bind, own)

    def exchange(
        self, key: str, value: Any, what: str, at: Source = UNKNOWN, seconds: float | None = None
    ) -> list[Any]:
        """Return all workers' values for a key, in the order of workers.

        Raises `WorkerError` if a worker has failed, `CollectiveTimeoutError` if a worker sends no
        value within `seconds`; the default is the time limit of the start.
        """
        limit = self.timeouts.start if seconds is None else seconds
        self._connection.put(key, value)
        try:
            values: list[Any] | None = self._connection.take(key, limit, self._raise_failure)
        except LeftError as left:
            raise self._ended_early(max(left.args[0], 0), what, at) from None
        if values is None:
            missing = self._missing(key)
            values = self._connection.take(key, 0.0, self._raise_failure)  # may be complete by now
        if values is None:
            self.fail(
                CollectiveTimeoutError(
                    f"{what} waits for {missing}, which did not come within {limit:g} s",
                    source=at,
                    hint="all workers run the same program: the same steps in the same order",
                )
            )
        return values

    def publish(self, name: str, value: str) -> None:
        """Send a text to all workers; only the first text under a name is kept."""
        self._connection.say(name, value)

    def heard(self, name: str, timeout_seconds: float) -> str | None:
        """Return the text under a name; None if it does not arrive in time.

        Raises `WorkerError` if a worker has failed.
        """
        return self._connection.hear(name, timeout_seconds, self._raise_failure)

    def heard_from(self, worker: int, name: str, timeout_seconds: float) -> str | None:
        """Return the text of a worker under a name; None if it does not arrive in time.

        Raises `WorkerError` if the worker has left, died, or is silent. A worker that has only
        failed is waited for: its threads still answer, to finish the checkpoint that all workers
        write.
        """

        def stop() -> None:
            if self._connection.is_gone(worker):
                raise self._gone_error(worker)

        return self._connection.hear(f"{name}/{worker}", timeout_seconds, stop)

    def ordinal(self, kind: str) -> int:
        """Return how often this was called for `kind` before. All workers get the same count."""
        self._ordinals[kind] = self._ordinals.get(kind, -1) + 1
        return self._ordinals[kind]

    def begin_step(self) -> int:
        """Count a step that begins, and return its index."""
        self._connection.steps += 1
        return self._connection.steps

    def is_check_due(self, every: int | None) -> bool:
        """Return whether values are compared before the next step.

        Values are compared every `every` steps, or never if `every` is None. All workers get the
        same answer.
        """
        number = self._connection.steps + 1
        if every is None or number // every == self._last_check // every:
            return False
        self._last_check = number
        return True

    def behind(self, step: int) -> list[int]:
        """Return the workers that have not begun a step, or are silent."""
        if time.monotonic() - self._connection.heard > SECONDS_TO_NOTICE:
            return [0]  # its server reports on all others
        beats = self._connection.beats
        return [
            worker
            for worker, (steps, silent) in enumerate(zip(beats.steps, beats.silent, strict=True))
            if worker != self.index and (steps < step or silent > SECONDS_TO_NOTICE)
        ]

    def check(self, step: int = 0) -> None:
        """Raise `WorkerError` if another worker has failed, or has left before a step."""
        if self.failure is None and self._connection.left:
            for worker, steps in list(self._connection.left.items()):
                if steps < step and worker != self.index:
                    self.failure = self._ended_early(worker)
        if self.failure is not None:
            self._raise_failure()

    def fail(self, error: WorkerError) -> NoReturn:
        """Make an error the failure of all workers, and raise the error."""
        self.failure = error
        self._connection.tell_failed(f"gave up: {error.what}")
        raise error

    def failure_behind(self, error: BaseException) -> WorkerError | None:
        """Return the failure of a worker that caused this error; wait briefly for its report."""
        deadline = time.monotonic() + SECONDS_TO_NOTICE
        while time.monotonic() < deadline and not self._connection.left:
            if self._failed.wait(0.02):
                break
        if self.failure is None and self._connection.left:
            self.failure = self._ended_early(next(iter(self._connection.left)))
        return None if self.failure is error else self.failure

    def leave(self) -> None:
        """Tell the other workers that this worker leaves, and close the connection."""
        self._close_port()
        self._connection.leave()
        self._connection.close()
        if self._server is not None:
            self._server.stop()

    def set_stuck(self) -> None:
        """Record that a thread is blocked for ever, so that Python cannot shut down."""
        self._is_stuck = True

    def _missing(self, key: str) -> str:
        """Return the names of the workers that have not sent a value of an exchange."""
        arrived = self._connection.who_gave(key)
        if arrived is None:
            return f"the coordination server of {self.name(0)}"
        return self.names([worker for worker in range(len(self)) if worker not in arrived])

    # Failures.

    def _set_failure(self, worker: int, why: str) -> None:
        if worker == 0 and why == "died":
            self.set_stuck()  # JAX would wait for its service
        self._reasons.setdefault(worker, why)
        if self.failure is not None or self._crash:
            return
        if worker == self.index:
            gone = why == "died"
            why = "has lost its coordination server" if gone else f"{why}: the others gave it up"
        self.failure = WorkerError(f"{self.name(worker)} {why}", hint=_HINT)
        self._failed.set()
        if worker == 0 and self._jax is None and jax.distributed.is_initialized():
            self._print(self.failure)  # JAX ends a process without its service, with no exception

    def thread_failed(self, why: str) -> None:
        """Make an error of a thread of this process the failure of all workers."""
        if self.failure is None:
            self.failure = WorkerError(f"{self.name(self.index)} cannot go on: {why}")
            self._failed.set()
        if self._connection is not None:
            self._connection.tell_failed(why)

    def _ended_early(self, worker: int, waiting: str = "", at: Source = UNKNOWN) -> WorkerError:
        which = f", and {waiting} waits for it" if waiting else ""
        return WorkerError(
            f"{self.name(worker)} ended its program before the others{which}",
            source=at,
            hint="all workers run the same number of steps: see what ends the loop of that one",
        )

    def _gone_error(self, worker: int) -> WorkerError:
        if worker not in self._reasons and worker in self._connection.left:
            return self._ended_early(worker)
        cut_off = "cannot be heard: the coordination server is gone"
        return WorkerError(f"{self.name(worker)} {self._reasons.get(worker, cut_off)}", hint=_HINT)

    def _raise_failure(self) -> None:
        if self.failure is not None:
            kind, failure = type(self.failure), self.failure
            raise kind(failure.what, source=failure.source, hint=failure.hint)

    def _crashed(self, error: BaseException) -> None:
        """Tell the other workers that `error` ends this worker; print the failure behind it."""
        self._crash = f"failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if isinstance(error, KeyboardInterrupt):
            self._was_interrupted, self._crash = True, "was interrupted"
        self._connection.tell_failed(self._crash)
        if isinstance(error, WorkerError):
            return
        is_of_collective = isinstance(error, ValueError | RuntimeError) and "Gloo" in str(error)
        if is_of_collective and (behind := self.failure_behind(error)):
            self._print(behind)

    # The end of the process.

    def leave_at_exit(self) -> None:
        """Leave the job, and wait for workers that need this process.

        Afterwards Python ends the process. If Python cannot, end the process at once.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._end_interrupted)
        is_well = self.failure is None and not self._crash
        self._connection.leave()
        self._wait_for_others(self.timeouts.step if is_well else SECONDS_TO_LEAVE)
        limit = self.timeouts.silence if is_well else SECONDS_TO_LEAVE
        # Python's shutdown joins threads and waits for the devices. With a blocked call it would
        # never end. If the program initialized JAX itself, JAX leaves its service by itself.
        if self._is_stuck or (self._jax is not None and not self._jax.leave(limit)):
            self.failure = self.failure or WorkerError(
                f"{self.name(0)} did not answer within {limit:g} s, where {self.name(self.index)} "
                f"leaves the job",
                hint=_HINT,
            )
        if self.failure is None and not self._is_interrupted_at_end:
            self.leave()
            return
        if self.failure is not None and not self._crash:  # it was not raised: print it
            self._print(self.failure)
        self._end_at_once(INTERRUPTED_EXIT_CODE if self._was_interrupted else EXIT_CODE)

    def _print(self, failure: WorkerError) -> None:
        with suppress(OSError, ValueError):  # stderr may be closed
            print(f"graphdist.errors.{type(failure).__name__}: {failure}", file=sys.stderr)

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets, since only the parent is in the job."""
        self._connection.abandon()
        if self._server is not None:
            self._server.abandon()

    def _wait_for_others(self, seconds: float | None) -> None:
        """Wait while other workers need JAX's service; at most `seconds`, None for no limit."""
        began = time.monotonic()
        while self._server is not None and self._server.has_others():
            if self._is_interrupted_at_end:
                seconds = SECONDS_FOR_OTHERS_TO_END
            if seconds is not None and time.monotonic() > began + seconds:
                _log.warning("worker 0 ends, but other workers have not ended within %g s", seconds)
                return
            time.sleep(0.02)

    def _end_interrupted(self, *_: Any) -> None:
        """Handle Ctrl-C in `leave_at_exit`, where an exception would skip the rest of the function.

        Other workers need worker 0 while they write checkpoints. After a second Ctrl-C worker 0
        does not wait for them.
        """
        has_others = self._server is not None and self._server.has_others()
        if self._is_interrupted_at_end or not has_others:
            self._end_at_once(INTERRUPTED_EXIT_CODE)
        self._is_interrupted_at_end = self._was_interrupted = True
        _log.warning(
            "worker 0 is interrupted at its end, and waits %g s for the others to end; Ctrl-C "
            "again ends it at once",
            SECONDS_FOR_OTHERS_TO_END,
        )

    def _end_at_once(self, status: int) -> NoReturn:
        with suppress(OSError, ValueError):  # they may be closed
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
