"""Datasets that can be read in parts, and count what is read of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

ROWS = 4


class Indexed:
    """Batches by index, as grain's `MapDataset` has them."""

    def __init__(self, size: int, read: list[int], indices: Sequence[int] | None = None) -> None:
        self.size, self.read = size, read
        self.indices = range(size) if indices is None else indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, part: slice) -> Indexed:
        return Indexed(self.size, self.read, self.indices[part])

    def to_iter_dataset(self) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return _Reader(self.indices, self.read)


class Sharded:
    """Batches in shards, as a streaming dataset of Hugging Face has them."""

    num_shards = 4

    def __init__(self, size: int, read: list[int], indices: Sequence[int] | None = None) -> None:
        self.size, self.read = size, read
        self.indices = list(range(size)) if indices is None else indices
        self._reader: _Reader | None = None
        self._start = 0

    def shard(self, num_shards: int, index: int) -> Sharded:
        of_shards = [self.indices[shard :: self.num_shards] for shard in range(self.num_shards)]
        return Sharded(
            self.size, self.read, list(chain.from_iterable(of_shards[index::num_shards]))
        )

    def __iter__(self) -> Iterator[Any]:
        self._reader = _Reader(self.indices, self.read)
        self._reader.next, self._start = self._start, 0
        return (batch for batch in self._reader)

    def state_dict(self) -> Any:
        return None if self._reader is None else {"next": self._reader.next}

    def load_state_dict(self, state: Any) -> None:
        self._start = state["next"]


class _Reader:
    def __init__(self, indices: Sequence[int], read: list[int]) -> None:
        self.indices, self.read, self.next = indices, read, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.next == len(self.indices):
            raise StopIteration
        index = self.indices[self.next]
        self.next += 1
        self.read.append(index)
        return {"x": np.arange(ROWS) + ROWS * index}

    def get_state(self) -> Any:
        return {"next": self.next}

    def set_state(self, state: Any) -> None:
        self.next = state["next"]


class Counted(Indexed):
    """The same without a state: elements are counted."""

    def __getitem__(self, part: slice) -> Indexed:
        return Counted(self.size, self.read, self.indices[part])

    def __iter__(self) -> Iterator[Any]:
        return iter(list(super().__iter__()))
