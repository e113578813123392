"""One replica on each device of every worker of a cluster, with variables mirrored on all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any  # Any: what users pass as resolver and options

import jax
import numpy as np

from graphdist.errors import ArgumentError, WorkerError
from graphdist.ir.types import PER_REPLICA, Layout
from graphdist.options import AXIS_NAME, CommunicationOptions
from graphdist.runtime.broadcast import from_first_worker
from graphdist.runtime.devices import Devices, find_devices, working_devices
from graphdist.runtime.processes.cluster_workers import ClusterWorkers
from graphdist.runtime.resharding import resharded
from graphdist.runtime.spans import array_of_full
from graphdist.strategies.base import Strategy
from graphdist.strategies.data_parallel import DataParallelStrategy
from graphdist.strategies.workers_of_job import NAME_DEVICES, joined_workers, require_all_processes
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import wrong_type


class MultiWorkerMirroredBase(DataParallelStrategy):
    """The part of `MultiWorkerMirroredStrategy` that its form in `graphdist.compat.v1` shares."""

    has_input_per_replica = False

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
        cores_per_replica: int = 1,
    ) -> None:
        """Join the other workers, if there are any, and find the devices of all workers."""
        if not isinstance(communication_options, CommunicationOptions | None):
            hint, expected = "write gd.CommunicationOptions(...)", "CommunicationOptions"
            name, given = "communication_options", communication_options
            raise wrong_type(name, given, expected, hint, ArgumentError)
        options = communication_options or CommunicationOptions()
        resolver, workers = joined_workers(cluster_resolver)
        if workers is not None:
            found = devices_of_workers(workers, options, devices)
        elif devices is not None:
            found = find_devices(devices, here())
        else:
            require_all_processes(type(self).__name__, NAME_DEVICES)
            found = working_devices()
        updates = (shard_update, shard_parameters, sync_every, outer_optimizer)
        super().__init__(found, axis_name, *updates, cores_per_replica)
        self.extended.experimental_between_graph = True
        self.cluster_resolver, self.communication_options = resolver, options

    def place_variable(self, value: Any, layout: Layout) -> Any:
        """Return a new buffer for a variable. All workers use worker 0's value."""
        if self.devices.workers is None or isinstance(value, jax.ShapeDtypeStruct):
            return super().place_variable(value, layout)
        is_global = isinstance(value, jax.Array) and not value.is_fully_addressable
        if is_global and layout is not PER_REPLICA:  # a step of all workers computed it
            home = self.devices.home(layout)
            return resharded(value, home, self.devices, "placing the value of a variable", here())
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            implementation = jax.random.key_impl(value)
            bits = self._from_first_worker(np.asarray(jax.random.key_data(value)))
            return self._copies(
                jax.random.wrap_key_data(jax.numpy.asarray(bits), impl=implementation), layout
            )
        return self._copies(self._from_first_worker(np.asarray(value)), layout)

    def _from_first_worker(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return from_first_worker(value, self.devices, "the value of a variable", here())

    def _copies(self, value: Any, layout: Layout) -> jax.Array:
        """Return the array of a value: mirrored, sharded, or with a copy for each replica."""
        home = self.devices.home(layout)
        if layout is not PER_REPLICA:
            return array_of_full(value, home)
        part = value.reshape(value.shape or (1,))
        copies = [
            jax.device_put(part, device, may_alias=False) for device in self.devices.local_devices
        ]
        shape = (len(self.devices) * part.shape[0], *part.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, home, copies)


class MultiWorkerMirroredStrategy(MultiWorkerMirroredBase, Strategy):
    """Runs one replica on each device of every worker of a cluster.

    Start the program once for every worker, with the same code. `cluster_resolver` names the
    workers and this process's index among them. Without a resolver, `TF_CONFIG` names the workers,
    or a JAX that is initialized already, or the launcher: Slurm, Open MPI, Kubernetes, Cloud TPU.
    Each worker uses all its devices, or those that `devices` names, as in `MirroredStrategy`. All
    workers must have the same number of devices. Replicas are numbered worker by worker. A replica
    of more cores than a worker has devices has all devices of several workers. Every
    worker gets the results of `reduce` and `gather`. `experimental_local_results` and `values`
    return the values of the worker's own replicas. Variables start with worker 0's values.
    `timeout_seconds` of the `communication_options` limits the time of a step. The other
    `communication_options` are hints. Make the strategy before anything runs on a device.

    `shard_update`, `shard_parameters`, `sync_every`, `outer_optimizer` and `axis_name` mean the
    same as in `gd.MirroredStrategy`. No worker has all shards of a sharded variable. So outside
    functions all workers must read such a variable together. The same holds for a variable of which
    each replica has a copy because of local steps.

    Without a cluster, or with one worker, the strategy uses this process alone: all its
    accelerators, or one CPU device if it has none.

    Raises `ArgumentError` for a resolver or options of another type, or for a cluster that does not
    say which worker this is; `ContextError` if devices are in use already; `WorkerError` if the
    workers do not connect in time (see `gd.config.set_worker_timeouts`), or differ in their number
    of devices.

    >>> MultiWorkerMirroredStrategy(devices=["cpu:0", "cpu:1"]).num_replicas_in_sync
    2
    """


def devices_of_workers(
    workers: ClusterWorkers, options: CommunicationOptions, names: Sequence[str | jax.Device] | None
) -> Devices:
    """Return the devices of all workers, with the time limit of a step."""
    seconds = options.timeout_seconds
    limit = workers.timeouts.step if seconds is None else seconds
    # tf.distribute allows any number. If it is not positive and finite, there is no limit.
    timeout = limit if limit and 0 < limit < float("inf") else None
    return Devices(of_all_workers(workers, names), workers=workers, timeout_seconds=timeout)


def of_all_workers(
    workers: ClusterWorkers, names: Sequence[str | jax.Device] | None
) -> list[jax.Device]:
    """Return the devices of all workers, worker by worker; only those in `names`, if given."""
    own = find_devices(names, here()).devices
    present = jax.local_devices(backend=own[0].platform)
    chosen = [present.index(device) for device in own]
    of_worker: list[list[jax.Device]] = [[] for _ in range(len(workers))]
    for device in jax.devices(own[0].platform):
        of_worker[device.process_index].append(device)
    if names:
        count = max(chosen) + 1
        of_worker = [
            [devices[index] for index in chosen] if len(devices) >= count else devices
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
