"""Transformations that stack elements into batches, or split batches."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any  # Any: pytrees of specs and shapes

import jax
import numpy as np

from graphdist.data.elements import (
    UNKNOWN,
    Array,
    Element,
    Flat,
    batch_size,
    each_row,
    spec_of_rows,
)
from graphdist.data.failures import FailedElement, attempted, made_from
from graphdist.data.sources import Batching, Description
from graphdist.data.transformations import UnaryTransformation
from graphdist.errors import ArgumentError
from graphdist.values.distributed import largest
from graphdist.values.specs import ArraySpec, Dimensions


@dataclass(frozen=True, eq=False)
class Batch(UnaryTransformation):
    """Batches of `size` stacked elements."""

    size: int
    drop_remainder: bool

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the batches from index `start` on."""
        if self.source.rows(0, 0) is not UNKNOWN:
            return self._of_rows(start)
        return self._batches(self.source.elements_from(start * self.size))

    def _of_rows(self, start: int) -> Iterator[Element]:
        rows = self.source.description.cardinality
        for row in range(start * self.size, self.count_of(rows) * self.size, self.size):
            yield self.source.rows(row, min(row + self.size, rows))

    def _batches(self, elements: Iterator[Element]) -> Iterator[Element]:
        while group := list(islice(elements, self.size)):
            if len(group) == self.size or not self.drop_remainder:
                yield made_from(group, self.stacked)

    def stacked(self, group: Sequence[Element]) -> Element:
        """Return elements as one batch; raises `ArgumentError` when their shapes differ."""
        try:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *group)
        except ValueError as error:
            shapes = [jax.tree.map(np.shape, element) for element in group]
            hint = "give all one structure and shape, or use padded_batch"
            raise _of_shapes(shapes, hint) from error

    @property
    def description(self) -> Description:
        """Describe batches; the number of rows is open if the last batch may be smaller."""
        spec, cardinality, _ = super().description
        return Description(
            spec if spec is UNKNOWN else jax.tree.map(self._batched, spec),
            cardinality,
            Batching(self.size, self.drop_remainder),
        )

    def _batched(self, spec: ArraySpec) -> ArraySpec:
        size = self.size if self.drop_remainder else None
        return ArraySpec((size, *spec.shape), spec.dtype)

    def count_of(self, elements: int) -> int:
        """Return the number of batches of so many elements."""
        full_batches, rest = divmod(elements, self.size)
        return full_batches + (rest > 0 and not self.drop_remainder)


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batch):
    """Elements of different shapes, padded to one and stacked, `size` at a time.

    `shapes` holds the shape to which each leaf is padded. A size of None is the largest in the
    batch; a shape of None has None for every size. `values` holds the value that pads each leaf. A
    single value pads all leaves, and None is zero.
    """

    shapes: Any
    values: Any

    def elements_from(self, start: int) -> Iterator[Element]:
        """Return an iterator over the batches from index `start` on."""
        return self._batches(self.source.elements_from(start * self.size))

    def stacked(self, group: Sequence[Element]) -> Element:
        """Return elements as one batch.

        Raises `ArgumentError` for an element that is larger than the padded shape.
        """
        structure: Any = jax.tree.structure(group[0])
        for element in group:
            if jax.tree.structure(element) != structure:
                raise ArgumentError(
                    f"elements of one batch differ: {structure} and {jax.tree.structure(element)}",
                    hint="give all one structure",
                )
        columns = zip(*map(jax.tree.leaves, group), strict=True)
        shapes, values = of_leaves(self.shapes, structure), of_leaves(self.values, structure)
        padded = [
            _padded(column, shape, value)
            for column, shape, value in zip(columns, shapes, values, strict=True)
        ]
        return jax.tree.unflatten(structure, padded)

    @property
    def description(self) -> Description:
        """Describe batches of the padded shapes."""
        described = super().description
        if described.element_spec is UNKNOWN:
            return described
        leaves, structure = jax.tree.flatten(described.element_spec)
        shapes = of_leaves(self.shapes, structure)
        padded = [
            leaf
            if shape is None
            else ArraySpec((leaf.shape[0], *with_open_sizes(shape)), leaf.dtype)
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        return described._replace(element_spec=jax.tree.unflatten(structure, padded))


def of_leaves(setting: Any, structure: Any) -> list[Any]:
    """Return the setting of each leaf of a structure.

    `setting` is a pytree with a setting for each leaf, or one setting that applies to all leaves.

    >>> of_leaves({"x": [None], "y": []}, jax.tree.structure({"x": 0, "y": 0}))
    [[None], []]
    """
    try:
        return list(structure.flatten_up_to(setting))
    except (ValueError, TypeError):
        return [setting] * structure.num_leaves


def with_open_sizes(shape: Sequence[int | None]) -> Dimensions:
    """Return the dimensions of a shape in which -1 stands for None."""
    return tuple(None if size == -1 else size for size in shape)


def _padded(column: Sequence[Array], shape: Sequence[int | None] | None, value: Any) -> Array:
    """Return arrays padded to a shape and stacked.

    `shape` may have open sizes, and is None if all sizes are open. `value` fills the padding, None
    is zero.
    """
    shapes = [np.shape(leaf) for leaf in column]
    if len(set(map(len, shapes))) > 1:
        raise _of_shapes(shapes, "give all one number of dimensions")
    full = largest(shapes)
    if shape is not None:
        full = _checked_shape(full, with_open_sizes(shape))
    # The dtype that `np.stack` gives, so that no element is rounded.
    dtypes = {leaf.dtype for leaf in column}
    dtype = np.result_type(*dtypes) if len(dtypes) > 1 else column[0].dtype
    padded = np.zeros((len(column), *full), dtype)
    if value is not None:
        padded[...] = value
        if dtype.kind in "iu" and not np.array_equal(np.asarray(value).astype(dtype), value):
            raise ArgumentError(
                f"elements of dtype {dtype} are padded with {value}, which it cannot hold",
                hint="give padding_values of the elements' dtype, or convert the elements",
            )
    for row, leaf in enumerate(column):
        index: tuple[Any, ...] = (row, *map(slice, shapes[row]))
        padded[index] = leaf
    return padded


def _of_shapes(shapes: Sequence[Any], hint: str) -> ArgumentError:
    """Return the error for elements whose shapes differ, so that they make no batch."""
    listed = ", ".join(sorted(set(map(str, shapes))))
    return ArgumentError(f"elements of one batch differ: their shapes are {listed}", hint=hint)


def _checked_shape(full: tuple[int, ...], wanted: Dimensions) -> tuple[int, ...]:
    """Return the shape to pad to: the wanted sizes, and where they are open the sizes of `full`.

    `full` has the largest sizes of the elements. Raises `ArgumentError` if a wanted size is
    smaller.
    """
    sizes = [largest if size is None else size for largest, size in zip(full, wanted, strict=False)]
    if len(full) != len(wanted) or any(map(operator.lt, sizes, full)):
        raise ArgumentError(
            f"an element of shape {list(full)} is padded to {list(wanted)}, which is smaller",
            hint="give padded_shapes the largest size, or None for the largest of each batch",
        )
    return tuple(sizes)


@dataclass(frozen=True, eq=False)
class Unbatch(UnaryTransformation):
    """The rows of each element, one after the other."""

    def __iter__(self) -> Iterator[Element]:
        for element in self.source:
            if isinstance(element, FailedElement):
                yield element
                continue
            leaves, structure = jax.tree.flatten(element)
            size = attempted(batch_size, Flat(element, leaves, structure))
            yield from [size] if isinstance(size, FailedElement) else each_row(element)

    @property
    def description(self) -> Description:
        """Describe the rows, which are no batches."""
        spec = self.source.description.element_spec
        return Description(spec if spec is UNKNOWN else spec_of_rows(spec))
