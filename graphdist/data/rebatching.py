"""How many rows of a batch go to which replica.

A distributed dataset gives each replica ceil(rows / replicas) rows, in replica order, until the
batch is used up. So 5 rows over 4 replicas are 2, 2, 1 and 0.

A dataset that is not divided among workers by element (policies OFF, FILE and HINT) has fixed parts
instead, computed from the batch size that it declares: 4 rows over 2 replicas are 2 and 2, and the
2 rows of a last batch are 2 and 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from graphdist.data.elements import Array


def even_sizes(rows: int, num_replicas: int) -> tuple[int, ...]:
    """Return the number of rows of each replica: equal numbers, except for the last replicas.

    >>> even_sizes(5, 4)
    (2, 2, 1, 0)
    """
    part = -(-rows // num_replicas)
    return tuple(min(part, max(0, rows - part * replica)) for replica in range(num_replicas))


def filled_sizes(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the number of rows of each replica, if each in turn takes up to its size.

    >>> filled_sizes(2, (2, 2))
    (2, 0)
    """
    filled = []
    for size in sizes:
        filled.append(min(size, rows))
        rows -= filled[-1]
    return tuple(filled)


def batch_sizes_for_worker(
    global_batch: int, num_workers: int, num_replicas_per_worker: int, worker_index: int
) -> list[int]:
    """Return the sizes, in order, of the batches into which a worker splits the stream of rows.

    Every worker splits the entire stream by the same cycle of sizes. Each worker begins at another
    place in the cycle, so that the replicas of a step make up a global batch together.

    >>> [batch_sizes_for_worker(7, 2, 2, worker) for worker in range(2)]
    [[2, 2, 2, 1], [2, 1, 2, 2]]
    """
    parts = num_workers * num_replicas_per_worker
    size, larger = divmod(global_batch, parts)
    sizes = [size + 1] * larger + [size] * (parts - larger)
    start = worker_index * num_replicas_per_worker
    return sizes[start:] + sizes[:start]


def parts_of(array: Array, sizes: Sequence[int]) -> list[Array]:
    """Return consecutive parts of an array, of these sizes, as views of it."""
    ends = list(accumulate(sizes))
    return [array[end - size : end] for size, end in zip(sizes, ends, strict=True)]
