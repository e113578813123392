"""Where an iterator stands in its dataset, as a value that can be kept, and going on from there.

A position is how many elements were taken, and what cannot be counted: of each shuffle its seed and
how many orders were taken before the iteration began. An iterator made anew is put there by giving
the shuffles that state and leaving the elements out. What is left out is not made where that can be
avoided: arrays and ranges start further on, functions given to `map` are not called. So an element
may depend on nothing but the dataset: not on how often a function was called before.

An iteration has nodes of its own, whose shuffles count the orders of this iteration alone: other
iterators of the dataset do not touch them.

Elements of other libraries' datasets are iterated and dropped, so that a shuffle of theirs must be
one that a new program repeats.
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
from graphdist.tracing.sources import here

Orders: TypeAlias = list[list[int]]
"""Of each shuffle of a dataset the seed, and the number of orders taken before."""

Begin: TypeAlias = Callable[[Seeds, int], list[Draws]]
"""Begins the orders of a shuffle that is so many times in an iteration."""


@dataclass
class Position:
    """Where an iteration stands."""

    datasets: list[Any]
    """What is iterated: nodes of this iteration alone, or datasets of other libraries."""
    orders: list[Orders]
    """Of each dataset that is iterated, when the iteration began."""
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
                [(_number(seed), _number(first)) for seed, first in one] for one in state["orders"]
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise ArgumentError(
                f"{state!r} is no position in a dataset", source=here(), hint=_ALIKE
            ) from error
        found = [_shuffles(dataset) for dataset in datasets]
        if [len(one) for one in found] != [len(one) for one in orders]:
            raise ArgumentError(
                f"the position is one in datasets with {[len(one) for one in orders]} shuffles, "
                f"these have {[len(one) for one in found]}",
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
            [[one.seeds.seed, draws[one.seeds][0].first] for one in _shuffles(dataset)]
            for dataset in datasets
        ]
        left = {seeds: iter(of_seeds) for seeds, of_seeds in draws.items()}

        def owned(node: Any) -> Any:
            is_shuffle = isinstance(node, Shuffle)
            return replace(node, draws=next(left[node.seeds])) if is_shuffle else node

        own = [rewritten(one, owned) if isinstance(one, DatasetNode) else one for one in datasets]
        return cls(own, orders)

    @property
    def state(self) -> Any:
        """Return the position as a value that JSON takes."""
        return {"taken": self.taken, "orders": self.orders}


_ALIKE = "make the dataset as it was made when the position was saved"


def _number(value: Any) -> int:
    """Return a number that counts; raises `ValueError` for anything else."""
    number = int(value)
    if number != value or number < 0:
        raise ValueError(f"{value!r} counts nothing")
    return number


def _shuffles(dataset: Any) -> list[Shuffle]:
    """Return the shuffles of a dataset's nodes; of other libraries' datasets none are known."""
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
    if size <= 0 or not all(isinstance(one, _DRAWS_ONCE) for one in nodes_of(node.source)):
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
"""Nodes of which a dataset draws one order of each shuffle whenever it is iterated to its end."""
