"""Elements of a distributed dataset, stacked for several steps in one program.

Elements that follow each other are stacked along a new first dimension if the arrays of all
replicas have one shape. Anything else comes by itself: elements of other shapes, such as the last
batch, and elements that could not be made. So elements stay in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple  # Any: structures of elements, and placed values

import jax
import numpy as np

from graphdist.data.elements import Array
from graphdist.data.failures import FailedElement, attempted

MOST_BYTES = 2**26
"""The most bytes of stacked elements, on all replicas together."""


class ReplicaArrays(NamedTuple):
    """The arrays of an element: for each leaf, one a replica."""

    structure: Any
    parts: list[Sequence[Array]]

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Return a value that elements share which can be stacked; None for one that cannot."""
        shapes = [{(part.shape, part.dtype) for part in parts} for parts in self.parts]
        if any(len(of_replicas) > 1 for of_replicas in shapes):
            return None
        return (self.structure, *(shape for of_replicas in shapes for shape in of_replicas))

    @property
    def bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(part.nbytes for parts in self.parts for part in parts)


@dataclass
class ChunkSize:
    """How many elements the thread that makes chunks stacks; its consumer may change it."""

    size: int = 1


class Chunk(NamedTuple):
    """An element of the dataset, or so many stacked."""

    element: Any
    num_elements: int


def grouped(
    elements: Iterator[Any], arrays_of: Callable[[Any], ReplicaArrays], size: ChunkSize
) -> Iterator[list[ReplicaArrays] | FailedElement]:
    """Yield the elements in groups that can be stacked, of `size` or 1; the first by itself."""
    group: list[ReplicaArrays] = []
    kind = None
    for number, element in enumerate(elements):
        made = attempted(arrays_of, element)
        is_alone = number == 0 or isinstance(made, FailedElement)
        wanted = 1 if is_alone else min(size.size, _most(made))
        is_alike = wanted > 1 and kind is not None and made.kind == kind
        if group and not is_alike:
            yield from ([single] for single in group)
            group = []
        if wanted > 1 and made.kind is not None:
            group.append(made)
            kind = made.kind
            if len(group) >= wanted:
                yield group
                group = []
        else:
            yield made if isinstance(made, FailedElement) else [made]
    yield from ([single] for single in group)


def _most(element: ReplicaArrays) -> int:
    return MOST_BYTES // max(element.bytes, 1)


def placed(group: list[ReplicaArrays] | FailedElement, place: Callable[..., Any]) -> Chunk:
    """Return a group with its arrays on the devices; raises the error of a failed element."""
    if isinstance(group, FailedElement):
        raise group.error
    structure, parts = group[0]
    if len(group) > 1:
        leaves = zip(*(element.parts for element in group), strict=True)
        parts = [[np.stack(part) for part in zip(*leaf, strict=True)] for leaf in leaves]
    values = [place(list(leaf)) for leaf in parts]
    return Chunk(jax.tree.unflatten(structure, values), len(group))
