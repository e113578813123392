"""The workers: their processes, and the threads that give them closures, functions and values.

In this process each worker has a thread. A worker that lacks a function or value reports so, and is
sent the function or value. If a worker dies, Ray starts it again, and its closure returns to the
queue. A silent worker (`ray_cluster.py`) is killed first, if possible. In either case the servers
reject later requests of the lost worker for that closure. A worker gets its first closure once it
has started. If no worker is left, and no worker returns within `start_seconds` of
`gd.config.set_worker_timeouts`, waiting closures are cancelled with an error.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any  # Any: users' results, and Ray's handles

import jax

from graphdist.errors import WorkerError, WorkerTimeoutError
from graphdist.parameter_server import messages as ms
from graphdist.parameter_server import ray_cluster
from graphdist.parameter_server.closures import (
    SHUT_DOWN,
    ClosureQueue,
    TimeLimit,
    Waiting,
    cancelled,
    with_line_of_user,
)
from graphdist.parameter_server.connections import ServerIsLost
from graphdist.parameter_server.ray_cluster import ProcessIsSilent, ray
from graphdist.parameter_server.strategy import OWN, ParameterServerBase, VariablesApart
from graphdist.parameter_server.worker import ClosureWorker, Settings, imported_by_workers
from graphdist.tracing.user_lines import here

_SECONDS_OF_A_WAIT = 1.0
_POLL_SECONDS = 0.05
"""The interval at which a restarting worker is asked whether it is there."""
_log = logging.getLogger("graphdist")


_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Exit|Interrupt)\b.*", re.MULTILINE)


def _in_one_line(error: Exception) -> str:
    """Return the last line of the traceback in an error of Ray's, else its first line."""
    said = str(error)
    raised: list[str] = _RAISED.findall(said)
    return raised[-1] if raised else said.partition("\n")[0]


class Sent:
    """The functions and values that workers may need, as bytes by id, while they are in use."""

    def __init__(self, num_workers: int) -> None:
        """Begin without functions and values."""
        self._numbers = count()
        self._forgotten: list[deque[int]] = [deque() for _ in range(num_workers)]
        """For each worker, the ids of functions and values to forget."""
        self.objects: dict[int, tuple[bytes, Callable[[Any], Any]]] = {}

    def add(self, owner: Any, data: bytes, make: Callable[[Any], Any]) -> int:
        """Add a function or per-worker value until `owner` is gone, and return its id.

        A worker makes the function or value by calling `make` with the unpickled `data`.
        """
        number = next(self._numbers)
        self.objects[number] = data, make
        weakref.finalize(owner, self._forget, number).atexit = False
        return number

    def _forget(self, number: int) -> None:
        self.objects.pop(number, None)
        for of_worker in self._forgotten:
            of_worker.append(number)

    def forgotten_by(self, worker: int) -> tuple[int, ...]:
        """Return the ids that a worker should forget, and remove them from its list."""
        of_worker = self._forgotten[worker]
        return tuple(of_worker.popleft() for _ in range(len(of_worker)))


def start_workers(strategy: ParameterServerBase) -> list[Any]:
    """Start the actors of all workers."""
    defaults = {"num_cpus": 0} if strategy.address is None else {}
    actor = ray().remote(**OWN, **{**defaults, **strategy.worker_options})(ClosureWorker)
    settings = Settings(
        strategy.devices_per_worker,
        jax.enable_x64.value,
        strategy.server_names,
        strategy.key,
        strategy.timeouts,
        strategy.num_workers > 1 and not strategy.allow_lost_updates,
        [folder or os.getcwd() for folder in sys.path],
        tuple(imported_by_workers),
    )
    return [ray_cluster.ask(actor, index, settings) for index in range(strategy.num_workers)]


