"""The coordinator: it gives functions to workers, one at a time to each, as they become free.

Each worker has a thread here, which takes a closure from the queue, sends it, and waits for what
becomes of it. What a worker lacks is sent when it says so; a worker that dies is started again by
Ray, and its closure goes back to the queue.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from threading import Lock, Thread
from typing import Any  # Any: users' functions and values, and Ray's handles

import jax

from graphdist.errors import ArgumentError, ArgumentTypeError, ClosureCancelledError
from graphdist.parameter_server.closures import ClosureQueue, RemoteValue, Waiting
from graphdist.parameter_server.input import DatasetOfWorkers
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
from graphdist.parameter_server.per_worker import PerWorkerDataset, PerWorkerValues
from graphdist.parameter_server.pickling import as_bytes
from graphdist.parameter_server.ray_cluster import ray
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import ClosureWorker, Settings
from graphdist.program.function import BoundFunction, Function
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name
from graphdist.values.pytrees import map_leaves

_POLL_SECONDS = 0.05
"""How often a worker that is being started again is asked whether it is there."""


class ClusterCoordinator:
    """Runs functions on the workers of a `ParameterServerStrategy`, asynchronously.

    There is one for each strategy: made again it is the same object. Raises `ArgumentTypeError` for
    another strategy.
    """

    strategy: ParameterServerBase

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        """Return the coordinator of the strategy."""
        if not isinstance(strategy, ParameterServerBase):
            raise ArgumentTypeError(
                f"a coordinator of {type_name(strategy)}, not of a ParameterServerStrategy",
                source=here(),
                hint="make a strategy: gd.ParameterServerStrategy(resolver)",
            )
        if strategy.coordinator is None:
            made = super().__new__(cls)
            made._start(strategy)
            strategy.coordinator = made
        found: ClusterCoordinator = strategy.coordinator
        return found

    def _start(self, strategy: ParameterServerBase) -> None:
        self.strategy = strategy
        self.queue = ClosureQueue()
        self.traffic = Traffic()
        """Bytes sent so far, and how often workers died: a `Traffic`."""
        self._numbers = count()
        self._functions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._sent = Sent()
        self.workers = WorkerActors(strategy)
        strategy.closing.append(self.queue.close)
        strategy.closing.append(self.workers.end)
        for worker in range(strategy.num_workers):
            serving = Serving(self.queue, self.workers, worker, self.traffic, self._sent, strategy)
            Thread(target=serving.run, daemon=True, name=f"worker-{worker}").start()

    def schedule(
        self,
        fn: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Queue a `gd.function` for any worker, and return its result to come.

        Per-worker values among the arguments arrive as the worker's own. The function goes to a
        worker with what it refers to as it was when it was first scheduled. It runs at least once:
        again, if its worker dies. Raises `ArgumentTypeError` for anything but a `gd.function`,
        `ArgumentError` for a `RemoteValue` among the arguments, and the first error of functions
        scheduled before.
        """
        if not isinstance(fn, Function | BoundFunction):
            raise ArgumentTypeError(
                f"schedule of a {type_name(fn)}, not of a gd.function",
                source=here(),
                hint="decorate it: @gd.function",
            )
        given = (tuple(args or ()), dict(kwargs or {}))
        leaves = jax.tree.leaves(given, is_leaf=_is_of_workers)
        if any(isinstance(leaf, RemoteValue) for leaf in leaves):
            raise ArgumentError(
                "a RemoteValue is an argument of a scheduled function",
                source=here(),
                hint="fetch it first: value.fetch()",
            )
        number = self._function(fn)
        result = RemoteValue()
        keeps = (fn, *(leaf for leaf in leaves if isinstance(leaf, PerWorkerValues)))
        data = as_bytes(given, self.strategy)
        self.queue.put(Waiting(next(self._numbers), number, data, result, keeps))
        return result

    def join(self) -> None:
        """Wait until all scheduled functions have run.

        Raises the first error of one, once; then those are cancelled that had not begun. What ran
        before stays done.
        """
        self.queue.wait()

    def done(self) -> bool:
        """Return whether all scheduled functions have run; raises the first error, once."""
        return self.queue.is_idle()

    def fetch(self, val: Any) -> Any:
        """Return a pytree with every `RemoteValue` replaced by its result; wait for all."""
        return map_leaves(
            lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf,
            val,
            _is_of_workers,
        )

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Return a dataset that each worker makes by calling a function, for its own iterators.

        `dataset_fn` returns any iterable dataset, or is one that can be sent. A worker makes it
        when a function first needs it, and again after a restart. Give `iter` of the result to
        `schedule`; the function calls `next` on it.
        """
        data = as_bytes(dataset_fn, self.strategy, dataset_fn)

        def spec() -> Any:
            made = dataset_fn() if callable(dataset_fn) else dataset_fn
            made = made.make(self.strategy) if isinstance(made, DatasetOfWorkers) else made
            return made.element_spec

        def iterator_number() -> int:
            return self._sent.add_value(data, is_iterator=True)

        return PerWorkerDataset(
            self._sent.add_value(data, is_iterator=False), spec, iterator_number
        )

    def create_per_worker_resources(self, fn: Any) -> PerWorkerValues:
        """Return what each worker gets by calling a function, once, and again after a restart."""
        data = as_bytes(fn, self.strategy, fn)
        return PerWorkerValues(self._sent.add_value(data, is_iterator=False))

    def worker_processes(self) -> list[int]:
        """Return the process number of each worker; waits until all are started."""
        return self.workers.processes()

    def _function(self, fn: Any) -> int:
        key = fn._function if isinstance(fn, BoundFunction) else fn
        if isinstance(fn, BoundFunction) or key not in self._functions:
            of_user = key.fn
            number = self._sent.add_function(as_bytes(fn, self.strategy, of_user))
            if isinstance(fn, BoundFunction):
                return number
            self._functions[key] = number
        return self._functions[key]


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
                    [folder or os.getcwd() for folder in sys.path],
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


def _is_of_workers(leaf: Any) -> bool:
    return isinstance(leaf, RemoteValue | PerWorkerValues)
