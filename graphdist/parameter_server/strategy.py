"""The strategy of parameter servers, in the program that coordinates and in its workers.

Variables are on servers. Any process may run a function that uses them: it reads the variables,
runs the worker's part of the step on its own devices, and sends the updates to the servers. The
program that makes the strategy does so when it calls a function itself; `ClusterCoordinator` lets
workers do so. The options of the cluster are checked before any process is started.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from secrets import token_bytes
from threading import Lock
from typing import Any  # Any: users' values, resolvers, and Ray's handles
from uuid import uuid4

import jax
import numpy as np

from graphdist.cluster.resolver import ClusterResolver
from graphdist.config import worker_timeouts
from graphdist.context import current_entry
from graphdist.data.input_options import InputContext
from graphdist.errors import ArgumentError, ContextError, ServerLostError
from graphdist.parameter_server import ray_cluster
from graphdist.parameter_server.closures import with_line_of_user
from graphdist.parameter_server.connections import ServerIsLost
from graphdist.parameter_server.input import DatasetOfWorkers
from graphdist.parameter_server.messages import Key
from graphdist.parameter_server.program import ProgramOnServers
from graphdist.parameter_server.ray_cluster import ray
from graphdist.parameter_server.server import ParameterServer
from graphdist.parameter_server.servers import Servers
from graphdist.parameter_server.storage import ServerStorage, on_server, require_storable
from graphdist.passes import Target
from graphdist.runtime.devices import Devices, find_device
from graphdist.state.sharded_variable import in_shards
from graphdist.state.variable import Variable
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import wrong_type
from graphdist.whole_numbers import whole_number

_moving = Lock()
"""Held while variables are moved, by one thread at a time."""


class StrategyOnServers(CommonStrategy):
    """A strategy whose variables are on servers."""

    keeps_one_value = True
    servers: Servers
    refuses_lost_updates = False
    """Whether functions run concurrently, and none may overwrite another one's updates."""

    def program_of(self, traced: Any, compiled: Callable[[Any], Any]) -> Any:
        """Return the program of a traced function, split if variables are on servers."""
        if not any(isinstance(v.storage, ServerStorage) for v in traced.variables):
            return compiled(traced)
        return ProgramOnServers(traced, compiled)

    @property
    def target(self) -> Target:
        """Return the target of programs whose variables are on servers."""
        return replace(super().target, cuts_updates=True)

    @contextmanager
    def asking_servers(self) -> Iterator[Servers]:
        """Yield the servers, for requests; raises `ServerIsLost` for a lost one."""
        yield self.servers


