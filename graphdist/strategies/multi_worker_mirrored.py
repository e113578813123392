"""Replicas on the devices of several processes; here, of one: a cluster of one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any  # Any: what users pass as resolver and options

import jax

from graphdist import config
from graphdist.errors import ArgumentError, ContextError
from graphdist.options import CommunicationOptions, VariableSynchronization
from graphdist.runtime.devices import find_devices, working_devices
from graphdist.strategies.base import Strategy, StrategyBase
from graphdist.strategies.extended import StrategyExtended
from graphdist.tracing.sources import here
from graphdist.values import kind_of


class TFConfigClusterResolver:
    """The cluster that the environment variable `TF_CONFIG` describes; without it, none.

    >>> TFConfigClusterResolver().cluster_spec()
    {}
    """

    def __init__(self) -> None:
        """Read the variable; raises `ArgumentError` for text that is no JSON object."""
        self._config = config.cluster_config()

    @property
    def task_type(self) -> str | None:
        """Return the kind of task this process is, such as "worker"; None outside a cluster."""
        return self._config.get("task", {}).get("type")

    @property
    def task_id(self) -> int | None:
        """Return the number of this process among those of its kind; None outside a cluster."""
        index = self._config.get("task", {}).get("index")
        return None if index is None else int(index)

    def cluster_spec(self) -> Mapping[str, Sequence[str]]:
        """Return the addresses of all processes by kind of task."""
        return dict(self._config.get("cluster", {}))


class MultiWorkerExtended(StrategyExtended):
    """The extended part, of a strategy whose processes each run the program."""

    experimental_between_graph = True


class MultiWorkerMirroredBase(StrategyBase):
    """A strategy of workers, with the methods of one API or the other."""

    has_input_per_replica = False
    auto_synchronization = VariableSynchronization.ON_WRITE

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        *,
        devices: Sequence[str | jax.Device] | None = None,
    ) -> None:
        """Take the devices of this process."""
        found = working_devices() if devices is None else find_devices(devices, here())
        super().__init__(MultiWorkerExtended(found))
        self.cluster_resolver = single_worker(cluster_resolver)
        self.communication_options = checked_options(communication_options)


class MultiWorkerMirroredStrategy(MultiWorkerMirroredBase, Strategy):
    """Runs one replica on each device of every worker; one process is a cluster of one worker.

    It takes all accelerators of this host or, without any, one CPU device; `devices` names others,
    as for `MirroredStrategy`. `cluster_resolver` is by default `TFConfigClusterResolver()`;
    `communication_options` are hints.

    Raises `ArgumentError` for a resolver or options of another kind, `ContextError` for a cluster
    of several workers, which this version does not run.

    >>> MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """


def single_worker(resolver: Any) -> Any:
    """Return the resolver, or the default one, if it names no other worker."""
    found = TFConfigClusterResolver() if resolver is None else resolver
    if not callable(getattr(found, "cluster_spec", None)):
        raise ArgumentError(
            f"cluster_resolver is of type {kind_of(found)}, which has no cluster_spec()",
            source=here(),
            hint="leave it out: the default reads TF_CONFIG",
        )
    cluster = found.cluster_spec() or {}
    workers = sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    if workers > 1:
        raise ContextError(
            f"the cluster has {workers} workers, and one process runs one",
            source=here(),
            hint="run the program in one process, without TF_CONFIG",
        )
    return found


def checked_options(options: Any) -> CommunicationOptions:
    """Return the options, or the default ones; raises `ArgumentError` for another kind."""
    if not isinstance(options, CommunicationOptions | None):
        raise ArgumentError(
            f"communication_options is of type {kind_of(options)}, not CommunicationOptions",
            source=here(),
            hint="write gd.CommunicationOptions(...)",
        )
    return options or CommunicationOptions()
