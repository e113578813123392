"""Steps of a distributed dataset or of an iterator, in chunks that one program runs.

Steps that follow each other are stacked along a new first dimension if the arrays of all replicas
have one shape. A step of another shape, such as the last batch, is a chunk by itself, and so is an
element that could not be made. So steps stay in their order.

Several workers form the same chunks: each proposes the steps that it would stack, and they agree on
the steps, their shapes and the size of the chunk (`graphdist.data.worker_input.Agreement`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar  # Any: elements, placed values

import jax
import numpy as np

from graphdist.data.elements import Array
from graphdist.data.failures import FailedElement
from graphdist.errors import OutOfRangeError
from graphdist.ir.source import Source
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import Shapes

MOST_BYTES = 2**26
"""The most bytes of stacked elements, on all replicas of a worker together."""


@dataclass(frozen=True)
class StepInput:
    """The input of a step: for each leaf of an element, the parts of this worker's replicas."""

    structure: Any
    parts: Sequence[Sequence[Array]]
    shapes_of_all: Sequence[Shapes] = ()
    """For each leaf the shapes on all replicas; empty until several workers have exchanged them."""

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Return a value that is equal for steps that can be stacked; None if this one cannot."""
        shapes = self.shapes_of_all or [tuple(part.shape for part in parts) for parts in self.parts]
        if any(len(set(of_replicas)) > 1 for of_replicas in shapes):
            return None
        dtypes = [parts[0].dtype for parts in self.parts]
        return (self.structure, *dtypes, *(of_replicas[0] for of_replicas in shapes))

    @property
    def bytes(self) -> int:
        """Return the bytes of all arrays."""
        return sum(part.nbytes for parts in self.parts for part in parts)


Step: TypeAlias = StepInput | FailedElement


@dataclass
class ChunkSize:
    """The number of steps that the prefetching thread stacks; its caller may change the number."""

    size: int = 1


class Chunk(NamedTuple):
    """An element of the dataset, or `num_elements` of them stacked."""

    element: Any
    num_elements: int


class Stackable(Protocol):
    """A step that `grouped` may stack, or a `FailedElement`."""

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Return a value that is equal for steps that can be stacked; None if this one cannot."""

    @property
    def bytes(self) -> int:
        """Return the bytes of all arrays."""


AnyStep = TypeVar("AnyStep", bound=Stackable)


def by_one_worker(steps: list[AnyStep], wanted: int) -> tuple[list[AnyStep], int]:
    """Return the steps and the size unchanged: a single worker agrees with nobody."""
    return steps, wanted


def grouped(
    steps: Iterator[AnyStep],
    size: ChunkSize,
    agreed: Callable[[list[AnyStep], int], tuple[list[AnyStep], int]] = by_one_worker,
) -> Iterator[list[AnyStep]]:
    """Yield groups of `size` steps that can be stacked.

    The first step, and steps that cannot be stacked with the next ones, are groups of one.

    `agreed` takes this worker's next steps and the size of the group that this worker wants. It
    returns the next steps of all workers, and the size on which the workers agree.
    """
    ahead: deque[AnyStep] = deque()
    wanted = 1
    while True:
        ahead.extend(islice(steps, max(wanted - len(ahead), 0)))
        common, agreed_size = agreed(list(islice(ahead, wanted)), wanted)
        if not common:
            return
        alike = _num_alike(common)
        groups = [common] if alike >= agreed_size else [[step] for step in common[:alike]]
        for _ in range(min(alike, len(ahead))):  # a worker may have none left
            ahead.popleft()
        del common
        while groups:  # nothing here keeps the arrays of a group that is in use
            yield groups.pop(0)
        if not ahead:
            ahead.extend(islice(steps, 1))
        wanted = min([size.size, *map(_most, islice(ahead, 1))])


def _num_alike(steps: Sequence[Stackable]) -> int:
    """Return how many steps at the beginning can be stacked together; 1 if the first cannot."""
    first = steps[0].kind
    if first is None:
        return 1
    others = (index for index, step in enumerate(steps) if step.kind != first)
    return next(others, len(steps))


def _most(step: Stackable) -> int:
    """Return how many steps like this one have `MOST_BYTES`; 1 if the step cannot be stacked."""
    return 1 if step.kind is None else max(MOST_BYTES // max(step.bytes, 1), 1)


def placed(group: list[Step], place: Callable[..., Any]) -> Chunk:
    """Return a group with its arrays on the devices, to which `place` moves them.

    Raises the error of a failed element.
    """
    first = group[0]
    if isinstance(first, FailedElement):
        raise first.error
    parts, shapes = first.parts, first.shapes_of_all
    if len(group) > 1:
        stacked = zip(*(step.parts for step in group if isinstance(step, StepInput)), strict=True)
        parts = [[np.stack(part) for part in zip(*leaf, strict=True)] for leaf in stacked]
        shapes = [tuple((len(group), *shape) for shape in of_leaf) for of_leaf in shapes]
    leaves = zip(parts, shapes, strict=True) if shapes else zip(parts, strict=True)
    values = [place(list(leaf), *shapes_of_leaf) for leaf, *shapes_of_leaf in leaves]
    return Chunk(jax.tree.unflatten(first.structure, values), len(group))


@dataclass(frozen=True)
class TakenElements:
    """The first `most` elements of a dataset or an iterator; None means all.

    With `requires_all`, fewer elements than `most` are an error.
    """

    elements: Any
    """A distributed dataset, its iterator or `ZippedDatasets`: what has a method `chunks`."""
    most: int | None
    requires_all: bool = False

    def __iter__(self) -> Iterator[Any]:
        return islice(self.elements, self.most)

    def chunks(self, size: ChunkSize) -> Iterator[Chunk]:
        """Yield the elements, stacked to chunks.

        Raises `OutOfRangeError` if `requires_all` is set and there are fewer elements.
        """
        taken = 0
        chunks = self.elements.chunks(size, self.most)
        try:
            for chunk in chunks:
                taken += chunk.num_elements
                yield chunk
        finally:
            close(chunks)
        if self.requires_all and taken != self.most:
            raise past_the_end(here())


def close(elements: Iterator[Any]) -> None:
    """Close a generator, which puts back the elements that it took; ignore other iterators."""
    if (end := getattr(elements, "close", None)) is not None:
        end()


def past_the_end(source: Source) -> OutOfRangeError:
    """Return the error for an element after the last."""
    return OutOfRangeError(
        "next past the end: the dataset has no more elements",
        source=source,
        hint="loop with `for batch in dataset`, or ask get_next_as_optional()",
    )
