"""What several cases begin with."""

from __future__ import annotations

from typing import Any  # Any: arrays of NumPy and JAX alike

import numpy as np

import graphdist as gd


def pair() -> gd.MirroredStrategy:
    """Return two replicas."""
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def per_replica(strategy: gd.Strategy, first: Any) -> Any:
    """Return a per-replica value: `first` on replica 0, one more on each after it."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: first + first.dtype.type(context.replica_id_in_sync_group)
    )


def unequal(strategy: gd.Strategy) -> Any:
    """Return a per-replica value with two rows on replica 0, one on replica 1."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.ones(2 - context.replica_id_in_sync_group, np.float32)
    )


def context() -> gd.ReplicaContext:
    """Return the replica's context."""
    return gd.get_replica_context()


def is_first() -> bool:
    """Return whether this is replica 0, as a Python value."""
    return bool(context().replica_id_in_sync_group == 0)
