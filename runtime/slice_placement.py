"""Shards values over devices: each device receives its shard only, never the full value.

The result is a new array that shares no memory with the value, since steps donate it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any  # Any: dtypes of NumPy arrays

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, Sharding

from graphdist.runtime.spans import array_of_full


def in_slices(value: np.ndarray[Any, Any] | jax.Array, home: Sharding) -> jax.Array:
    """Return a new array with the value, stored in the sharding `home`.

    An array that is sharded over other devices is copied through the memory of the host.

    >>> from jax.sharding import AxisType, Mesh, PartitionSpec
    >>> mesh = Mesh(jax.devices()[:2], "d", axis_types=(AxisType.Auto,))
    >>> array = in_slices(np.arange(4), NamedSharding(mesh, PartitionSpec("d")))
    >>> [shard.data.shape for shard in array.addressable_shards]
    [(2,), (2,)]
    """
    if isinstance(value, jax.Array):
        if value.sharding.device_set == home.device_set and _mesh(value.sharding) == _mesh(home):
            return _copy_to(home)(value)
        if len(value.devices()) == 1:
            return jax.device_put(value, home, may_alias=False)
    return array_of_full(np.asarray(value), home)


@lru_cache(maxsize=64)
def _copy_to(home: Sharding) -> Callable[[jax.Array], jax.Array]:
    # Not `device_put`: on CPU its shards of a mirrored array are views of the array's memory.
    return jax.jit(jax.numpy.copy, out_shardings=home)


def _mesh(sharding: Sharding) -> Mesh | None:
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    return mesh if isinstance(mesh, Mesh) else None
