"""Several resolvers as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any  # Any: tf.distribute's arguments that nothing here reads

from graphdist.cluster.resolver import ClusterResolver, with_protocol
from graphdist.cluster.spec import ClusterSpec, Tasks
from graphdist.errors import ArgumentError, ArgumentTypeError, ClusterError
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name


class UnionResolver(ClusterResolver):
    """The jobs of several resolvers together; everything else is the first resolver's.

    A job that several resolvers have gets the tasks of all: lists are concatenated, and if one
    resolver gives tasks by number, all are by number. `task_type`, `task_id` and `rpc_layer` take
    precedence over the first resolver's. Raises `ArgumentError` without resolvers,
    `ArgumentTypeError` for an argument that is none. `cluster_spec` raises `ClusterError` for a
    task that two resolvers have.

    >>> from graphdist.cluster import SimpleClusterResolver
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
                source=here(),
                hint="it takes resolvers, task_type, task_id and rpc_layer",
            )
        if not resolvers:
            raise ArgumentError("UnionResolver is given no resolver", source=here())
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise ArgumentTypeError(
                    f"UnionResolver is given a value of type {type_name(resolver)}, which is no "
                    f"ClusterResolver",
                    source=here(),
                )
        self._resolvers = resolvers
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
        """Return the address of a task or, without one, the first resolver's master."""
        if task_type is None or task_id is None:
            return self._resolvers[0].master(rpc_layer=rpc_layer)
        address = self.cluster_spec().task_address(task_type, task_id)
        return with_protocol(address, rpc_layer or self._rpc_layer)

    @property
    def task_type(self) -> str | None:
        """Return the kind of task this process is."""
        return self._resolvers[0].task_type if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Return the number of this process among the tasks of its kind."""
        return self._resolvers[0].task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """Return the protocol that addresses begin with."""
        return self._resolvers[0].rpc_layer if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """Return the environment of the first resolver."""
        return self._resolvers[0].environment

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> Mapping[str, int]:
        """Return the first resolver's numbers."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _merged(job: str, parts: list[Tasks]) -> Tasks:
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    merged: dict[int, str] = {}
    for part in parts:
        numbered = dict(enumerate(part)) if isinstance(part, list) else part
        for index in numbered:
            if index in merged:
                raise ClusterError(
                    f"two resolvers have task {index} of job {job!r}: {merged[index]} and "
                    f"{numbered[index]}",
                    source=here(),
                    hint="give each task to one of them",
                )
        merged |= numbered
    return merged
