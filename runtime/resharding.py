"""Copies arrays to a sharding, also if the devices belong to several processes.

A process that holds all shards of an array makes the new shards of its devices from these shards,
without the other processes. Otherwise a supervised step of all workers gathers the array. A
transfer of JAX would wait for ever for a worker that does not take part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any  # Any: functions of JAX, dtypes of NumPy arrays

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED
from graphdist.runtime.devices import Devices
from graphdist.runtime.processes.addresses import WorkerError
from graphdist.runtime.processes.cluster_workers import CollectiveTimeoutError
from graphdist.runtime.processes.workers import first_different
from graphdist.runtime.spans import array_of_full, host_copy, is_held_here
from graphdist.runtime.supervised_steps import supervised

HINT = "let all workers do it, in the same order: no worker holds its full value"


def agree_to_gather(what: str, devices: Devices, at: Source = UNKNOWN) -> None:
    """Wait until all workers are about to gather the same array, described by `what`.

    Raise `WorkerError` if the workers are about to gather different arrays, and
    `CollectiveTimeoutError` for a worker that does not arrive in time.
    """
    workers = devices.workers
    if workers is None:
        return
    try:
        gathers = workers.exchange(f"gather {workers.ordinal('gather')}", what, what, at)
    except CollectiveTimeoutError as error:
        error.hint = HINT
        raise
    if (other := first_different(gathers)) is not None:
        first, second = (f"{workers.name(i)} is at {gathers[i]}" for i in (0, other))
        raise WorkerError(f"{first}, {second}", source=at, hint=HINT)


def resharded(
    array: jax.Array, sharding: Sharding, devices: Devices, what: str, at: Source = UNKNOWN
) -> jax.Array:
    """Return a copy of an array in another sharding. All workers must call this function.

    If no worker holds all shards of the array, the workers call `agree_to_gather` and gather the
    array. Raise the errors of a step of several workers.
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
    (copy,) = supervised(_identity(sharding), what, devices, lambda: ("", at))(array)
    return copy


def mirrored_on(devices: Devices, value: Any) -> jax.Array:
    """Return this process's full value as a mirrored array on the devices of all processes.

    No process waits for another process, as a transfer of JAX does, which compares the values of
    all processes in an unsupervised collective.
    """
    if devices.workers is not None:
        return array_of_full(value, devices.home(MIRRORED))
    return jax.device_put(value, devices.home(MIRRORED), may_alias=False)


def sharded_copy(value: np.ndarray[Any, Any] | jax.Array, home: Sharding) -> jax.Array:
    """Return a new array with the value; each device receives only its shard of the value.

    The new array shares no memory with the value, because steps may donate the new array. An array
    that is sharded over other devices is copied through the memory of the host.

    >>> from jax.sharding import AxisType, PartitionSpec
    >>> mesh = Mesh(jax.devices()[:2], "d", axis_types=(AxisType.Auto,))
    >>> array = sharded_copy(np.arange(4), NamedSharding(mesh, PartitionSpec("d")))
    >>> [shard.data.shape for shard in array.addressable_shards]
    [(2,), (2,)]
    """
    if isinstance(value, jax.Array):
        own = value.sharding
        if own.device_set == home.device_set and _mesh(own) == _mesh(home):
            return _copy_to(home)(value)
        if len(value.devices()) == 1:
            return jax.device_put(value, home, may_alias=False)
    return array_of_full(np.asarray(value), home)


@lru_cache(maxsize=64)
def _copy_to(home: Sharding) -> Callable[[jax.Array], jax.Array]:
    # Not `device_put`: on CPU its shards of a mirrored array are views of the array's memory.
    return jax.jit(jnp.copy, out_shardings=home)


def _mesh(sharding: Sharding) -> Mesh | None:
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None


@cache
def _identity(sharding: Sharding) -> Any:
    return jax.jit(lambda array: [array], out_shardings=[sharding])
