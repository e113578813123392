"""The coordinator, which gives each free worker one function at a time.

In the coordinator's process each worker has a thread (`serving.py`). The thread takes a closure
from the queue, sends the closure to the worker, and waits for the outcome.
"""

from __future__ import annotations

import pickle
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from threading import Thread, current_thread
from typing import Any, TypeVar  # Any: users' functions and values, and Ray's handles

import jax

from graphdist.context import Scope
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.parameter_server import ray_cluster
from graphdist.parameter_server.closures import ClosureQueue, RemoteValue, TimeLimit, Waiting
from graphdist.parameter_server.input import (
    FunctionOfElements,
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    made_value,
)
from graphdist.parameter_server.messages import Traffic
from graphdist.parameter_server.pickling import as_bytes
from graphdist.parameter_server.serving import Sent, Serving, start_workers
from graphdist.parameter_server.strategy import ParameterServerBase
from graphdist.parameter_server.worker import iterator_made_here, value_made_here
from graphdist.program.function import BoundFunction, Function
from graphdist.program.stages import Traced
from graphdist.values.distributed import type_name
from graphdist.values.pytrees import map_leaves

Values = TypeVar("Values", bound=PerWorkerValues)
_SECONDS_TO_END = 5.0
_WITHOUT_ARGUMENTS = pickle.dumps(((), {}))