class ParameterServerExtended(StrategyExtended):
    """The methods for libraries, which can also make a variable on the server of another one."""

    beside: Variable | None = None

    @contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Make variables on the server of another one."""
        before = self.beside
        with super().colocate_vars_with(colocate_with_variable):
            self.beside = colocate_with_variable
            try:
                yield
            finally:
                self.beside = before


class ParameterServerBase(StrategyOnServers):
    """What the `ParameterServerStrategy` of `graphdist` and that of `graphdist.compat.v1` share."""

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Any] | None = None,
        *,
        num_workers: int = 2,
        num_servers: int = 1,
        devices_per_worker: int = 1,
        address: str | None = None,
        worker_options: Mapping[str, Any] | None = None,
        allow_lost_updates: bool = False,
    ) -> None:
        """Start the servers."""
        self.num_workers, num_servers = counts_of_tasks(cluster_resolver, num_workers, num_servers)
        self.devices_per_worker = whole_number(devices_per_worker, "devices_per_worker", least=1)
        self.worker_options = checked_worker_options(worker_options)
        if not (variable_partitioner is None or callable(variable_partitioner)):
            hint = "use gd.experimental.partitioners.FixedShardsPartitioner(2)"
            expected = "a function of shape and dtype"
            raise wrong_type("variable_partitioner", variable_partitioner, expected, hint)
        extended = ParameterServerExtended(Devices((find_device("cpu:0", here()),)))
        super().__init__(extended)
        self.cluster_resolver = cluster_resolver
        self.variable_partitioner = variable_partitioner
        self.allow_lost_updates = allow_lost_updates
        self.address = address
        self.timeouts = worker_timeouts()
        """The time limits for servers and workers to start, and to answer."""
        self.coordinator: Any = None
        """The coordinator of the workers; None until one is made."""
        self.names: dict[Key, str] = {}
        """The names of the variables that the servers have."""
        self._keys = count()
        self._is_splitting = False
        self._cluster = ray_cluster.Cluster(self.num_workers + num_servers, address)
        options = {"num_cpus": 0} if address is None else {}
        actor = ray().remote(max_restarts=0, **options)(ParameterServer)
        # Workers find servers by name, since a restarted actor cannot receive handles.
        self.server_names = [f"graphdist-server-{uuid4().hex}" for _ in range(num_servers)]
        self.key = token_bytes(32)
        """The secret that all processes of the strategy know."""
        given = jax.enable_x64.value, self.key, self._cluster.is_started_here
        actors = [ray_cluster.ask(actor.options(name=name), *given) for name in self.server_names]
        self.servers = Servers(actors, self.key, self.timeouts)
        self.closing = ExitStack()
        """The functions to call when the strategy is closed, the last one first."""
        self.closing.callback(self._cluster.close)
        self.closing.callback(self.servers.close)
        for server in actors:
            self.closing.callback(ray_cluster.kill, server)
        self._close = weakref.finalize(self, self.closing.close)
        ray_cluster.close_at_exit(self._close)

    def shutdown(self) -> None:
        """End the servers and workers, and the cluster if no other strategy uses it.

        Variables are lost, and later uses of them or of the workers raise `ContextError`. The end
        of the program shuts the strategy down, too.
        """
        self._close()

    def require_open(self) -> None:
        """Raise `ContextError` if the strategy, or Ray, was shut down."""
        if self._close.alive and ray().is_initialized():
            return
        what = "cluster of Ray" if self._close.alive else "strategy"
        raise ContextError(
            f"the {what} was shut down, and its servers, workers and variables are gone",
            hint="shut it down at the end of the program, or make a new strategy and its variables",
        )

    def server_of(self, variable: Variable) -> int:
        """Return the index of the server that stores a variable."""
        return on_server(variable).server

    def storage_elsewhere(self, name: str, value: Any) -> Any:
        """Store the value of a new variable on the next server, and return its storage."""
        self.require_open()
        require_storable(name, value)
        key = next(self._keys)
        beside = getattr(self.extended, "beside", None)
        storage = ServerStorage(name, key, self)
        if beside is not None:
            self.servers.moved[key] = beside.storage.server
        self.names[key] = name
        with self.asking_servers() as servers:
            servers.create(key, np.asarray(value))
        weakref.finalize(storage, _forget, self.names, self.servers, key).atexit = False
        return storage

    def variable_in_shards(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return a new variable with the partitioner's number of shards; None if it is 1."""
        if self.variable_partitioner is None or self._is_splitting:
            return None
        entry = current_entry()
        if entry is None or entry.strategy is not self:
            return None
        names = ("initial_value", "name", "dtype", "trainable", "synchronization", "aggregation")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        value = given.pop("initial_value", None)
        value = value() if callable(value) else value
        if value is None or np.ndim(value) == 0:
            return None
        with jax.ensure_compile_time_eval():
            array = np.asarray(jax.numpy.asarray(value, given.pop("dtype", None)))
        shards = self._shards(array)
        if shards == 1:
            return None
        name = given.pop("name", None) or "variable"
        self._is_splitting = True
        try:
            return in_shards(array, shards, name, lambda part, n: Variable(part, name=n, **given))
        finally:
            self._is_splitting = False

    def _shards(self, value: np.ndarray[Any, Any]) -> int:
        """Return the partitioner's number of shards; raise `ArgumentError` if it is impossible."""
        assert self.variable_partitioner is not None
        counts = list(self.variable_partitioner(shape=value.shape, dtype=value.dtype))
        if len(counts) != value.ndim or any(int(n) != 1 for n in counts[1:]) or counts[0] < 1:
            raise ArgumentError(
                f"the partitioner returned {counts} for a variable of shape {list(value.shape)}: "
                f"variables are split along dimension 0 alone",
                hint=f"return {[max(1, int(max(counts, default=1))), *[1] * (value.ndim - 1)]}",
            )
        return min(int(counts[0]), max(1, value.shape[0]))

    def keep_together(self, groups: Sequence[tuple[Key, ...]]) -> None:
        """Move the variables of each group to the server of its first one."""
        with _moving, self.asking_servers() as servers:
            for first, *others in groups:
                for key in others:
                    servers.move(key, servers.home(first))

    @contextmanager
    def asking_servers(self) -> Iterator[Servers]:
        """Yield the servers, for requests; raises `ServerLostError` for a lost one."""
        self.require_open()
        try:
            yield self.servers
        except ServerIsLost as lost:
            self.require_open()  # it may have been shut down meanwhile
            raise with_line_of_user(self.lost(lost)) from lost.__cause__

    def lost(self, lost: ServerIsLost) -> ServerLostError:
        """Return the error for a lost server, with the names of its variables."""
        server = lost.server
        names = [repr(n) for key, n in self.names.items() if self.servers.home(key) == server]
        listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        return ServerLostError(
            f"parameter server {server} {lost.why}, and the values of its variables are lost with "
            f"it: {listed or 'it had none'}",
            hint="make a new strategy and its variables, and restore the last checkpoint",
        )

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Run the function in this process, and warn that workers run only scheduled functions."""
        if current_trace() is None:
            warnings.warn(
                "strategy.run of a ParameterServerStrategy runs in the coordinator's process: give "
                "workers their work with ClusterCoordinator(strategy).schedule",
                stacklevel=2,
            )
        return super().run(fn, args, kwargs, options)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return a dataset for `ClusterCoordinator.create_per_worker_dataset`."""
        return DatasetOfWorkers(lambda s: s.experimental_distribute_dataset(dataset, options))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: Any = None
    ) -> Any:
        """Return a dataset for `ClusterCoordinator.create_per_worker_dataset`."""
        return DatasetOfWorkers(lambda s: s.distribute_datasets_from_function(dataset_fn, options))


