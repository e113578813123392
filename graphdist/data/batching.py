"""Transformations of datasets that put elements together, or take them apart again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any  # Any: pytrees of specs and shapes

import jax
import numpy as np

from graphdist.data.elements import UNKNOWN, Array, Element
from graphdist.data.sources import UNKNOWN_CARDINALITY, Batching
from graphdist.data.transformations import OfOne
from graphdist.errors import ArgumentError
from graphdist.specs import ArraySpec, Dimensions
from graphdist.values import largest


@dataclass(frozen=True, eq=False)
class Batch(OfOne):
    """Elements stacked, `size` at a time."""

    size: int
    drop_remainder: bool

    def __iter__(self) -> Iterator[Element]:
        if self.source.rows(0, 0) is not UNKNOWN:
            return self._of_rows()
        return map(self.stacked, self._groups())

    def _of_rows(self) -> Iterator[Element]:
        rows = self.source.cardinality
        for start in range(0, self.cardinality * self.size, self.size):
            yield self.source.rows(start, min(start + self.size, rows))

    def _groups(self) -> Iterator[list[Element]]:
        elements = iter(self.source)
        while group := list(islice(elements, self.size)):
            if len(group) == self.size or not self.drop_remainder:
                yield group

    def stacked(self, group: list[Element]) -> Element:
        """Return elements as one batch; raises `ArgumentError` when their shapes differ."""
        try:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *group)
        except ValueError as error:
            shapes = sorted({str(jax.tree.map(np.shape, element)) for element in group})
            raise ArgumentError(
                f"elements of one batch differ: their shapes are {' and '.join(shapes)}",
                hint="give all one structure and shape, or use padded_batch",
            ) from error

    @property
    def element_spec(self) -> Any:
        """Return the specs with a batch dimension, open where the last batch may be smaller."""
        spec = self.source.element_spec
        if spec is UNKNOWN:
            return UNKNOWN
        size = self.size if self.drop_remainder else None
        return jax.tree.map(lambda leaf: ArraySpec((size, *leaf.shape), leaf.dtype), spec)

    @property
    def cardinality(self) -> int:
        """Return the number of batches."""
        cardinality = self.source.cardinality
        if cardinality < 0:
            return cardinality
        whole, rest = divmod(cardinality, self.size)
        return whole + (rest > 0 and not self.drop_remainder)

    @property
    def batching(self) -> Batching | None:
        """Return the size."""
        return Batching(self.size, self.drop_remainder)


@dataclass(frozen=True, eq=False)
class PaddedBatch(Batch):
    """Elements of different shapes padded to the largest and stacked, `size` at a time.

    `shapes` has for each leaf the shape to pad to, None in it is the largest of the batch; None for
    all leaves. `values` is what to pad with, one for each leaf, or one for all.
    """

    shapes: Any
    values: Any

    def __iter__(self) -> Iterator[Element]:
        return map(self.stacked, self._groups())

    def stacked(self, group: list[Element]) -> Element:
        """Return elements as one batch; raises `ArgumentError` for one larger than declared."""
        structure = jax.tree.structure(group[0])
        columns = zip(*map(jax.tree.leaves, group), strict=True)
        shapes = self._of_leaves(self.shapes, structure)
        values = self._of_leaves(self.values, structure)
        padded = [
            _padded(list(column), shape, value)
            for column, shape, value in zip(columns, shapes, values, strict=True)
        ]
        return jax.tree.unflatten(structure, padded)

    @staticmethod
    def _of_leaves(given: Any, structure: Any) -> list[Any]:
        """Return what is given for each leaf of an element; what stands alone is for all."""
        if isinstance(given, _OfEach):
            return given.items
        return [given] * structure.num_leaves

    @property
    def element_spec(self) -> Any:
        """Return the specs with a batch dimension; what is padded to the largest is open."""
        spec = super().element_spec
        if spec is UNKNOWN:
            return UNKNOWN
        leaves, structure = jax.tree.flatten(spec)
        shapes = self._of_leaves(self.shapes, structure)
        return jax.tree.unflatten(
            structure,
            [
                ArraySpec((leaf.shape[0], *(shape or leaf.shape[1:])), leaf.dtype)
                for leaf, shape in zip(leaves, shapes, strict=True)
            ],
        )
