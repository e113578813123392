"""Transformations that keep elements apart: map, take, shuffle, zip and so on.

Transformations that stack elements are in `batching.py`. A node describes its elements as its
source does, except where it overrides a property.

A shuffle has the order of tf.data: a program gets the same elements for the same seed. A buffer is
filled from the source. Each element returned is drawn from the buffer at random, the oldest element
moves to its index, and the next element of the source joins at the end. With a buffer as large as
the dataset this is the Fisher-Yates shuffle. Each iteration has another order, and a new program
repeats the orders: see `shuffle_orders.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, count, islice
from typing import Any  # Any: the user's functions, pytrees of specs

import jax
import numpy as np

from graphdist.data.elements import UNKNOWN, Element, as_element, spec_of, with_open_batch
from graphdist.data.failures import FailedElement, attempted, made_from
from graphdist.data.prefetch import OrdersAhead, Prefetched
from graphdist.data.shuffle_orders import ShuffleOrders, ShuffleSeed
from graphdist.data.sources import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Batching,
    DatasetNode,
    Description,
    nodes_of,
    rewritten,
)
from graphdist.errors import ArgumentError
from graphdist.values.specs import ArraySpec

SHARD_HINT = -1
"""In `shard(SHARD_HINT, SHARD_HINT)`: the strategy fills in its workers' count and index."""


@dataclass(frozen=True, eq=False)
class UnaryTransformation(DatasetNode):
    """A transformation of one dataset."""

    source: DatasetNode

    @property
    def description(self) -> Description:
        """Return the description of the source, with the number of elements by `count_of`."""
        described = self.source.description
        if described.cardinality < 0:
            return described
        return described._replace(cardinality=self.count_of(described.cardinality))

    def count_of(self, elements: int) -> int:
        """Return the number of elements, if the source has `elements` of them."""
        return elements


def applied(function: Callable[..., Any], element: Element) -> Any:
    """Return the result of a function for an element; a tuple becomes several arguments."""
    is_arguments = isinstance(element, tuple) and not hasattr(element, "_fields")
    return function(*element) if is_arguments else function(element)


