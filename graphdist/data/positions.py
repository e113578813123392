"""Where an iterator stands in its dataset, as a value that can be kept, and going on from there.

A position is how many elements were taken, and what cannot be counted: of each shuffle its seed and
how many orders it had drawn when the iteration began. An iterator made anew is put there by giving
the shuffles that state and leaving the elements out. What is left out is not made where that can be
avoided: arrays and ranges start further on, functions given to `map` are not called. So an element
may depend on nothing but the dataset: not on how often a function was called before.

Elements of other libraries' datasets are iterated and dropped, so that a shuffle of theirs must be
one that a new program repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import chain, count, islice
from typing import Any, TypeAlias  # Any: JSON, and datasets of other libraries

import jax
import numpy as np

from graphdist.data.batching import Batch
from graphdist.data.elements import UNKNOWN, Element, as_element
from graphdist.data.prefetch import Prefetched
from graphdist.data.shuffling import Shuffle
from graphdist.data.sources import Node, Range, Slices, Tensors, nodes_of
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
    applied,
)
from graphdist.errors import ArgumentError
from graphdist.tracing.sources import here

Orders: TypeAlias = list[list[int]]
"""Of each shuffle of a dataset the seed, and the number of orders drawn."""


@dataclass
class Position:
    """Where an iteration stands."""

    orders: list[Orders]
    """Of each dataset that is iterated, when the iteration began."""
    taken: int = 0

    @classmethod
    def at_start(cls, datasets: Sequence[Any]) -> Position:
        """Return the position of an iteration that is about to begin."""
        return cls([_orders_of(dataset) for dataset in datasets])

    @classmethod
    def of_state(cls, state: Any, datasets: Sequence[Any]) -> Position:
        """Return the position of a state, with the shuffles of the datasets set to it.

        Raises `ArgumentError` for a state of other datasets.
        """
        try:
            taken, orders = int(state["taken"]), [list(one) for one in state["orders"]]
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
        for shuffles, states in zip(found, orders, strict=True):
            for shuffle, (seed, drawn) in zip(shuffles, states, strict=True):
                shuffle.seeds.resume(seed, drawn)
        return cls(orders, taken)

    @property
    def state(self) -> Any:
        """Return the position as a value that JSON takes."""
        return {"taken": self.taken, "orders": self.orders}


_ALIKE = "make the dataset as it was made when the position was saved"


def _orders_of(dataset: Any) -> Orders:
    return [[one.seeds.seed, one.seeds.drawn] for one in _shuffles(dataset)]


def _shuffles(dataset: Any) -> list[Shuffle]:
    """Return the shuffles of a dataset's nodes; of other libraries' datasets none are known."""
    if not isinstance(dataset, Node):
        return []
    return [node for node in nodes_of(dataset) if isinstance(node, Shuffle)]


@singledispatch
def elements_from(elements: Any, start: int) -> Iterator[Element]:
    """Return an iterator over a dataset's elements from number `start` on.

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
    return (as_element(applied(node.function, one)) for one in elements_from(node.source, start))


@elements_from.register
def _(node: Batch, start: int) -> Iterator[Element]:
    if type(node) is Batch and node.source.rows(0, 0) is not UNKNOWN:
        return islice(iter(node), start, None)  # views, which cost nothing
    return map(node.stacked, node.groups(elements_from(node.source, start * node.size)))


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
    numbers = map(np.int64, count(node.start + start))
    return zip(numbers, elements_from(node.source, start), strict=False)


@elements_from.register
def _(node: Zip, start: int) -> Iterator[Element]:
    sources = [elements_from(source, start) for source in node.sources]
    return (jax.tree.unflatten(node.structure, one) for one in zip(*sources, strict=False))


@elements_from.register
def _(node: Prefetch, start: int) -> Iterator[Element]:
    return Prefetched(elements_from(node.source, start), lambda element: element, node.count)


@elements_from.register
def _(node: Repeat, start: int) -> Iterator[Element]:
    size = node.source.cardinality
    if size <= 0 or not all(isinstance(one, _DRAWS_ONCE) for one in nodes_of(node.source)):
        return islice(iter(node), start, None)
    epochs, rest = divmod(start, size)
    left_out = epochs if node.count is None else min(epochs, node.count)
    for shuffle in _shuffles(node.source):
        for _ in range(left_out):
            shuffle.seeds.next()
    if left_out == node.count:
        return iter(())
    left = None if node.count is None else node.count - left_out - 1
    return chain(elements_from(node.source, rest), Repeat(node.source, left))


_DRAWS_ONCE = (Slices, Range, Tensors, Map, Batch, Shuffle, Enumerate, Take, Skip, Shard)
"""Nodes of which a dataset draws one order of each shuffle whenever it is iterated to its end."""
