"""The base class of resolvers, which find the processes of a cluster, and the simplest resolver."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any  # Any: tf.distribute's arguments that nothing here reads

from graphdist.cluster.spec import ClusterSpec
from graphdist.errors import ArgumentTypeError
from graphdist.runtime.devices import count_accelerators
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name


class ClusterResolver(abc.ABC):
    """Finds the processes that a program runs in, and which of them this one is.

    A subclass has `cluster_spec` and `master`. `task_type` and `task_id` are the task of this
    process, None where that is not known. They can be set.
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of all tasks by job."""

    @abc.abstractmethod
    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, or the one a session would connect to; "" for none."""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> Mapping[str, int]:
        """Return how many accelerators of each kind a task has, such as {"GPU": 8}.

        Unless the resolver was given numbers, the accelerators of this process are counted.
        """
        return count_accelerators()

    @property
    def environment(self) -> str | None:
        """Return the environment of the program: "" for no particular one."""
        return ""

    @property
    def task_type(self) -> str | None:
        """Return the kind of task this process is, such as "worker"; None if not known."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """Return the number of this process among the tasks of its kind; None if not known."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """Return the protocol that addresses begin with, such as "grpc"; None for none."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    def _own_address(
        self, task_type: str | None, task_id: int | None, rpc_layer: str | None
    ) -> str:
        """Return the address of a task, by default this one; "" if that is not known."""
        kind = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if kind is None or index is None:
            return ""
        address = self.cluster_spec().task_address(kind, index)
        return with_protocol(address, rpc_layer or self.rpc_layer)


def with_protocol(address: str, rpc_layer: str | None) -> str:
    """Return an address with the protocol before it, if there is one.

    >>> with_protocol("a:1", "grpc")
    'grpc://a:1'
    """
    return f"{rpc_layer}://{address}" if rpc_layer else address


class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns what it is given.

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
            raise ArgumentTypeError(
                f"cluster_spec is of type {type_name(cluster_spec)}, not a ClusterSpec",
                source=here(),
                hint='write gd.cluster.ClusterSpec({"worker": ["host:port", ...]})',
            )
        if not isinstance(master, str):
            raise ArgumentTypeError(
                f"master is of type {type_name(master)}, not a string", source=here()
            )
        self._cluster_spec, self._master = cluster_spec, master
        self._task_type, self._task_id = task_type, task_id
        self._environment, self._rpc_layer = environment, rpc_layer
        self._num_accelerators = num_accelerators

    def cluster_spec(self) -> ClusterSpec:
        """Return the spec it was made with."""
        return self._cluster_spec

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task or, without one, the master it was made with."""
        address = self._master
        if task_type is not None and task_id is not None:
            address = self._cluster_spec.task_address(task_type, task_id)
        return with_protocol(address, rpc_layer or self.rpc_layer)

    @property
    def environment(self) -> str:
        """Return the environment it was made with."""
        return self._environment

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> Mapping[str, int]:
        """Return the numbers it was made with, {} without."""
        return self._num_accelerators or {}
