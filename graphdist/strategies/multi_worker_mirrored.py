"""One replica on each device of every worker of a cluster, variables mirrored on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any  # Any: what users pass as resolver and options

import jax
import numpy as np

from graphdist.cluster import roles
from graphdist.cluster.resolver import ClusterResolver
from graphdist.cluster.spec import ClusterSpec
from graphdist.cluster.tf_config import TFConfigClusterResolver
from graphdist.config import job_identity, worker_bind_address, worker_timeouts
from graphdist.errors import ArgumentError, ContextError, WorkerError
from graphdist.ir.types import PER_REPLICA, Distribution
from graphdist.options import (
    AXIS_NAME,
    CommunicationOptions,
    VariableSynchronization,
    checked_axis_name,
    checked_parameter_sharding,
    checked_sharding,
)
from graphdist.runtime.broadcast import from_first_worker
from graphdist.runtime.devices import (
    Devices,
    backends_are_started,
    find_devices,
    working_devices,
)
from graphdist.runtime.processes.cluster_workers import (
    ClusterWorkers,
    current_workers,
    join_workers,
)
from graphdist.runtime.resharding import resharded
from graphdist.runtime.spans import array_of_full
from graphdist.strategies.base import CommonStrategy, Strategy
from graphdist.strategies.extended import StrategyExtended
from graphdist.strategies.local_steps import checked_local_steps
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import type_name


class MultiWorkerExtended(StrategyExtended):
    """The extended part, of a strategy whose processes each run the program."""

    experimental_between_graph = True

    def __init__(self, devices: Devices) -> None:
        """Take the devices; worker 0 writes where one worker writes for all."""
        super().__init__(devices)
        is_first = devices.workers is None or devices.workers.index == 0
        self.should_checkpoint = self.should_save_summary = is_first

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Return the names of this worker's devices."""
        return tuple(self.devices.names[replica] for replica in self.devices.local_replicas)


