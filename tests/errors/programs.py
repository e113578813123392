"""What several cases begin with."""

from __future__ import annotations

from typing import Any  # Any: arrays of NumPy and JAX alike

import graphdist as gd


def pair() -> gd.MirroredStrategy:
    """Return two replicas."""
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def per_replica(strategy: gd.Strategy, first: Any) -> Any:
    """Return a per-replica value: `first` on replica 0, one more on each after it."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: first + first.dtype.type(context.replica_id_in_sync_group)
    )
