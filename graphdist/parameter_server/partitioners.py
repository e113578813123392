"""Partitioners, which choose the number of shards of a variable.

A partitioner is called with a shape and a dtype, and returns a number for each dimension. Only
the first number may be more than 1, because variables are split along dimension 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any  # Any: dtypes

import numpy as np

from graphdist.errors import ArgumentError, BatchDimensionError, UnsupportedError


class Partitioner:
    """The base of partitioners; a function of shape and dtype is a partitioner, too."""

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        raise UnsupportedError(
            f"{type(self).__name__} does not say how variables are split",
            hint="use a subclass, such as FixedShardsPartitioner(2)",
        )


class _Bounded(Partitioner):
    """A partitioner whose fields are numbers, which must be at least 1, or None."""

    def __post_init__(self) -> None:
        for name, number in vars(self).items():
            if number is not None and number < 1:
                raise ArgumentError(f"{name} is {number}: it must be at least 1")


@dataclass(eq=False)
class FixedShardsPartitioner(_Bounded):
    """Splits every variable into `num_shards` shards, or into its rows if it has fewer rows.

    >>> FixedShardsPartitioner(2)((10, 3), "float32")
    [2, 1]
    """

    num_shards: int

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        return _along(shape, axis, self.num_shards)


@dataclass(eq=False)
class MinSizePartitioner(_Bounded):
    """Splits a variable into the most shards of at least `min_shard_bytes`, up to `max_shards`.

    Raises `ArgumentError` for a number below 1.

    >>> MinSizePartitioner(4, max_shards=2)((6, 1), "float32")
    [2, 1]
    """

    min_shard_bytes: int = 256 << 10
    max_shards: int = 1
    bytes_per_string: int = 16

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        num_bytes = math.prod(shape) * _item_bytes(dtype, self.bytes_per_string)
        return _along(shape, axis, min(self.max_shards, num_bytes // self.min_shard_bytes))


@dataclass(eq=False)
class MaxSizePartitioner(_Bounded):
    """Splits a variable into the fewest shards of at most `max_shard_bytes` each.

    A shard has at least one row. `max_shards` limits the number of shards; None: no limit. Raises
    `ArgumentError` for a number below 1.

    >>> MaxSizePartitioner(4)((6, 1), "float32")
    [6, 1]
    """

    max_shard_bytes: int
    max_shards: int | None = None
    bytes_per_string: int = 16

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        rows = _rows(shape, axis)
        row_bytes = math.prod(shape) // max(rows, 1) * _item_bytes(dtype, self.bytes_per_string)
        rows_of_shard = max(1, self.max_shard_bytes // max(row_bytes, 1))
        return _along(shape, axis, min(math.ceil(rows / rows_of_shard), self.max_shards or rows))


def _along(shape: Sequence[int], axis: int, num_shards: int) -> list[int]:
    """Return 1 for each dimension, but for `axis` a number from 1 to its rows near `num_shards`."""
    shards = [1] * len(shape)
    shards[axis] = max(1, min(num_shards, _rows(shape, axis)))
    return shards


def _rows(shape: Sequence[int], axis: int) -> int:
    if axis >= len(shape):
        raise BatchDimensionError(
            f"a variable of shape {list(shape)} is split along dimension {axis}, which it does not "
            f"have",
            hint="leave scalars unsplit",
        )
    return shape[axis]


def _item_bytes(dtype: Any, bytes_per_string: int) -> int:
    found = np.dtype(dtype) if dtype not in ("string", str) else np.dtype(object)
    return bytes_per_string if found.kind in "OSU" else found.itemsize