class MultiWorkerMirroredBase(CommonStrategy):
    """A strategy of workers, with the methods of one API or the other."""

    has_input_per_replica = False
    auto_synchronization = VariableSynchronization.ON_WRITE

    def __init__(
        self,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        *,
        devices: Sequence[str | jax.Device] | None = None,
        shard_update: bool | str = "auto",
        shard_parameters: bool | int = False,
        sync_every: int | None = None,
        outer_optimizer: Any = None,
        axis_name: str = AXIS_NAME,
    ) -> None:
        """Join the other workers, if there are any, and take the devices of all."""
        self.axis_name = checked_axis_name(axis_name)
        self.shard_update = checked_sharding(shard_update)
        options, resolver = (
            options_or_default(communication_options),
            resolver_or_default(cluster_resolver),
        )
        found = devices_of_workers(resolver, options, devices)
        if found is None:
            found = working_devices() if devices is None else find_devices(devices, here())
        group = checked_parameter_sharding(shard_parameters, len(found), self.shard_update)
        self.shard_parameters = group != 0
        self.local_steps = checked_local_steps(
            sync_every, outer_optimizer, self.shard_update, self.shard_parameters
        )
        if self.local_steps is not None:
            self.shard_update = False  # each replica updates copies of its own
        super().__init__(MultiWorkerExtended(found.in_groups_of(group) if group != 0 else found))
        self.cluster_resolver, self.communication_options = resolver, options

    def place_variable(self, value: Any, distribution: Distribution) -> Any:
        """Return a buffer of its own for a variable: worker 0's value on all workers."""
        if self.devices.workers is None or isinstance(value, jax.ShapeDtypeStruct):
            return super().place_variable(value, distribution)
        is_of_all = isinstance(value, jax.Array) and not value.is_fully_addressable
        if is_of_all and distribution is not PER_REPLICA:  # a step of all workers has made it
            home = self.devices.home(distribution)
            return resharded(value, home, self.devices, "placing the value of a variable", here())
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(value)
            bits = self._from_first_worker(np.asarray(jax.random.key_data(value)))
            return self._copies(
                jax.random.wrap_key_data(jax.numpy.asarray(bits), impl=implementation), distribution
            )
        return self._copies(self._from_first_worker(np.asarray(value)), distribution)

    def _from_first_worker(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return from_first_worker(value, self.devices, "the value of a variable", here())

    def _copies(self, value: Any, distribution: Distribution) -> jax.Array:
        """Return an array with copies of a value: of one, of its slices, or of one a replica."""
        home = self.devices.home(distribution)
        if distribution is not PER_REPLICA:
            return array_of_full(value, home)
        part = value.reshape(value.shape or (1,))
        copies = [
            jax.device_put(part, self.devices.devices[replica], may_alias=False)
            for replica in self.devices.local_replicas
        ]
        shape = (len(self.devices) * part.shape[0], *part.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, home, copies)


class MultiWorkerMirroredStrategy(MultiWorkerMirroredBase, Strategy):
    """Runs one replica on each device of every worker of a cluster.

    The program is started once for every worker, with the same code. `cluster_resolver` says who
    the workers are and which one this process is, by default `gd.cluster.TFConfigClusterResolver`.
    Each takes all its devices, or those that `devices` names, as for `MirroredStrategy`; all have
    the same number. Replicas are numbered worker by worker. Every worker has the results of
    `reduce` and `gather`; `experimental_local_results` and `values` give the worker's own replicas.
    Variables begin with worker 0's values. `timeout_seconds` of the `communication_options` bounds
    how long a step may take; the others are hints. Make the strategy before anything runs on a
    device.

    `shard_update`, `shard_parameters`, `sync_every`, `outer_optimizer` and `axis_name` mean the
    same as in `gd.MirroredStrategy`. The slices of a variable are on the replicas of all workers,
    so that no worker has all of them: outside functions all workers read it together. So they read
    a variable of which local steps have made copies.

    Without a cluster, or in one of one worker, it is a strategy of this process alone: on all its
    accelerators or, without any, on one CPU device.

    Raises `ArgumentError` for a resolver or options of another kind, or for a cluster that does not
    say which worker this is; `ContextError` when devices are in use already; `WorkerError` when the
    workers do not find each other in time (see `gd.config.set_worker_timeouts`), or differ in their
    number of devices.

    >>> MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """


def devices_of_workers(
    resolver: ClusterResolver,
    options: CommunicationOptions,
    names: Sequence[str | jax.Device] | None,
) -> Devices | None:
    """Join the workers and return the devices of all; None for a worker that is alone."""
    spec = roles.normalized(resolver.cluster_spec() or {})
    addresses = roles.worker_addresses(spec)
    kind, number = resolver.task_type, resolver.task_id
    if len(addresses) < 2 or kind == "evaluator":
        return None
    if kind is None or number is None:
        raise ArgumentError(
            f"the cluster has {len(addresses)} workers, and does not say which one this process is",
            source=here(),
            hint='give the resolver task_type and task_id, or TF_CONFIG a "task"',
        )
    workers = _rendezvous(addresses, roles.id_in_cluster(spec, kind, number), spec)
    seconds = options.timeout_seconds
    limit = workers.timeouts.step if seconds is None else seconds
    bounded = limit if limit and 0 < limit < float("inf") else None  # tf.distribute takes any
    return Devices(of_all_workers(workers, names), workers=workers, timeout_seconds=bounded)


def _rendezvous(addresses: Sequence[str], index: int, spec: ClusterSpec) -> ClusterWorkers:
    if current_workers() is None and backends_are_started():
        raise ContextError(
            f"devices are in use already, and can no longer become the devices of "
            f"{len(addresses)} workers: {spec}",
            source=here(),
            hint="make the strategy first: move what makes arrays, lists jax.devices() or runs "
            "functions below this line",
        )
    timeouts, job = worker_timeouts(), job_identity()
    return join_workers(addresses, index, timeouts, job, worker_bind_address(), here())


def of_all_workers(
    workers: ClusterWorkers, names: Sequence[str | jax.Device] | None
) -> list[jax.Device]:
    """Return the devices of all workers, worker by worker: all of them, or those named on each."""
    own = find_devices(names, here()).devices
    present = jax.local_devices(backend=own[0].platform)
    chosen = [present.index(device) for device in own]
    of_worker: list[list[jax.Device]] = [[] for _ in range(len(workers))]
    for device in jax.devices(own[0].platform):
        of_worker[device.process_index].append(device)
    if names:
        count = max(chosen) + 1
        of_worker = [
            [devices[place] for place in chosen] if len(devices) >= count else devices
            for devices in of_worker
        ]
    counts = [len(devices) for devices in of_worker]
    usual = Counter(counts).most_common(1)[0][0]
    for worker, count in enumerate(counts):
        if count != usual:
            other = counts.index(usual)
            raise WorkerError(
                f"{workers.name(worker)} has {count} devices, {workers.name(other)} has {usual}",
                source=here(),
                hint="give every worker the same number of devices, or name as many on each with "
                "devices=[...]",
            )
    return [device for devices in of_worker for device in devices]


def resolver_or_default(resolver: Any) -> ClusterResolver:
    """Return the resolver, or the default one; raises `ArgumentError` for another kind."""
    if resolver is None:
        return TFConfigClusterResolver()
    if not isinstance(resolver, ClusterResolver):
        raise ArgumentError(
            f"cluster_resolver is of type {type_name(resolver)}, not a ClusterResolver",
            source=here(),
            hint="leave it out: the default reads TF_CONFIG",
        )
    return resolver


def single_worker(resolver: Any) -> ClusterResolver:
    """Return a resolver that names one worker; raises `ContextError` for several."""
    found = resolver_or_default(resolver)
    count = len(roles.worker_addresses(found.cluster_spec() or {}))
    if count > 1:
        raise ContextError(
            f"the cluster has {count} workers, and the strategy is of one",
            source=here(),
            hint="use gd.MultiWorkerMirroredStrategy(resolver), on TPUs too",
        )
    return found


def options_or_default(options: Any) -> CommunicationOptions:
    """Return the options, or the default ones; raises `ArgumentError` for another kind."""
    if not isinstance(options, CommunicationOptions | None):
        raise ArgumentError(
            f"communication_options is of type {type_name(options)}, not CommunicationOptions",
            source=here(),
            hint="write gd.CommunicationOptions(...)",
        )
    return options or CommunicationOptions()
