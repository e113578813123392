"""Batches on the replicas: one, or several that are stacked for a program of several steps.

A batch is a pytree of NumPy arrays with the same number of rows. The rows are split in order: each
of the n replicas gets ceil(rows / n) rows until all rows are assigned, so the last replicas may get
fewer rows or none. Every process of a cluster passes the full batch, and places the rows of its own
replicas.

Batches of one structure, shape and dtype are stacked along a new first dimension, at most
`MOST_BYTES` of them. Each batch is copied when it is taken from the iterator, since a generator may
change its arrays afterwards. If the iterator fails, the batches before the failure are still
stepped on, as they are one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any  # Any: pytrees of arrays

import jax
import numpy as np

from graphdist.data.chunks import MOST_BYTES
from graphdist.data.elements import Array, Flat, batch_size, flattened
from graphdist.data.rebatching import even_sizes, parts_of
from graphdist.strategies.base import Strategy
from graphdist.values.components import on_devices
from graphdist.values.distributed import Shapes


class StackedBatches:
    """Consecutive batches of one kind, copied to memory that has room for `most` of them."""

    def __init__(self, first: Flat, most: int, strategy: Strategy) -> None:
        """Copy the first batch."""
        self._strategy, self._structure, self._kind = strategy, first.structure, _kind(first)
        self.rows = batch_size(first)
        self._sizes = even_sizes(self.rows, strategy.num_replicas_in_sync)
        self._memory = [
            [np.empty((most, *part.shape), part.dtype) for part in parts]
            for parts in self._local_parts(first)
        ]
        self.count = 0
        self._add(first)

    def takes(self, batch: Flat) -> bool:
        """Copy a batch behind the others; return False if it is of another kind."""
        if _kind(batch) != self._kind:
            return False
        self._add(batch)
        return True

    def _add(self, batch: Flat) -> None:
        for memory, parts in zip(self._memory, self._local_parts(batch), strict=True):
            for of_replica, part in zip(memory, parts, strict=True):
                of_replica[self.count] = part
        self.count += 1

    def _local_parts(self, batch: Flat) -> Iterator[list[Array]]:
        here = self._strategy.devices.local_replicas
        for array in batch.arrays:
            yield parts_of(array, self._sizes)[here.start : here.stop]

    def stacked(self) -> Any:
        """Return per-replica values whose first dimension counts the batches."""
        return self._placed(slice(0, self.count), (self.count,))

    def single(self) -> Iterator[Any]:
        """Yield the batches one by one."""
        return (self._placed(index, ()) for index in range(self.count))

    def _placed(self, taken: int | slice, steps: tuple[int, ...]) -> Any:
        leaves = [
            _on_devices(
                [of_replica[taken] for of_replica in memory], self._sizes, self._strategy, steps
            )
            for memory in self._memory
        ]
        return jax.tree.unflatten(self._structure, leaves)


def groups_of(iterator: Iterator[Any], steps: int, strategy: Strategy) -> Iterator[StackedBatches]:
    """Take `steps` batches of an iterator, or what it has, and yield them in groups of one kind."""
    group, most = None, steps
    try:
        for batch in map(flattened, islice(iterator, steps)):
            if group is not None and (group.count == most or not group.takes(batch)):
                yield group
                group = None
            if group is None:
                most = equal_groups(steps, sum(array.nbytes for array in batch.arrays))
                group = StackedBatches(batch, most, strategy)
    except Exception:
        if group is not None:
            yield group
        raise
    if group is not None:
        yield group


def equal_groups(steps: int, size: int) -> int:
    """Return how many batches of `size` bytes to stack, for equal groups of `steps` batches.

    >>> equal_groups(10, MOST_BYTES // 9), equal_groups(10, 2 * MOST_BYTES)
    (5, 1)
    """
    groups = -(-steps // max(MOST_BYTES // max(size, 1), 1))
    return -(-steps // groups)


def _kind(batch: Flat) -> Any:
    return batch.structure, [(array.shape, array.dtype) for array in batch.arrays]


def split(batch: Any, strategy: Strategy) -> Any:
    """Return a batch as per-replica values, in which each part is on the replica's device.

    Raises `BatchDimensionError` for a scalar, `ArgumentError` if leaves differ in rows.
    """
    flat, here = flattened(batch), strategy.devices.local_replicas
    sizes = even_sizes(batch_size(flat), strategy.num_replicas_in_sync)
    parts = [parts_of(array, sizes)[here.start : here.stop] for array in flat.arrays]
    leaves = [_on_devices(of_leaf, sizes, strategy) for of_leaf in parts]
    return jax.tree.unflatten(flat.structure, leaves)


def _on_devices(
    parts: list[Array], sizes: Sequence[int], strategy: Strategy, steps: tuple[int, ...] = ()
) -> Any:
    """Return the per-replica value of this process's parts, stacked along the dimension `steps`."""
    inner = parts[0].shape[len(steps) + 1 :]
    shapes: Shapes = tuple((*steps, size, *inner) for size in sizes)
    return on_devices(strategy, parts, shapes)
