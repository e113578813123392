"""The sources of a `Dataset`, and the base class of its nodes.

A dataset is a tree of nodes with the last transformation at its root. A node can be iterated any
number of times, each time from its start. Without iterating, it describes its elements as far as it
knows them: their spec, how many there are, and whether they are batches. An element that could not
be made counts as an element: see `failures.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple  # Any: the user's functions

import jax
import numpy as np

from graphdist.data.elements import (
    UNKNOWN,
    Element,
    ElementKind,
    as_element,
    each_row,
    flattened,
    is_list,
    leaf_name,
    spec_of,
    spec_of_rows,
)
from graphdist.data.failures import FailedElement, attempted, caught
from graphdist.errors import ArgumentError, BatchDimensionError
from graphdist.values.specs import ArraySpec

INFINITE_CARDINALITY = -1
"""The number of elements of a dataset that does not end."""
UNKNOWN_CARDINALITY = -2
"""The number of elements of a dataset whose elements must be iterated to be counted."""


class Batching(NamedTuple):
    """The size of the batches, None if it is not known, and whether all batches have that size."""

    size: int | None = None
    is_static: bool = False


class Description(NamedTuple):
    """What a dataset knows of its elements without an iteration."""

    element_spec: Any = UNKNOWN
    """The specs of an element; UNKNOWN if an element must be seen first."""
    cardinality: int = UNKNOWN_CARDINALITY
    """The number of elements, or one of the two constants above."""
    batching: Batching | None = None
    """The size of the batches; None if elements are not batches."""


@dataclass(eq=False)
class ElementStream:
    """The elements of one iteration, and the state of the source after the element drawn last."""

    elements: Iterator[Element]
    state: Callable[[], Any] = lambda: None
    """Returns the state as a value of JSON; None if the source has no state."""

    def __iter__(self) -> Iterator[Element]:
        return self

    def __next__(self) -> Element:
        return next(self.elements)


class DatasetNode:
    """A source or a transformation; the defaults describe a source that knows nothing.

    A subclass overrides `__iter__`, or `elements_from` if it can start at a later element.
    """

    takes_one_order = True
    """Whether an iteration to the end takes exactly one order of each shuffle.

    It does not matter for a node with an unknown number of elements, such as a filter.
    """

    def __iter__(self) -> Iterator[Element]:
        return self.elements_from(0)

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the elements from index `start` on."""
        return islice(iter(self), start, None)

    def stream(self, start: int = 0, state: Any = None) -> ElementStream:
        """Return the elements from index `start` on, or from a state of an earlier stream."""
        return ElementStream(self.elements_from(start))

    @property
    def description(self) -> Description:
        """Return what the dataset knows of its elements."""
        return Description()

    def rows(self, start: int, stop: int) -> Element:
        """Return elements `start` to `stop`, stacked; UNKNOWN if they would have to be iterated."""
        return UNKNOWN


def rewritten(node: Any, rule: Callable[[Any], Any]) -> Any:
    """Return a tree of nodes with `rule` applied to each, from the sources up."""
    changes: dict[str, Any] = {}
    for field in fields(node):
        value = getattr(node, field.name)
        if isinstance(value, DatasetNode):
            changes[field.name] = rewritten(value, rule)
        elif isinstance(value, tuple) and any(isinstance(child, DatasetNode) for child in value):
            changes[field.name] = tuple(rewritten(child, rule) for child in value)
    return rule(replace(node, **changes) if changes else node)


def nodes_of(node: DatasetNode) -> list[DatasetNode]:
    """Return the nodes of a tree, sources first."""
    nodes: list[DatasetNode] = []

    def keep(part: DatasetNode) -> DatasetNode:
        nodes.append(part)
        return part

    rewritten(node, keep)
    return nodes


