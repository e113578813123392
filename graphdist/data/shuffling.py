"""Shuffling in the order of tf.data: a program gets the same elements for the same seed.

A buffer is filled from the source. Each element given out is drawn from the buffer at random, the
oldest element moves to its place, and the next element of the source joins at the end. With a
buffer as large as the dataset this is the Fisher-Yates shuffle. Each iteration has another order,
and a new program repeats the orders: see `orders.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from graphdist.data.elements import Element
from graphdist.data.orders import Draws, Seeds
from graphdist.data.sources import DatasetNode
from graphdist.data.transformations import UnaryTransformation


@dataclass(frozen=True, eq=False)
class Shuffle(UnaryTransformation):
    """The elements in random order, another one for each iteration."""

    buffer_size: int
    seeds: Seeds
    draws: Draws | None = None
    """The orders of the iteration that the node belongs to; None in a dataset."""

    @property
    def unshuffled(self) -> DatasetNode:
        """Return the dataset without the shuffle: looking at elements must not take an order."""
        return self.source

    def __iter__(self) -> Iterator[Element]:
        assert self.draws is not None
        return shuffled(iter(self.source), self.buffer_size, self.draws.next())


def shuffled(
    elements: Iterator[Element], buffer_size: int, numbers: Iterator[int]
) -> Iterator[Element]:
    """Yield the elements in the order that the numbers draw from a buffer.

    >>> "".join(shuffled(iter("abcdef"), 3, iter([2, 1, 0, 2, 1, 0])))
    'cabfde'
    """
    buffer = deque(islice(elements, buffer_size))
    while buffer:
        place = next(numbers) % len(buffer)
        drawn, buffer[place] = buffer[place], buffer[0]
        buffer.popleft()
        yield drawn
        buffer.extend(islice(elements, 1))
