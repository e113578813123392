"""Partitioners, which choose the number of shards of a variable.

A partitioner is called with a shape and a dtype, and returns a number for each dimension. Only
the first may be more than 1: variables are split along dimension 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any  # Any: dtypes

import numpy as np

from graphdist.errors import ArgumentError, BatchDimensionError, UnsupportedError

_DEFAULT_SHARD_BYTES = 256 << 10
_DEFAULT_STRING_BYTES = 16


class Partitioner:
    """The base of partitioners; a function of shape and dtype is a partitioner, too."""

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        raise UnsupportedError(
            f"{type(self).__name__} does not say how variables are split",
            hint="use a subclass, such as FixedShardsPartitioner(2)",
        )


class FixedShardsPartitioner(Partitioner):
    """Splits every variable into `num_shards` shards, or into its rows if it has fewer.

    >>> FixedShardsPartitioner(2)((10, 3), "float32")
    [2, 1]
    """

    def __init__(self, num_shards: int) -> None:
        """Take the number of shards."""
        self._num_shards = _at_least_one(num_shards, "num_shards")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        return _along(shape, axis, self._num_shards)


class MinSizePartitioner(Partitioner):
    """Splits a variable into the most shards of at least `min_shard_bytes`, up to `max_shards`.

    >>> MinSizePartitioner(4, max_shards=2)((6, 1), "float32")
    [2, 1]
    """

    def __init__(
        self,
        min_shard_bytes: int = _DEFAULT_SHARD_BYTES,
        max_shards: int = 1,
        bytes_per_string: int = _DEFAULT_STRING_BYTES,
    ) -> None:
        """Take the bounds; raises `ArgumentError` for numbers below 1."""
        self._min_bytes = _at_least_one(min_shard_bytes, "min_shard_bytes")
        self._max_shards = _at_least_one(max_shards, "max_shards")
        self._string_bytes = _at_least_one(bytes_per_string, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        num_bytes = math.prod(shape) * _item_bytes(dtype, self._string_bytes)
        return _along(shape, axis, min(self._max_shards, num_bytes // self._min_bytes))


class MaxSizePartitioner(Partitioner):
    """Splits a variable into the fewest shards of at most `max_shard_bytes` each.

    A shard has at least one row. `max_shards` limits their number, if given.

    >>> MaxSizePartitioner(4)((6, 1), "float32")
    [6, 1]
    """

    def __init__(
        self,
        max_shard_bytes: int,
        max_shards: int | None = None,
        bytes_per_string: int = _DEFAULT_STRING_BYTES,
    ) -> None:
        """Take the bounds; raises `ArgumentError` for numbers below 1."""
        self._max_bytes = _at_least_one(max_shard_bytes, "max_shard_bytes")
        self._max_shards = None if max_shards is None else _at_least_one(max_shards, "max_shards")
        self._string_bytes = _at_least_one(bytes_per_string, "bytes_per_string")

    def __call__(self, shape: Sequence[int], dtype: Any, axis: int = 0) -> list[int]:
        """Return the number of shards along each dimension."""
        rows = _rows(shape, axis)
        of_row = math.prod(shape) // max(rows, 1) * _item_bytes(dtype, self._string_bytes)
        rows_of_shard = max(1, self._max_bytes // max(of_row, 1))
        needed = math.ceil(rows / rows_of_shard)
        return _along(
            shape, axis, needed if self._max_shards is None else min(needed, self._max_shards)
        )


def _along(shape: Sequence[int], axis: int, num_shards: int) -> list[int]:
    """Return 1 shard for each dimension but `axis`, which has between 1 and its number of rows."""
    shards = [1] * len(shape)
    rows = _rows(shape, axis)
    shards[axis] = max(1, min(num_shards, rows))
    return shards


def _rows(shape: Sequence[int], axis: int) -> int:
    if axis >= len(shape):
        raise BatchDimensionError(
            f"a variable of shape {list(shape)} is split along dimension {axis}, which it does not "
            f"have",
            hint="leave scalars unsplit",
        )
    return shape[axis]


def _item_bytes(dtype: Any, of_string: int) -> int:
    found = np.dtype(dtype) if dtype not in ("string", str) else np.dtype(object)
    return of_string if found.kind in "OSU" else found.itemsize


def _at_least_one(number: int, name: str) -> int:
    if number < 1:
        raise ArgumentError(f"{name} is {number}: it must be at least 1")
    return number
