"""What a step reads of servers: variables in full, and the rows of tables that it looks up.

The shards of a table that a step joins are one table: a row is read of the shard that has it, once,
and of no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any  # Any: arrays, and the strategy

import numpy as np

from graphdist.ir.types import numpy_dtype
from graphdist.parameter_server.messages import Key, Read
from graphdist.passes.pulls import RowLookup, RowReads


class Reads:
    """What a step reads: variables in full, and rows of tables."""

    def __init__(self, found: RowReads, keys: Mapping[str, Key]) -> None:
        """Take the reads, and the numbers of the variables by name."""
        self._full = [Read(keys[name]) for name in found.reads]
        self._tables = [
            Table([keys[name] for name in lookup.variables], lookup) for lookup in found.lookups
        ]

    def values(self, strategy: Any, numbers: Sequence[Any]) -> list[Any]:
        """Return the values of the variables, and the rows of these numbers."""
        given = [np.asarray(asked)[..., 0].astype(np.int64) for asked in numbers]
        once = [table.numbers(asked) for table, asked in zip(self._tables, given, strict=True)]
        rows = [table.reads(sent) for table, sent in zip(self._tables, once, strict=True)]
        values = iter(
            strategy.read([*self._full, *(read for of_table in rows for read in of_table)])
        )
        full = [next(values) for _ in self._full]
        found = [[next(values) for _ in of_table] for of_table in rows]
        return [*full, *map(Table.looked_up, self._tables, found, once, given)]


class Table:
    """A table of which rows are read: a variable, or several in order."""

    def __init__(self, keys: Sequence[Key], lookup: RowLookup) -> None:
        """Take the numbers of the variables."""
        self._keys, self._fill, self._row = keys, lookup.fill, lookup.row
        self._ends = [0, *accumulate(lookup.num_rows)]

    def numbers(self, asked: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the rows to read, each once: in a batch of words most are there several times."""
        within = np.clip(asked, 0, self._ends[-1] - 1)
        return np.unique(within if self._fill is None else asked[within == asked])

    def reads(self, numbers: np.ndarray[Any, Any]) -> list[Read]:
        """Return the reads of these rows, of the variables that have them."""
        ranges = pairwise(np.searchsorted(numbers, self._ends))
        return [
            Read(key, (numbers[first:last] - start).astype(np.int32))
            for key, start, (first, last) in zip(self._keys, self._ends, ranges, strict=False)
            if last > first
        ]

    def looked_up(
        self,
        parts: Sequence[np.ndarray[Any, Any]],
        numbers: np.ndarray[Any, Any],
        asked: np.ndarray[Any, Any],
    ) -> np.ndarray[Any, Any]:
        """Return the rows that are asked for, of those that were read under their numbers."""
        nothing = np.zeros((1, *self._row.shape), numpy_dtype(self._row.dtype))
        rows = np.concatenate([*parts, nothing])
        found = rows[np.searchsorted(numbers, np.clip(asked, 0, self._ends[-1] - 1))]
        if self._fill is not None:
            found[(asked < 0) | (asked >= self._ends[-1])] = self._fill
        return found
