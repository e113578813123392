"""The position of an iterator in its dataset: a value that can be saved, and iterated on from.

A position is the number of elements taken, and the state that this number does not imply: for each
shuffle its seed and the number of orders taken before the iteration began. A new iterator resumes
there by giving the shuffles that state and skipping the elements. Skipped elements are not made
where that can be avoided: arrays and ranges start further on, and functions given to `map` are not
called. So an element may depend on the dataset only, not on how often a function was called before.

An iteration has its own copies of the nodes, whose shuffles count the orders of this iteration
only. Other iterators of the dataset do not affect them.

Elements of other libraries' datasets are iterated and dropped. A shuffle in such a dataset must
therefore give the same order in a new program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from itertools import chain, islice
from typing import Any, TypeAlias  # Any: JSON, and datasets of other libraries

import numpy as np

from graphdist.data.batching import Batch
from graphdist.data.elements import UNKNOWN, Element
from graphdist.data.orders import Draws, Seeds
from graphdist.data.shuffling import Shuffle
from graphdist.data.sources import DatasetNode, Range, Slices, Tensors, nodes_of, rewritten
from graphdist.data.transformations import (
    SHARD_HINT,
    Enumerate,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Skip,
    Take,
    Zip,
)
from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here

Orders: TypeAlias = list[list[int]]
"""For each shuffle of a dataset: its seed, and the number of orders taken before."""

Begin: TypeAlias = Callable[[Seeds, int], list[Draws]]
"""Begins the orders of a shuffle that occurs the given number of times in an iteration."""


@dataclass
class Position:
    """Where an iteration stands."""

    datasets: list[Any]
    """The iterated datasets: nodes that belong to this iteration, or other libraries' datasets."""
    orders: list[Orders]
    """The orders of each iterated dataset, as of the start of the iteration."""
    taken: int = 0

    @classmethod
    def at_start(cls, datasets: Sequence[Any]) -> Position:
        """Return the position of an iteration that begins."""
        return cls._begun(datasets, Seeds.begin)

    @classmethod
    def of_state(cls, state: Any, datasets: Sequence[Any]) -> Position:
        """Return the position of a state, in an iteration of these datasets.

        Raises `ArgumentError` for a state of other datasets.
        """
        try:
            taken = _number(state["taken"])
            orders = [
                [(_number(seed), _number(first)) for seed, first in of_dataset]
                for of_dataset in state["orders"]
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise ArgumentError(
                f"{state!r} is no position in a dataset", source=here(), hint=_ALIKE
            ) from error
        found = [_shuffles(dataset) for dataset in datasets]
        saved_counts, counts = [len(part) for part in orders], [len(part) for part in found]
        if saved_counts != counts:
            raise ArgumentError(
                f"the position is of datasets with {saved_counts} shuffles, these have {counts}",
                source=here(),
                hint=_ALIKE,
            )
        states = {
            shuffle.seeds: began
            for shuffles, of_dataset in zip(found, orders, strict=True)
            for shuffle, began in zip(shuffles, of_dataset, strict=True)
        }
        position = cls._begun(datasets, lambda seeds, times: seeds.resume(*states[seeds], times))
        position.taken = taken
        return position

    @classmethod
    def _begun(cls, datasets: Sequence[Any], begin: Begin) -> Position:
        all_seeds = [shuffle.seeds for dataset in datasets for shuffle in _shuffles(dataset)]
        draws = {seeds: begin(seeds, times) for seeds, times in Counter(all_seeds).items()}
        orders = [
            [[shuffle.seeds.seed, draws[shuffle.seeds][0].first] for shuffle in _shuffles(dataset)]
            for dataset in datasets
        ]
        left = {seeds: iter(of_seeds) for seeds, of_seeds in draws.items()}

        def owned(node: Any) -> Any:
            is_shuffle = isinstance(node, Shuffle)
            return replace(node, draws=next(left[node.seeds])) if is_shuffle else node

        own = [
            rewritten(dataset, owned) if isinstance(dataset, DatasetNode) else dataset
            for dataset in datasets
        ]
        return cls(own, orders)

    @property
    def state(self) -> Any:
        """Return the position as a value that JSON takes."""
        return {"taken": self.taken, "orders": self.orders}


_ALIKE = "make the dataset as it was made when the position was saved"


def _number(value: Any) -> int:
    """Return a count; raises `ValueError` for anything else."""
    number = int(value)
    if number != value or number < 0:
        raise ValueError(f"{value!r} is no count")
    return number


def _shuffles(dataset: Any) -> list[Shuffle]:
    """Return the shuffles of a dataset's nodes; those in other libraries' datasets are unknown."""
    if not isinstance(dataset, DatasetNode):
        return []
    return [node for node in nodes_of(dataset) if isinstance(node, Shuffle)]


@singledispatch
def elements_from(elements: Any, start: int) -> Iterator[Element]:
    """Return an iterator over an iteration's elements from number `start` on.

    >>> from graphdist.data.dataset import Dataset
    >>> list(elements_from(Dataset.range(5).map(lambda x: x * 10).batch(2).node, 1))
    [array([20, 30]), array([40])]
    """
    return islice(iter(elements), start, None)


@elements_from.register
def _(node: Range, start: int) -> Iterator[Element]:
    return map(np.int64, node.numbers[start:])


@elements_from.register
def _(node: Map, start: int) -> Iterator[Element]:
    return node.over(elements_from(node.source, start))


@elements_from.register
def _(node: Batch, start: int) -> Iterator[Element]:
    if type(node) is Batch and node.source.rows(0, 0) is not UNKNOWN:
        return islice(iter(node), start, None)  # views, which cost nothing
    return node.over(elements_from(node.source, start * node.size))


@elements_from.register
def _(node: Take, start: int) -> Iterator[Element]:
    return islice(elements_from(node.source, start), max(0, node.count - start))


@elements_from.register
def _(node: Skip, start: int) -> Iterator[Element]:
    return elements_from(node.source, node.count + start)


@elements_from.register
def _(node: Shard, start: int) -> Iterator[Element]:
    if node.count == SHARD_HINT:
        return iter(node)  # which refuses
    return islice(elements_from(node.source, node.index + start * node.count), 0, None, node.count)


@elements_from.register
def _(node: Enumerate, start: int) -> Iterator[Element]:
    return node.over(elements_from(node.source, start), node.start + start)


@elements_from.register
def _(node: Zip, start: int) -> Iterator[Element]:
    return node.over([elements_from(source, start) for source in node.sources])


@elements_from.register
def _(node: Prefetch, start: int) -> Iterator[Element]:
    return node.over(lambda source: elements_from(source, start))


@elements_from.register
def _(node: Repeat, start: int) -> Iterator[Element]:
    size = node.source.cardinality
    if size <= 0 or not all(isinstance(inner, _DRAWS_ONCE) for inner in nodes_of(node.source)):
        return islice(iter(node), start, None)
    epochs, rest = divmod(start, size)
    left_out = epochs if node.count is None else min(epochs, node.count)
    for shuffle in _shuffles(node.source):
        assert shuffle.draws is not None
        shuffle.draws.taken += left_out
    if left_out == node.count:
        return iter(())
    left = None if node.count is None else node.count - left_out - 1
    return chain(elements_from(node.source, rest), Repeat(node.source, left))


_DRAWS_ONCE = (Slices, Range, Tensors, Map, Batch, Shuffle, Enumerate, Take, Skip, Shard)
"""A dataset of these nodes takes one order of each shuffle each time it is iterated to its end."""
