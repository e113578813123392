"""The threads that give closures to workers, one for each worker, and what workers are sent.

What a worker lacks is sent when it says so; a worker that dies is started again by Ray, and its
closure goes back to the queue.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from threading import Lock
from typing import Any  # Any: users' results, and Ray's handles

import jax

from graphdist.errors import ClosureCancelledError
from graphdist.parameter_server.closures import ClosureQueue, Waiting
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
from graphdist.parameter_server.ray_cluster import ray
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import ClosureWorker, Settings, imported_by_workers
from graphdist.tracing.user_lines import here

_POLL_SECONDS = 0.05
"""How often a worker that is being started again is asked whether it is there."""


class Sent:
    """What workers may need, as bytes by number."""

    def __init__(self) -> None:
        """Start empty."""
        self._numbers = count()
        self.functions: dict[int, bytes] = {}
        self.values: dict[int, tuple[bytes, bool]] = {}

    def add_function(self, data: bytes) -> int:
        """Return the number of a function."""
        number = next(self._numbers)
        self.functions[number] = data
        return number

    def add_value(self, data: bytes, is_iterator: bool) -> int:
        """Return the number of a per-worker value."""
        number = next(self._numbers)
        self.values[number] = data, is_iterator
        return number


class WorkerActors:
    """The actors of all workers."""

    def __init__(self, strategy: ParameterServerBase) -> None:
        """Start them."""
        defaults = {"num_cpus": 0} if strategy.address is None else {}
        settings: Any = jax.config
        actor = ray().remote(
            max_restarts=-1, max_task_retries=0, **{**defaults, **strategy.worker_options}
        )(ClosureWorker)
        self.actors = [
            actor.remote(
                Settings(
                    index,
                    strategy.devices_per_worker,
                    settings.jax_enable_x64,
                    strategy.server_names,
                    strategy.key,
                    strategy.num_workers > 1 and not strategy.allow_lost_updates,
                    [folder or os.getcwd() for folder in sys.path],
                    tuple(imported_by_workers),
                )
            )
            for index in range(strategy.num_workers)
        ]

    def processes(self) -> list[int]:
        """Return the process number of each worker; waits for those that are starting."""
        found: list[int] = []
        module = ray()
        for actor in self.actors:
            while True:
                try:
                    found.append(module.get(actor.process.remote()))
                    break
                except module.exceptions.RayError:
                    time.sleep(_POLL_SECONDS)
        return found

    def end(self) -> None:
        """End the processes."""
        module = ray()
        if module.is_initialized():
            for actor in self.actors:
                module.kill(actor)


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
        """Take the queue, and the actor of a worker."""
        self._queue, self._traffic, self._sent = queue, traffic, sent
        self._actor = workers.actors[index]
        # Weakly: a strategy that nobody uses any more ends its workers, and this thread with them.
        self._strategy = weakref.ref(strategy)
        self._servers = strategy.servers

    def run(self) -> None:
        """Give the worker closures until the queue is closed."""
        while (closure := self._queue.take()) is not None:
            try:
                self._run(closure)
            except Exception as error:
                self._queue.fail(closure, error)

    def _run(self, closure: Waiting) -> None:
        """Have the worker run a closure, or put it back if the worker dies."""
        module = ray()
        try:
            outcome, load = self._outcome(closure)
        except module.exceptions.RayTaskError:
            raise
        except module.exceptions.RayError:
            with _counting:
                self._traffic.worker_deaths += 1
                self._traffic.run_again += 1
            self._queue.put_back(closure)
            self._wait_for_worker()
            return
        if isinstance(outcome, Done):
            self._count(outcome)
            self._queue.finish(closure, load)
        else:
            self._queue.fail(closure, self._error(outcome))

    def _outcome(self, closure: Waiting) -> tuple[Any, Callable[[], Any]]:
        """Return what becomes of a closure, once the worker has all that it needs."""
        module = ray()
        while True:
            moved = (self._servers.moves, dict(self._servers.moved))
            message = Closure(
                closure.number, closure.function, closure.arguments, closure.is_again, moved
            )
            outcome, result = module.get(self._actor.run.remote(message))
            if isinstance(outcome, Missing):
                if (problem := self._send(outcome)) is not None:
                    return problem, lambda: None
            elif isinstance(outcome, Apart):
                self._bring_together(outcome)
            else:
                return outcome, partial(_loaded, result)

    def _send(self, missing: Missing) -> ClosureFailed | None:
        """Send a worker what it lacks; return the error that it raised there."""
        module = ray()
        if missing.function is not None:
            data = self._sent.functions[missing.function]
            return module.get(self._actor.add_function.remote(missing.function, data))
        for number in missing.resources:
            problem = module.get(self._actor.add_value.remote(number, *self._sent.values[number]))
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
            return strategy.lost(outcome.server)
        outcome.error.add_note(f"in a worker:\n{outcome.traceback}")
        return outcome.error

    def _wait_for_worker(self) -> None:
        """Wait until Ray has started the worker again."""
        module = ray()
        while module.is_initialized():
            try:
                module.get(self._actor.process.remote())
                return
            except module.exceptions.RayError:
                if self._queue.is_closed:
                    return
                time.sleep(_POLL_SECONDS)


_counting = Lock()


def _loaded(result: Any) -> Any:
    """Return a result; raises `ClosureCancelledError` if it is lost with its worker."""
    if not isinstance(result, LargeResult):
        return result
    module = ray()
    try:
        return module.get(result.reference)
    except module.exceptions.RayError as error:
        raise ClosureCancelledError(
            "the result of a scheduled function is lost with the worker that had it",
            source=here(),
            hint="schedule the function again",
        ) from error
