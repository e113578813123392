"""Resolvers, which find the processes of a cluster: their base class, and the simplest ones.

These return what the user gives them, the cluster that the environment variable `TF_CONFIG`
describes, or the jobs of several resolvers together.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any  # Any: tf.distribute's arguments that nothing here reads

from graphdist.cluster.spec import ClusterSpec, Tasks
from graphdist.errors import ArgumentError, ClusterError
from graphdist.runtime.devices import count_accelerators
from graphdist.values.distributed import wrong_type


class ClusterResolver(abc.ABC):
    """Finds the processes of a program, and the task of this process.

    A subclass has `cluster_spec` and `master`. `task_type` and `task_id` are the job and index of
    this process's task, None if unknown, and can be set.
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _environment: str | None = ""
    _num_accelerators: Mapping[str, int] | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of all tasks by job."""

    @abc.abstractmethod
    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, or the address for a session; "" if there is none."""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> Mapping[str, int]:
        """Return how many accelerators of each kind a task has, such as {"GPU": 8}.

        If the resolver was given no counts, the accelerators of this process are counted.
        """
        return self._accelerators()

    def _accelerators(self) -> Mapping[str, int]:
        return count_accelerators() if self._num_accelerators is None else self._num_accelerators

    @property
    def environment(self) -> str | None:
        """Return the name of the program's environment; "" for no particular environment."""
        return self._environment

    @property
    def task_type(self) -> str | None:
        """Return the job of this process's task, such as "worker"; None if unknown."""
        return self._default("task_type") if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Return the index of this process's task in its job; None if unknown."""
        return self._default("task_id") if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """Return the protocol before an address, "grpc" in "grpc://host:1"; None without one."""
        return self._default("rpc_layer") if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    def _default(self, name: str) -> Any:  # Any: a str or an int, by the name
        """Return the value of the property `name` that was not set, such as "task_id"."""
        return None


class TaskResolver(ClusterResolver):
    """The base of resolvers whose master is a task, by default this process's task."""

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, by default this process's task.

        Returns "" if that task is unknown, or the cluster has no jobs.
        """
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if kind is None or index is None or not (cluster := self.cluster_spec()):
            return ""
        return with_protocol(cluster.task_address(kind, index), rpc_layer or self.rpc_layer)


def with_protocol(address: str, rpc_layer: str | None) -> str:
    """Return an address with the protocol `rpc_layer` before it; None or "": no protocol.

    >>> with_protocol("a:1", "grpc")
    'grpc://a:1'
    """
    return f"{rpc_layer}://{address}" if rpc_layer else address


class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns its arguments.

    Raises `ArgumentTypeError` when `cluster_spec` is no `ClusterSpec` or `master` no string.

    >>> cluster = ClusterSpec({"worker": ["a:1", "b:1"]})
    >>> SimpleClusterResolver(cluster, task_type="worker", task_id=0).master("worker", 1)
    'b:1'
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            hint = 'write gd.cluster.ClusterSpec({"worker": ["host:port", ...]})'
            raise wrong_type("cluster_spec", cluster_spec, "a ClusterSpec", hint)
        if not isinstance(master, str):
            raise wrong_type("master", master, "a string")
        self._cluster_spec, self._master = cluster_spec, master
        self._task_type, self._task_id = task_type, task_id
        self._environment, self._rpc_layer = environment, rpc_layer
        self._num_accelerators = num_accelerators or {}

    def cluster_spec(self) -> ClusterSpec:
        """Return the spec that was given to the resolver."""
        return self._cluster_spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task or, without a task, the master that was given."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return with_protocol(address, rpc_layer or self.rpc_layer)


class UnionResolver(ClusterResolver):
    """The jobs of several resolvers together; everything else is the first resolver's.

    A job of several resolvers gets the tasks of all these resolvers: lists are concatenated; if one
    resolver has its tasks by index, the result is by index. `task_type`, `task_id` and `rpc_layer`
    take precedence over the first resolver's. Raises `ArgumentError` without resolvers, and
    `ArgumentTypeError` for an argument that is no resolver. `cluster_spec` raises `ClusterError`
    for a task that two resolvers have.

    >>> workers = SimpleClusterResolver(ClusterSpec({"worker": ["a:1"]}))
    >>> servers = SimpleClusterResolver(ClusterSpec({"ps": ["b:1"]}))
    >>> UnionResolver(workers, servers).cluster_spec()
    ClusterSpec({'ps': ['b:1'], 'worker': ['a:1']})
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise ArgumentError(
                f"UnionResolver has no argument {', '.join(map(repr, unknown))}",
                hint="it takes resolvers, task_type, task_id and rpc_layer",
            )
        if not resolvers:
            raise ArgumentError("UnionResolver is given no resolver")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise wrong_type("an argument of UnionResolver", resolver, "a ClusterResolver")
        self._resolvers, self._environment = resolvers, resolvers[0].environment
        self._task_type, self._task_id, self._rpc_layer = task_type, task_id, rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return all jobs; raises `ClusterError` for a task that two resolvers have."""
        parts = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        merged: dict[str, Tasks] = {}
        for job in dict.fromkeys(job for part in parts for job in part):
            merged[job] = _merged(job, [part[job] for part in parts if job in part])
        return ClusterSpec(merged)

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task or, without a task, the first resolver's master."""
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        address = self.cluster_spec().task_address(task_type, task_id)
        return with_protocol(address, rpc_layer or self._rpc_layer)

    def _default(self, name: str) -> Any:
        return getattr(self._resolvers[0], name)

    def num_accelerators(self, *args: Any, **kwargs: Any) -> Mapping[str, int]:
        """Return the first resolver's counts."""
        return self._resolvers[0].num_accelerators(*args, **kwargs)


def _merged(job: str, parts: list[Tasks]) -> Tasks:
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    merged: dict[int, str] = {}
    for part in parts:
        by_index = dict(enumerate(part)) if isinstance(part, list) else part
        for index in by_index:
            if index in merged:
                raise ClusterError(
                    f"two resolvers have task {index} of job {job!r}: {merged[index]} and "
                    f"{by_index[index]}",
                    hint="give each task to one of them",
                )
        merged |= by_index
    return merged