class Serving:
    """One worker, and the thread that gives it closures."""

    def __init__(
        self,
        queue: ClosureQueue,
        index: int,
        actor: Any,
        missing: dict[int, str],
        traffic: ms.Traffic,
        sent: Sent,
        strategy: ParameterServerBase,
    ) -> None:
        """Prepare the thread of a worker; `missing` says by index why workers have not started."""
        self._queue, self._traffic, self._sent = queue, traffic, sent
        self._index, self.actor, self._missing = index, actor, missing
        # A weak reference, since a strategy without references ends its workers and their threads.
        self._strategy = weakref.ref(strategy)
        self._servers, self._timeouts = strategy.servers, strategy.timeouts
        self._num_workers = strategy.num_workers
        self._place = ""

    def process(self) -> int:
        """Return the id of the worker's process, once it has started.

        Raises `WorkerTimeoutError` if it takes too long.
        """
        method = self.actor.process.options(concurrency_group=ray_cluster.GROUP)
        deadline = time.monotonic() + self._timeouts.start
        while True:
            try:
                return ray_cluster.answer_within(method, max(0.0, deadline - time.monotonic()))
            except ProcessIsSilent as error:
                raise WorkerTimeoutError(
                    f"worker {self._index} has not started within {self._timeouts.start:g} s",
                    source=here(),
                    hint="gd.config.set_worker_timeouts(start_seconds=...) waits longer",
                ) from error
            except ray().exceptions.RayError:
                time.sleep(_POLL_SECONDS)

    def _start_again(self) -> None:
        """End the worker's process, if it can be reached, and let Ray start another one."""
        with suppress(ray().exceptions.RayError, ValueError):  # it is already restarting
            ray_cluster.kill(self.actor, restarts=True)

    def run(self) -> None:
        """Give the worker closures until the queue is closed."""
        self._await_worker()
        while (closure := self._queue.take(self._index)) is not None:
            try:
                is_lost = self._run(closure)
            except Exception as error:
                self._queue.fail(closure, error)
                continue
            if is_lost:
                self._await_worker()

    def _run(self, closure: Waiting) -> bool:
        """Run a closure on the worker; if the worker is lost, put it back and return True."""
        errors = ray().exceptions
        try:
            outcome, result = self._outcome(closure)
        except errors.RayTaskError:
            raise
        except ProcessIsSilent as error:
            self._give_back(closure, str(error))
            self._start_again()
            return True
        except errors.RayError:
            self._give_back(closure, "has died")
            return True
        if isinstance(outcome, ms.Done):
            self._count(outcome)
            self._queue.finish(closure, partial(self._loaded, result))
        else:
            self._queue.fail(closure, self._error(outcome))
        return False

    def _give_back(self, closure: Waiting, why: str) -> None:
        """Put a closure back, once the servers reject writes of the lost worker for the closure."""
        if not self._queue.is_closed:
            name = closure.result.name
            _log.warning("worker %d, %s, %s: %r is run again", self._index, self._place, why, name)
        with _counting:
            self._traffic.worker_deaths += 1
            self._traffic.run_again += 1
        try:
            self._servers.end_attempts(closure.number, closure.attempt + 1)
        except ServerIsLost as lost:
            self._queue.fail(closure, self._error(lost))
        else:
            self._queue.put_back(closure)

    def _outcome(self, closure: Waiting) -> tuple[Any, Any]:
        """Return a closure's outcome and result; send the functions that the worker lacks."""
        origin = ms.Origin(closure.number, closure.attempt)
        request = self.actor.run, origin, closure.function, closure.arguments
        while True:
            moved, forgotten = dict(self._servers.moved), self._sent.forgotten_by(self._index)
            outcome, result = self._answer(ray_cluster.ask(*request, moved, forgotten))
            if isinstance(outcome, ms.NotSentYet):
                sent = self._sent.objects[outcome.number]
                problem = self._answer(ray_cluster.ask(self.actor.add, outcome.number, *sent))
                if problem is not None:
                    return problem, None
            elif isinstance(outcome, VariablesApart):
                self._running_strategy().keep_together(outcome.groups)
            else:
                return outcome, result

    def _answer(self, reference: Any) -> Any:
        """Return the worker's answer; raise `ProcessIsSilent` or Ray's errors."""
        return ray_cluster.answer(reference, self.actor, self._timeouts.silence)

    def _running_strategy(self) -> ParameterServerBase:
        strategy = self._strategy()
        assert strategy is not None, "its closures refer to it"
        return strategy

    def _count(self, done: ms.Done) -> None:
        with _counting:
            self._traffic.closures += 1
            self._traffic.bytes_read += done.bytes_read
            self._traffic.bytes_written += done.bytes_written
            self._traffic.written_twice += done.was_written_before

    def _error(self, outcome: ms.ClosureFailed | ServerIsLost) -> BaseException:
        if isinstance(outcome, ServerIsLost):
            return self._running_strategy().lost(outcome)
        outcome.error.add_note(f"in a worker:\n{outcome.traceback}")
        return outcome.error

    def _await_worker(self) -> None:
        """Wait until the worker has started, after any number of restarts; report long delays."""
        module = ray()
        late_at = time.monotonic() + self._timeouts.start
        beat, last_error = None, ""
        while module.is_initialized() and not self._queue.is_closed:
            try:
                beat = beat or ray_cluster.beat_of_worker(self.actor)
                ray_cluster.wait_for([beat], _SECONDS_OF_A_WAIT)
                self._place = ray_cluster.value_of(beat)
                self._missing.pop(self._index, None)
                return
            except ProcessIsSilent:
                pass
            except module.exceptions.RayError as error:
                beat, last_error = None, _in_one_line(error)
                time.sleep(_POLL_SECONDS)
            if time.monotonic() > late_at:
                self._miss(last_error)
                late_at = time.monotonic() + self._timeouts.start

    def _miss(self, last_error: str) -> None:
        """Restart a worker that does not start; cancel waiting closures if all are missing."""
        why = f"has not started within {self._timeouts.start:g} s"
        if last_error:
            why += f" ({last_error})"
        _log.warning("worker %d %s; it is started again", self._index, why)
        self._start_again()
        self._missing[self._index] = why
        missing = sorted(self._missing.copy().items())  # other threads change it
        if len(missing) == self._num_workers:
            all_missing = ", ".join(f"worker {each} {why}" for each, why in missing)
            self._queue.fail_all(
                WorkerError(
                    f"no worker runs scheduled functions: {all_missing}",
                    hint="Ray's logs say what keeps them from starting; "
                    "gd.config.set_worker_timeouts(start_seconds=...) waits longer",
                )
            )

    def _loaded(self, result: Any, limit: TimeLimit) -> Any:
        """Return a result; raise `ClosureCancelledError` if it was lost with its worker.

        Raises `WorkerTimeoutError` if the limit passes first.
        """
        if not isinstance(result, ms.LargeResult):
            return result
        reference, seconds = result.reference, limit.left()
        try:
            if seconds is None or ray_cluster.comes([reference], seconds):
                return self._answer(reference)
        except (ray().exceptions.RayError, ProcessIsSilent) as error:
            why = SHUT_DOWN if self._queue.is_closed else "the worker that had it is lost"
            lost = cancelled(why, "the result of a scheduled function is lost")
            raise with_line_of_user(lost) from error
        raise WorkerTimeoutError(
            f"the result of a scheduled function has not come from worker {self._index}, "
            f"{self._place}, within {limit}",
            source=here(),
            hint="fetch it again, or wait longer",
        )


_counting = Lock()