class ParameterServerStrategy(ParameterServerBase, Strategy):
    """Keeps variables on servers, which workers update asynchronously.

    The program that makes it coordinates: it makes variables inside `scope()` and schedules
    functions with `gd.coordinator.ClusterCoordinator(strategy)`. Each variable is on one server:
    new ones are assigned round-robin. With a `variable_partitioner` (a function of shape and
    dtype, see `gd.experimental.partitioners`) a variable is split along dimension 0 into a
    `gd.ShardedVariable`.

    `cluster_resolver` says how many tasks the jobs "worker" and "ps" have; without one there are
    `num_workers` and `num_servers`. They are processes of a cluster of Ray: the one at `address`,
    or one that is started on this machine. `worker_options` are Ray's options of a worker, such as
    {"num_gpus": 1}. A worker with several devices runs a replica on each: `devices_per_worker`.

    An update that a server cannot compute, such as a loop over several variables, is computed by
    the worker, which replaces the variable, so that the last of several workers wins. With several
    workers such an update raises an error, unless `allow_lost_updates=True`.

    Raises `MissingExtraError` without Ray, `ArgumentError` for a cluster without workers or
    servers, or with other jobs, and for counts and options that cannot be used.
    """


class WorkerStrategy(StrategyOnServers, Strategy):
    """The strategy in a worker: its own devices, and the variables on the servers."""

    def __init__(self, servers: Servers, devices: Devices, refuses_lost_updates: bool) -> None:
        """Use these servers and devices."""
        super().__init__(StrategyExtended(devices))
        self.servers = servers
        self.refuses_lost_updates = refuses_lost_updates

    def storage_elsewhere(self, name: str, value: Any) -> Any:
        """Raise an error, since only the coordinator makes variables."""
        raise ContextError(
            f"variable {name!r} is made in a function that a worker runs",
            hint="make it before, inside strategy.scope()",
        )

    def keep_together(self, groups: Sequence[tuple[Key, ...]]) -> None:
        """Raise `VariablesApart` unless the variables of each group are on one server."""
        home = self.servers.home
        apart = [group for group in groups if len({home(key) for key in group}) > 1]
        if apart:
            raise VariablesApart(apart)


