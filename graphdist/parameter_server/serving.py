"""The threads that give closures to workers, one for each, and send functions and values.

A worker is sent a function or value when it reports that it lacks it. If a worker dies, Ray starts
it again, and its closure returns to the queue. A silent worker (`heartbeats.py`) is killed first,
if possible. In either case the servers then reject its requests for that closure. A worker gets its
first closure once it has started. If no worker is left, and none returns within `start_seconds` of
`gd.config.set_worker_timeouts`, waiting closures are cancelled with an error.
"""

from __future__ import annotations

import logging
import re
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock
from typing import Any  # Any: users' results, and Ray's handles

from graphdist.errors import WorkerError, WorkerTimeoutError
from graphdist.parameter_server.closures import (
    SHUT_DOWN,
    ClosureQueue,
    Waiting,
    cancelled,
    with_line_of_user,
)
from graphdist.parameter_server.heartbeats import answer, beat_of_worker, comes, wait_for
from graphdist.parameter_server.messages import (
    Apart,
    Closure,
    ClosureFailed,
    Done,
    LargeResult,
    LostServer,
    Missing,
    Traffic,
)
from graphdist.parameter_server.ray_cluster import ProcessIsSilent, ask, ray, value_of
from graphdist.parameter_server.servers import ServerIsLost
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.time_limit import TimeLimit
from graphdist.parameter_server.worker_actors import WorkerActors
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
        self.functions: dict[int, bytes] = {}
        self.values: dict[int, tuple[bytes, bool]] = {}

    def add_function(self, data: bytes) -> int:
        """Add a function, and return its id."""
        number = next(self._numbers)
        self.functions[number] = data
        return number

    def add_value(self, data: bytes, is_iterator: bool) -> int:
        """Add a per-worker value, and return its id."""
        number = next(self._numbers)
        self.values[number] = data, is_iterator
        return number

    def forget_with(self, owner: Any, number: int) -> None:
        """Forget a function or value, here and in the workers, once its owner is gone."""
        weakref.finalize(owner, self._forget, number).atexit = False

    def _forget(self, number: int) -> None:
        self.functions.pop(number, None)
        self.values.pop(number, None)
        for of_worker in self._forgotten:
            of_worker.append(number)

    def forgotten_by(self, worker: int) -> tuple[int, ...]:
        """Return the ids that a worker should forget, and remove them from its list."""
        of_worker = self._forgotten[worker]
        return tuple(of_worker.popleft() for _ in range(len(of_worker)))


class Serving:
    """The thread of one worker."""

    def __init__(
        self,
        queue: ClosureQueue,
        workers: WorkerActors,
        index: int,
        traffic: Traffic,
        sent: Sent,
        strategy: ParameterServerBase,
    ) -> None:
        """Prepare to serve one worker from the queue."""
        self._queue, self._traffic, self._sent = queue, traffic, sent
        self._workers, self._index = workers, index
        self._actor = workers.actors[index]
        # Weakly: a strategy without references ends its workers, and this thread with them.
        self._strategy = weakref.ref(strategy)
        self._servers, self._timeouts = strategy.servers, strategy.timeouts
        self._place = ""

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
        module = ray()
        try:
            outcome, load = self._outcome(closure)
        except module.exceptions.RayTaskError:
            raise
        except ProcessIsSilent as error:
            self._give_back(closure, str(error))
            self._workers.start_again(self._index)
        except module.exceptions.RayError:
            self._give_back(closure, "has died")
        else:
            if isinstance(outcome, Done):
                self._count(outcome)
                self._queue.finish(closure, load)
            else:
                self._queue.fail(closure, self._error(outcome))
            return False
        return True

    def _give_back(self, closure: Waiting, why: str) -> None:
        """Put a closure back, once the lost worker can no longer write for it."""
        if not self._queue.is_closed:
            _log.warning(
                "worker %d, %s, %s: %r is run again", self._index, self._place, why, closure.name
            )
        with _counting:
            self._traffic.worker_deaths += 1
            self._traffic.run_again += 1
        try:
            self._servers.end_attempts(closure.number, closure.attempt + 1)
        except ServerIsLost as lost:
            self._queue.fail(closure, self._error(LostServer(lost.server, lost.why)))
        else:
            self._queue.put_back(closure)

    def _outcome(self, closure: Waiting) -> tuple[Any, Callable[[TimeLimit], Any]]:
        """Return a closure's outcome and the loader of its result; send what the worker lacks."""
        while True:
            moved = (self._servers.moves, dict(self._servers.moved))
            message = Closure(
                closure.number,
                closure.function,
                closure.arguments,
                closure.attempt,
                moved,
                self._sent.forgotten_by(self._index),
            )
            outcome, result = self._answer(ask(self._actor.run, message))
            if isinstance(outcome, Missing):
                if (problem := self._send(outcome)) is not None:
                    return problem, lambda limit: None
            elif isinstance(outcome, Apart):
                self._bring_together(outcome)
            else:
                return outcome, partial(self._loaded, result)

    def _answer(self, reference: Any) -> Any:
        """Return the worker's answer; raise `ProcessIsSilent` or Ray's errors."""
        return answer(reference, partial(beat_of_worker, self._actor), self._timeouts.silence)

    def _send(self, missing: Missing) -> ClosureFailed | None:
        """Send the worker missing functions and values; return the error that they raised there."""
        if missing.function is not None:
            data = self._sent.functions[missing.function]
            found: ClosureFailed | None = self._answer(
                ask(self._actor.add_function, missing.function, data)
            )
            return found
        for number in missing.resources:
            problem: ClosureFailed | None = self._answer(
                ask(self._actor.add_value, number, *self._sent.values[number])
            )
            if problem is not None:
                return problem
        return None

    def _bring_together(self, apart: Apart) -> None:
        strategy = self._strategy()
        assert strategy is not None
        strategy.keep_together(list(apart.groups))

    def _count(self, done: Done) -> None:
        with _counting:
            self._traffic.closures += 1
            self._traffic.bytes_read += done.bytes_read
            self._traffic.bytes_written += done.bytes_written
            self._traffic.written_twice += done.was_written_before

    def _error(self, outcome: ClosureFailed | LostServer) -> BaseException:
        strategy = self._strategy()
        if isinstance(outcome, LostServer):
            assert strategy is not None
            return strategy.lost(outcome.server, outcome.why)
        outcome.error.add_note(f"in a worker:\n{outcome.traceback}")
        return outcome.error

    def _await_worker(self) -> None:
        """Wait until the worker has started, after any number of restarts; report long delays."""
        module = ray()
        late_at = time.monotonic() + self._timeouts.start
        beat, last_error = None, ""
        while module.is_initialized() and not self._queue.is_closed:
            try:
                beat = beat or beat_of_worker(self._actor)
                wait_for([beat], _SECONDS_OF_A_WAIT)
                self._place = value_of(beat)
                self._workers.come(self._index)
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
        """Restart a worker that does not start; cancel waiting closures if there is no other."""
        why = f"has not started within {self._timeouts.start:g} s"
        if last_error:
            why += f" ({last_error})"
        _log.warning("worker %d %s; it is started again", self._index, why)
        self._workers.start_again(self._index)
        if all_missing := self._workers.miss(self._index, why):
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
        if not isinstance(result, LargeResult):
            return result
        reference, seconds = result.reference, limit.left()
        try:
            if seconds is None or comes([reference], seconds):
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
