"""Copies of one value, one per replica, as one sharded array.

The array concatenates the replicas' copies along dimension 0. The copy of a scalar is one element.
Steps expect per-replica values in this form. All processes of a cluster call these functions
together; no value passes through the host.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any  # Any: functions of JAX

import jax
import jax.numpy as jnp

from graphdist.ir.types import MIRRORED, PER_REPLICA
from graphdist.runtime.devices import Devices


def copies_of(value: jax.Array, devices: Devices) -> jax.Array:
    """Return one copy of a mirrored value per replica, in new memory."""
    made: jax.Array = _copies(len(devices), devices.sharding(PER_REPLICA))(value)
    return made


def mean_of_copies(copies: jax.Array, shape: tuple[int, ...], devices: Devices) -> jax.Array:
    """Return the mean of the copies as a mirrored value; for integers and booleans the maximum."""
    made: jax.Array = _mean(len(devices), tuple(shape), devices.sharding(MIRRORED))(copies)
    return made


@lru_cache(maxsize=256)
def _copies(count: int, sharding: Any) -> Any:
    def copied(value: Any) -> Any:
        part = value.reshape(value.shape or (1,))
        return jnp.broadcast_to(part, (count, *part.shape)).reshape(-1, *part.shape[1:])

    return jax.jit(copied, out_shardings=sharding)


@lru_cache(maxsize=256)
def _mean(count: int, shape: tuple[int, ...], sharding: Any) -> Any:
    def mean(copies: Any) -> Any:
        stacked = copies.reshape(count, *shape)
        if jnp.issubdtype(stacked.dtype, jnp.inexact):
            return jnp.mean(stacked, axis=0)
        return jnp.max(stacked, axis=0)

    return jax.jit(mean, out_shardings=sharding)
