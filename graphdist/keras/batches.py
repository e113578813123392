"""The batches that Keras hands to a step, split over the replicas.

A batch is a pytree of NumPy arrays with the same number of rows. It is split in order, as evenly as
possible: of b rows every replica gets ceil(b / n) until they are used up, and so maybe none. Every
process of a cluster passes the full batch, and places the rows of its own replicas.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any  # Any: pytrees of arrays

import jax
import keras
import numpy as np

from graphdist.data.elements import batch_size, flattened
from graphdist.data.rebatching import even_sizes
from graphdist.keras.user_warnings import warn_user
from graphdist.strategies.base import Strategy
from graphdist.strategies.input import on_devices


def split(batch: Any, strategy: Strategy) -> Any:
    """Return a batch as per-replica values, each part on its replica's device.

    Raises `BatchDimensionError` for a scalar, `ArgumentError` if leaves differ in rows.
    """
    flat = flattened(batch)
    replicas = strategy.num_replicas_in_sync
    sizes = even_sizes(batch_size(flat), replicas)
    return jax.tree.unflatten(
        flat.structure, [_placed(np.asarray(leaf), sizes, strategy) for leaf in flat.arrays]
    )


def _placed(array: np.ndarray[Any, Any], sizes: tuple[int, ...], strategy: Strategy) -> Any:
    ends = list(accumulate(sizes))
    parts = [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    here = strategy.devices.local_replicas
    shapes = tuple(part.shape for part in parts)
    return on_devices(strategy, parts[here.start : here.stop], shapes)


def warn_of_idle_replicas(model: keras.Model, batch: Any, strategy: Strategy) -> None:
    """Warn if the batch has fewer rows than the strategy has replicas."""
    rows, replicas = batch_size(flattened(batch)), strategy.num_replicas_in_sync
    if rows < replicas:
        warn_user(
            f"a batch of {rows} rows for model {model.name!r} leaves replicas without any: "
            f"{strategy} has {replicas}. batch_size is the size of the global batch: make it at "
            f"least {replicas}"
        )
