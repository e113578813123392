"""Arrays in another sharding, also where the devices belong to several processes.

A process that has all of an array cuts its devices' parts out of it, and needs nobody. An array
that no process has in full is gathered by a step of all workers, which is supervised. A transfer of
JAX would do the same, and wait for ever for a worker that does not come.
"""

from __future__ import annotations

from functools import cache
from typing import Any  # Any: functions of JAX

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import CollectiveTimeoutError
from graphdist.runtime.spans import array_of_full, host_copy, is_held_here
from graphdist.runtime.supervised_steps import supervised_call

HINT = "let all workers do it, in the same order: no worker holds all of its value"


def agree_to_gather(what: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Return once all workers are about to gather the same array; `what` says which and why.

    Raises `WorkerError` if they are about to gather different ones, `CollectiveTimeoutError` for a
    worker that does not come in time.
    """
    workers = devices.workers
    if workers is None:
        return
    try:
        given = workers.exchange(f"gather {workers.ordinal('gather')}", what, what, at)
    except CollectiveTimeoutError as error:
        error.hint = HINT
        raise
    for worker, other in enumerate(given):
        if other != given[0]:
            raise WorkerError(
                f"{workers.name(0)} is at {given[0]}, {workers.name(worker)} is at {other}",
                source=at,
                hint=HINT,
            )


def resharded(
    array: jax.Array, sharding: Sharding, devices: Devices, what: str, at: Source = UNKNOWN
) -> jax.Array:
    """Return a copy of an array in another sharding; all workers call it.

    If no worker has all of the array they gather it, and call `agree_to_gather` before. Raises what
    a step of several workers raises.
    """
    if devices.workers is None:
        return jax.device_put(array, sharding, may_alias=False)
    if array.sharding == sharding:
        return jnp.array(array, copy=True)
    if array.is_fully_replicated:
        return array_of_full(array.addressable_data(0), sharding)
    if is_held_here(array.sharding, array.shape):
        return array_of_full(host_copy(array), sharding)
    copy: jax.Array
    (copy,) = supervised_call(_moves(sharding), what, devices, at)(array)
    return copy


def mirrored_on(devices: Devices, value: Any) -> jax.Array:
    """Return a value that this process has in full as an array on the devices of all processes.

    No process waits for another: JAX's own transfer would compare the values of all processes, in a
    collective that nothing supervises.
    """
    if devices.workers is not None:
        return array_of_full(value, devices.home(MIRRORED))
    return jax.device_put(value, devices.home(MIRRORED), may_alias=False)


@cache
def _moves(sharding: Sharding) -> Any:
    return jax.jit(lambda array: [array], out_shardings=[sharding])