@dataclass(frozen=True, eq=False)
class Map(UnaryTransformation):
    """The results of a function for each element; their spec is unknown before one is made."""

    function: Callable[..., Any]

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the results from index `start` on."""
        return map(self._applied, self.source.elements_from(start))

    def _applied(self, element: Element) -> Element:
        if isinstance(element, FailedElement):
            return element
        return attempted(lambda: as_element(applied(self.function, element)))

    @property
    def description(self) -> Description:
        """Return the description of the source, without the specs."""
        return self.source.description._replace(element_spec=UNKNOWN)


@dataclass(frozen=True, eq=False)
class Filter(UnaryTransformation):
    """The elements for which a function returns true."""

    predicate: Callable[..., Any]

    def __iter__(self) -> Iterator[Element]:
        for element in self.source:
            is_kept = isinstance(element, FailedElement) or attempted(self._keeps, element)
            if isinstance(is_kept, FailedElement):
                yield is_kept
            elif is_kept:
                yield element

    def _keeps(self, element: Element) -> bool:
        return bool(applied(self.predicate, element))

    @property
    def description(self) -> Description:
        """Return the description of the source, without the number of elements."""
        return self.source.description._replace(cardinality=UNKNOWN_CARDINALITY)


@dataclass(frozen=True, eq=False)
class Take(UnaryTransformation):
    """The first elements."""

    count: int

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        return islice(self.source.elements_from(start), max(0, self.count - start))

    @property
    def description(self) -> Description:
        """Return the description of the source, with at most `count` elements."""
        described = self.source.description
        if described.cardinality == INFINITE_CARDINALITY:
            return described._replace(cardinality=self.count)
        # Unknown is less than any count.
        return described._replace(cardinality=min(described.cardinality, self.count))


@dataclass(frozen=True, eq=False)
class Skip(UnaryTransformation):
    """All but the first `count` elements, which are not made if the source can start later."""

    count: int

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        return self.source.elements_from(self.count + start)

    def count_of(self, elements: int) -> int:
        """Return the number of elements that remain."""
        return max(0, elements - self.count)


@dataclass(frozen=True, eq=False)
class Shard(UnaryTransformation):
    """Every `count`-th element, from element `index` on."""

    count: int
    index: int

    @property
    def is_hint(self) -> bool:
        """Return whether the strategy has to set the count and the index first."""
        return self.count == SHARD_HINT

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        if self.is_hint:
            raise ArgumentError(
                "shard(SHARD_HINT, SHARD_HINT) has not been told how many shards there are",
                hint="distribute the dataset with AutoShardPolicy.HINT in its options",
            )
        later = self.source.elements_from(self.index + start * self.count)
        return islice(later, 0, None, self.count)

    def count_of(self, elements: int) -> int:
        """Return the number of elements of this shard; all elements while the count is a hint."""
        if self.is_hint:
            return elements
        return max(0, -(-(elements - self.index) // self.count))


@dataclass(frozen=True, eq=False)
class Repeat(UnaryTransformation):
    """The elements `count` times over; None is for ever."""

    takes_one_order = False
    count: int | None

    def __iter__(self) -> Iterator[Element]:
        for _ in islice(count(), self.count):
            is_empty = True
            for element in self.source:
                is_empty = False
                yield element
            if is_empty:
                return  # repeating an empty dataset for ever would never end

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        size = self.source.description.cardinality
        nodes = nodes_of(self.source)
        if not start or size <= 0 or not all(node.takes_one_order for node in nodes):
            return islice(iter(self), start, None)
        epochs, rest = divmod(start, size)
        skipped = epochs if self.count is None else min(epochs, self.count)
        for node in nodes:
            if isinstance(node, Shuffle):
                assert node.orders is not None
                node.orders.taken += skipped
        if skipped == self.count:
            return iter(())
        left = None if self.count is None else self.count - skipped - 1
        return chain(self.source.elements_from(rest), Repeat(self.source, left))

    @property
    def description(self) -> Description:
        """Return the description of the source, with the number of elements of all epochs."""
        described = self.source.description
        if self.count == 0 or described.cardinality == 0:
            return described._replace(cardinality=0)
        if self.count is None:
            return described._replace(cardinality=INFINITE_CARDINALITY)
        return super().description

    def count_of(self, elements: int) -> int:
        """Return the number of elements of all epochs."""
        return elements if self.count is None else elements * self.count


@dataclass(frozen=True, eq=False)
class Enumerate(UnaryTransformation):
    """Pairs of an element's index, counted from `start`, and the element."""

    start: int

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the pairs from index `start` on."""
        indices = map(np.int64, count(self.start + start))
        pairs = zip(indices, self.source.elements_from(start), strict=False)
        return (made_from(pair, tuple) for pair in pairs)

    @property
    def description(self) -> Description:
        """Describe pairs, which are no batches."""
        spec, cardinality, _ = self.source.description
        return Description(
            UNKNOWN if spec is UNKNOWN else (ArraySpec((), np.int64), spec), cardinality
        )


@dataclass(frozen=True, eq=False)
class Prefetch(UnaryTransformation):
    """The elements, made ahead of their use on a background thread."""

    takes_one_order = False
    count: int

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        source, orders = for_a_thread(self.source)
        return Prefetched(source.elements_from(start), self.count, orders)


def for_a_thread(node: DatasetNode) -> tuple[DatasetNode, OrdersAhead]:
    """Return a copy of the nodes for a prefetching thread, and the orders of their shuffles.

    Each shuffle of the copy has an object of its own for the orders, which may be ahead of the
    caller's.
    """
    orders: list[tuple[ShuffleOrders, ShuffleOrders]] = []

    def apart(part: Any) -> Any:
        seen: ShuffleOrders | None = getattr(part, "orders", None)  # a shuffle's
        if seen is None:
            return part
        orders.append((seen.ahead(), seen))
        return replace(part, orders=orders[-1][0])

    return rewritten(node, apart), orders


@dataclass(frozen=True, eq=False)
class Zip(DatasetNode):
    """Elements of several datasets side by side, until the shortest ends."""

    takes_one_order = False
    sources: tuple[DatasetNode, ...]
    structure: Any

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        unflatten = partial(jax.tree.unflatten, self.structure)
        sources = [source.elements_from(start) for source in self.sources]
        return (made_from(elements, unflatten) for elements in zip(*sources, strict=False))

    @property
    def description(self) -> Description:
        """Return the specs in the structure of the elements, and the smallest cardinality."""
        specs, counts, batchings = zip(*(each.description for each in self.sources), strict=True)
        return Description(
            UNKNOWN if UNKNOWN in specs else jax.tree.unflatten(self.structure, specs),
            min({*counts} - {INFINITE_CARDINALITY}, default=INFINITE_CARDINALITY),
            common(batchings),
        )


@dataclass(frozen=True, eq=False)
class Concatenate(DatasetNode):
    """The elements of a dataset, and then the elements of another."""

    takes_one_order = False
    sources: tuple[DatasetNode, ...]

    def __iter__(self) -> Iterator[Element]:
        return chain.from_iterable(self.sources)

    @property
    def description(self) -> Description:
        """Return the specs, open where they differ, and the sum of the numbers of elements.

        Raises `ArgumentError` when structure, dtype or rank differ.
        """
        specs, counts, batchings = zip(*(each.description for each in self.sources), strict=True)
        spec = UNKNOWN if UNKNOWN in specs else reduce(joined_spec, specs)
        not_finite = [c for c in (INFINITE_CARDINALITY, UNKNOWN_CARDINALITY) if c in counts]
        cardinality = not_finite[0] if not_finite else sum(counts)
        return Description(spec, cardinality, common(batchings))


def common(batchings: Sequence[Batching | None]) -> Batching | None:
    """Return how several datasets are batched together; None unless all have batches.

    >>> common([Batching(4, True), Batching(4)])
    Batching(size=4, is_static=False)
    """
    known = [batching for batching in batchings if batching is not None]
    if not known or len(known) < len(batchings):
        return None
    sizes = {batching.size for batching in known}
    if len(sizes) > 1:
        return Batching()
    return Batching(sizes.pop(), all(batching.is_static for batching in known))


def joined_spec(spec: Any, other: Any) -> Any:
    """Return specs that describe the elements of both specs.

    Raises `ArgumentError` when structure, dtype or rank differ.

    >>> joined_spec(ArraySpec((4, 3), np.int32), ArraySpec((2, 3), np.int32))
    ArraySpec(shape=(None, 3), dtype=int32)
    """
    kind, other_kind = (
        jax.tree.flatten(jax.tree.map(lambda leaf: (len(leaf.shape), leaf.dtype), each))
        for each in (spec, other)
    )
    if kind != other_kind:
        raise ArgumentError(
            f"elements of {spec} and of {other} are in one dataset",
            hint="give both the same structure, dtypes and ranks",
        )
    return jax.tree.map(_joined_leaf, spec, other)


def _joined_leaf(left: ArraySpec, right: ArraySpec) -> ArraySpec:
    sizes = zip(left.shape, right.shape, strict=True)
    return ArraySpec([size if size == other else None for size, other in sizes], left.dtype)


def observed_spec(elements: Sequence[Element], batching: Batching | None) -> Any:
    """Return the specs of a dataset's elements, as far as the first elements show them.

    A size in which the elements differ is open. The number of rows of batches is open unless
    `batching` says that it is static.

    >>> observed_spec([np.zeros((4, 3))], Batching(4))
    ArraySpec(shape=(None, 3), dtype=float64)
    """
    if not elements:
        raise ArgumentError("an empty dataset has no element_spec: it is taken from the elements")
    spec = reduce(joined_spec, map(spec_of, elements))
    if batching is None:
        return spec

    def with_rows(leaf: ArraySpec) -> ArraySpec:
        is_known = batching.is_static and leaf.shape[:1] == (batching.size,)
        return leaf if is_known else ArraySpec(with_open_batch(leaf.shape), leaf.dtype)

    return jax.tree.map(with_rows, spec)


@dataclass(frozen=True, eq=False)
class Shuffle(UnaryTransformation):
    """The elements in random order, which differs from iteration to iteration."""

    buffer_size: int
    seed: ShuffleSeed
    orders: ShuffleOrders | None = None
    """The orders of the iteration that the node belongs to; None in a dataset."""

    def __iter__(self) -> Iterator[Element]:
        assert self.orders is not None
        return shuffled(iter(self.source), self.buffer_size, self.orders.next())


def shuffled(
    elements: Iterator[Element], buffer_size: int, numbers: Iterator[int]
) -> Iterator[Element]:
    """Yield elements in random order: each number draws one from a buffer.

    >>> "".join(shuffled(iter("abcdef"), 3, iter([2, 1, 0, 2, 1, 0])))
    'cabfde'
    """
    buffer = deque(islice(elements, buffer_size))
    while buffer:
        index = next(numbers) % len(buffer)
        drawn, buffer[index] = buffer[index], buffer[0]
        buffer.popleft()
        yield drawn
        buffer.extend(islice(elements, 1))