@dataclass(eq=False)
class VariablesApart(BaseException):
    """Variables must be on one server before a step can run; the coordinator moves the variables.

    The class is no `Exception`, so that the user's handlers do not catch it.
    """

    groups: Sequence[tuple[Key, ...]]
    """The groups of variables that must be on one server."""


def _forget(names: dict[Key, str], servers: Servers, key: Key) -> None:
    """Drop a variable that has no references any more."""
    names.pop(key, None)
    servers.drop_later(key)


__all__ = ["ParameterServerBase", "ParameterServerStrategy", "StrategyOnServers", "WorkerStrategy"]


JOBS = ("chief", "evaluator", "ps", "worker")
OWN: Mapping[str, Any] = {
    "max_restarts": -1,
    "max_task_retries": 0,
    "concurrency_groups": {ray_cluster.GROUP: 1},
}
"""The options of all workers."""


def counts_of_tasks(resolver: Any, num_workers: int, num_servers: int) -> tuple[int, int]:
    """Return the numbers of workers and servers; raise errors as `ParameterServerStrategy`."""
    if resolver is None:
        found = {
            "worker": whole_number(num_workers, "num_workers"),
            "ps": whole_number(num_servers, "num_servers"),
        }
    elif isinstance(resolver, ClusterResolver):
        spec = resolver.cluster_spec()
        found = {job: spec.num_tasks(job) for job in spec.jobs}
    else:
        hint = "leave it out for workers on this machine"
        raise wrong_type("cluster_resolver", resolver, "a ClusterResolver", hint, ArgumentError)
    for job in found:
        if job not in JOBS:
            raise ArgumentError(f"the cluster has a job {job!r}: the jobs are {', '.join(JOBS)}")
    if found.get("chief", 0) > 1:
        raise ArgumentError(f"the cluster has {found['chief']} chiefs")
    for job in ("worker", "ps"):
        if found.get(job, 0) < 1:
            raise ArgumentError(
                f"the cluster has no {job!r}: it takes one worker and one ps at least",
                hint='name them: gd.cluster.ClusterSpec({"worker": [...], "ps": [...]})',
            )
    return found["worker"], found["ps"]


def checked_worker_options(given: Any) -> dict[str, Any]:
    """Return the user's options; raise `ArgumentError` for options that Ray does not accept."""
    hint = 'worker_options are Ray\'s options of an actor, such as {"num_gpus": 1}'
    if not isinstance(given, Mapping | None):
        raise wrong_type("worker_options", given, "a dict", hint, ArgumentError)
    options = dict(given or {})
    for name, value in OWN.items():
        if name in options:
            raise ArgumentError(
                f"worker_options has {name!r}, which is {value!r} for all workers",
                hint="leave it out",
            )
    try:  # Ray checks options when it registers a class
        ray().remote(**OWN, **options)(ray_cluster.BeatingProcess)
    except (TypeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        raise ArgumentError(
            f"Ray does not take these worker_options: {first_line}", hint=hint
        ) from error
    return options