class ClusterCoordinator:
    """Runs functions on the workers of a `ParameterServerStrategy`, asynchronously.

    There is one coordinator for each strategy: a second call returns the same object. Raises
    `ArgumentTypeError` for another kind of strategy.
    """

    strategy: ParameterServerBase

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        """Return the coordinator of the strategy."""
        if not isinstance(strategy, ParameterServerBase):
            raise ArgumentTypeError(
                f"a coordinator of {type_name(strategy)}, not of a ParameterServerStrategy",
                hint="make a strategy: gd.ParameterServerStrategy(resolver)",
            )
        if strategy.coordinator is None:
            strategy.require_open()
            made = super().__new__(cls)
            made._start(strategy)
            strategy.coordinator = made
        return strategy.coordinator

    def __repr__(self) -> str:
        return f"<ClusterCoordinator of {self.strategy}>"

    def _start(self, strategy: ParameterServerBase) -> None:
        self.strategy = strategy
        self.queue = ClosureQueue()
        self.traffic = Traffic()
        """The bytes sent so far and the deaths of workers, as a `Traffic`."""
        self._numbers = count()
        self._functions: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._sent = Sent(strategy.num_workers)
        missing: dict[int, str] = {}
        self._workers = [
            Serving(self.queue, index, actor, missing, self.traffic, self._sent, strategy)
            for index, actor in enumerate(start_workers(strategy))
        ]
        threads = [
            Thread(target=worker.run, daemon=True, name=f"worker-{index}")
            for index, worker in enumerate(self._workers)
        ]
        for thread in threads:
            thread.start()
        strategy.closing.callback(_end, self._workers, threads)
        strategy.closing.callback(self.queue.close)

    def schedule(
        self,
        fn: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Queue a `gd.function` for any worker, and return its future result.

        Per-worker values among the arguments become the worker's own values. The function is sent
        to a worker with the objects that it refers to, in their state at the first `schedule` of
        the function. The function runs at least once, and again if its worker dies. Raises
        `ArgumentTypeError` for anything but a `gd.function`, `ArgumentError` for a `RemoteValue`
        among the arguments, and the first error of functions scheduled before.
        """
        if not isinstance(fn, Function | BoundFunction):
            raise ArgumentTypeError(
                f"schedule of a {type_name(fn)}, not of a gd.function",
                hint="decorate it: @gd.function",
            )
        given = (tuple(args or ()), dict(kwargs or {}))
        leaves = jax.tree.leaves(given, is_leaf=_is_of_workers)
        if any(isinstance(leaf, RemoteValue) for leaf in leaves):
            raise ArgumentError(
                "a RemoteValue is an argument of a scheduled function",
                hint="fetch it first: value.fetch()",
            )
        self.strategy.require_open()
        number = self._function(fn)
        function: Any = fn.function
        result = RemoteValue(function.name)
        keeps = (fn, *(leaf for leaf in leaves if isinstance(leaf, PerWorkerValues)))
        data = as_bytes(given, self.strategy) if any(given) else _WITHOUT_ARGUMENTS
        self.queue.put(Waiting(next(self._numbers), number, data, result, keeps))
        return result

    def trace(
        self,
        fn: Any,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Traced:
        """Trace a function, with the arguments of `schedule`, as a worker of one device does.

        `trace(..).lower().explain()` shows which server updates which variable, and the bytes sent.
        A per-worker iterator is replaced by elements of its dataset, which this process makes.
        """
        given = jax.tree.map(
            lambda leaf: leaf.here() if isinstance(leaf, PerWorkerIterator) else leaf,
            (tuple(args or ()), dict(kwargs or {})),
            is_leaf=_is_of_workers,
        )
        with Scope(self.strategy):
            return FunctionOfElements(fn).trace(*given)

    def join(self, timeout: float | None = None) -> None:
        """Wait until all scheduled functions have run.

        Raises the first error of a function, once. After an error, functions that had not begun are
        cancelled, and the effects of finished functions remain. Raises `WorkerTimeoutError` after
        `timeout` seconds, with the functions that run on each worker. After a timeout nothing is
        cancelled, and `join` may be called again.
        """
        self.queue.wait(timeout)

    def done(self) -> bool:
        """Return whether all scheduled functions have run; raise the first error, once."""
        return self.queue.is_idle()

    def fetch(self, val: Any, timeout: float | None = None) -> Any:
        """Return a pytree with every `RemoteValue` replaced by its result; wait for all.

        Raises `WorkerTimeoutError` if a result is missing after `timeout` seconds.
        """
        limit = TimeLimit(timeout)
        return map_leaves(
            lambda leaf: leaf.fetch_within(limit) if isinstance(leaf, RemoteValue) else leaf,
            val,
            _is_of_workers,
        )

    def create_per_worker_dataset(self, dataset_fn: Any) -> PerWorkerDataset:
        """Return a per-worker dataset, which each worker makes by calling a function.

        `dataset_fn` returns an iterable dataset, or is itself a dataset that can be pickled. A
        worker makes the dataset when a function first needs it, and again after a restart. Give
        `iter(dataset)` of the result to `schedule`; the function calls `next` on this iterator.
        """
        data = as_bytes(dataset_fn, self.strategy, dataset_fn)

        def iterator(dataset: PerWorkerDataset) -> PerWorkerIterator:
            return self._added(PerWorkerIterator(dataset), data, iterator_made_here)

        make = partial(made_value, dataset_fn, self.strategy)
        return self._added(PerWorkerDataset(make, iterator), data, value_made_here)

    def create_per_worker_resources(self, fn: Any) -> PerWorkerValues:
        """Return a per-worker value: each worker calls `fn` once, and again after a restart."""
        return self._added(PerWorkerValues(), as_bytes(fn, self.strategy, fn), value_made_here)

    def worker_processes(self) -> list[int]:
        """Return the process id of each worker, once all have started."""
        self.strategy.require_open()
        return [worker.process() for worker in self._workers]

    def _added(self, value: Values, data: bytes, make: Callable[[Any], Any]) -> Values:
        """Return a per-worker value with an id, by which workers receive it."""
        value.number = self._sent.add(value, data, make)
        return value

    def _function(self, fn: Any) -> int:
        """Return the id of a function, by which workers receive it."""
        key = fn.function
        if not isinstance(fn, BoundFunction) and key in self._functions:
            return self._functions[key]
        data = as_bytes(fn, self.strategy, key.fn)
        if isinstance(fn, BoundFunction):  # each use pickles its object again
            return self._sent.add(fn, data, FunctionOfElements)
        self._functions[key] = self._sent.add(key, data, FunctionOfElements)
        return self._functions[key]


def _end(workers: Sequence[Serving], threads: Sequence[Thread]) -> None:
    """End the workers, and wait until the threads that use Ray end, before Ray is shut down."""
    for worker in workers:
        ray_cluster.kill(worker.actor)
    deadline = time.monotonic() + _SECONDS_TO_END
    for thread in threads:
        if thread is not current_thread():  # which may hold the last reference to the strategy
            thread.join(max(0.0, deadline - time.monotonic()))


def _is_of_workers(leaf: Any) -> bool:
    return isinstance(leaf, RemoteValue | PerWorkerValues)