@dataclass(frozen=True, eq=False)
class Slices(DatasetNode):
    """The rows of arrays."""

    arrays: Element

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the rows from index `start` on."""
        return each_row(self.arrays, start)

    @property
    def description(self) -> Description:
        """Describe a row, and count the rows."""
        return Description(spec_of_rows(self.arrays), len(jax.tree.leaves(self.arrays)[0]))

    def rows(self, start: int, stop: int) -> Element:
        """Return a part of each array, not copied."""
        return jax.tree.map(lambda leaf: leaf[start:stop], self.arrays)


@dataclass(frozen=True, eq=False)
class Range(DatasetNode):
    """Integers, of 64 bits."""

    numbers: range

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the integers from index `start` on."""
        return map(np.int64, self.numbers[start:])

    @property
    def description(self) -> Description:
        """Describe an integer, and count the integers."""
        return Description(ArraySpec((), np.int64), len(self.numbers))

    def rows(self, start: int, stop: int) -> Element:
        """Return some of the integers as an array."""
        part = self.numbers[start:stop]
        return np.arange(part.start, part.stop, part.step, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Tensors(DatasetNode):
    """One element."""

    element: Element

    def __iter__(self) -> Iterator[Element]:
        yield self.element

    @property
    def description(self) -> Description:
        """Describe the element."""
        return Description(spec_of(self.element), 1)


@dataclass(frozen=True, eq=False)
class Generated(DatasetNode):
    """The elements of iterators that a function returns; each iteration calls it again."""

    generator: Callable[..., Iterable[Any]]
    signature: Any
    arguments: tuple[Any, ...]

    def __iter__(self) -> Iterator[Element]:
        make = as_element
        if self.signature is not UNKNOWN:
            make = partial(_declared, ElementKind.of_spec(self.signature, "in output_signature"))
        return _converted(caught(lambda: self.generator(*self.arguments)), make)

    @property
    def description(self) -> Description:
        """Return the signature; elements without a signature count as batches."""
        batching = Batching() if self.signature is UNKNOWN else None
        return Description(self.signature, batching=batching)


@dataclass(frozen=True, eq=False)
class Files(DatasetNode):
    """The elements read from files, file after file."""

    files: tuple[str, ...]
    read: Callable[[str], Iterable[Any]]

    def __iter__(self) -> Iterator[Element]:
        for file in self.files:
            yield from _converted(caught(partial(self.read, file)), as_element)

    @property
    def description(self) -> Description:
        """Describe the elements as batches of an unknown size."""
        return Description(batching=Batching())


def _converted(values: Iterator[Any], make: Callable[[Any], Element]) -> Iterator[Element]:
    for value in values:
        yield value if isinstance(value, FailedElement) else attempted(make, value)


def _declared(kind: ElementKind, value: Any) -> Element:
    """Return a value as an element of a declared kind; numbers and lists get its dtypes."""
    leaves, structure = jax.tree.flatten(value, is_leaf=is_list)
    if structure == kind.structure:
        leaves = [
            leaf if hasattr(leaf, "dtype") else np.asarray(leaf, spec.dtype)
            for leaf, spec in zip(leaves, kind.leaves, strict=True)
        ]
    element = as_element(jax.tree.unflatten(structure, leaves))
    kind.check(flattened(element))
    return element


def read_lines(file: str) -> Iterator[str]:
    """Yield the lines of a text file, without the newlines."""
    with open(file, encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def sliceable(tensors: Any) -> Element:
    """Return a pytree of arrays as views that cannot be written.

    Raises `BatchDimensionError` for a scalar, `ArgumentError` for arrays with different numbers of
    rows.
    """
    element = jax.tree.map(_read_only, as_element(tensors))
    leaves = jax.tree.leaves(element)
    if not leaves:
        raise ArgumentError("from_tensor_slices is given no arrays: there is nothing to slice")
    names = [leaf_name(element, index, "tensors") for index in range(len(leaves))]
    for name, leaf in zip(names, leaves, strict=True):
        if leaf.ndim == 0:
            raise BatchDimensionError(
                f"{name} is a scalar, which has no rows",
                hint="use Dataset.from_tensors for a dataset of one element",
            )
        if len(leaf) != len(leaves[0]):
            raise ArgumentError(
                f"{names[0]} has {len(leaves[0])} rows, {name} has {len(leaf)}",
                hint="give all arrays one size in dimension 0: an element is a row of each",
            )
    return element


def _read_only(leaf: Any) -> Any:
    view = np.asarray(leaf).view()
    view.flags.writeable = False
    return view
