"""Steps of a distributed dataset, grouped to chunks that one program runs.

Steps that follow each other are stacked along a new first dimension if the arrays of all replicas
have one shape. Anything else comes by itself: steps of other shapes, such as the last batch, and
elements that could not be made. So steps stay in their order.

Several workers form the same chunks: each says what it would stack, and they agree on the steps,
their shapes and the size of the chunk (`graphdist.data.worker_input.Agreement`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import (  # Any: structures of elements, and placed values
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

import jax
import numpy as np

from graphdist.data.elements import Array
from graphdist.data.failures import FailedElement
from graphdist.values.distributed import Shapes

MOST_BYTES = 2**26
"""The most bytes of stacked elements, on all replicas of a worker together."""


@dataclass(frozen=True)
class StepInput:
    """The input of a step: for each leaf of an element, the parts of this worker's replicas."""

    structure: Any
    parts: Sequence[Sequence[Array]]
    shapes_of_all: Sequence[Shapes] = ()
    """For each leaf the shapes on all replicas, once several workers have exchanged them."""

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Return a value that steps share which can be stacked; None for one that cannot."""
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
    """How many steps the thread that makes chunks stacks; its consumer may change it."""

    size: int = 1


class Chunk(NamedTuple):
    """An element of the dataset, or so many stacked."""

    element: Any
    num_elements: int


class Stackable(Protocol):
    """What `grouped` asks of a step."""

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """Return a value that steps share which can be stacked; None for one that cannot."""

    @property
    def bytes(self) -> int:
        """Return the bytes of all arrays."""


AnyStep = TypeVar("AnyStep", bound=Stackable | FailedElement)


def by_one_worker(steps: list[AnyStep], wanted: int) -> tuple[list[AnyStep], int]:
    """Return what the workers agree on if there is one worker: its next steps, and their number."""
    return steps, wanted


def grouped(
    steps: Iterator[AnyStep],
    size: ChunkSize,
    agreed: Callable[[list[AnyStep], int], tuple[list[AnyStep], int]] = by_one_worker,
) -> Iterator[list[AnyStep]]:
    """Yield the steps in groups that can be stacked, of `size` or 1; the first by itself.

    `agreed` is given this worker's next steps and the size that it wants. It returns the next steps
    of all workers, and their size.
    """
    ahead: deque[AnyStep] = deque()
    wanted = 1
    while True:
        ahead.extend(islice(steps, max(wanted - len(ahead), 0)))
        common, agreed_size = agreed(list(islice(ahead, wanted)), wanted)
        if not common:
            return
        alike = _num_alike(common)
        is_group = alike >= agreed_size
        yield from [common] if is_group else ([step] for step in common[:alike])
        for _ in range(min(alike, len(ahead))):  # a worker may have none left
            ahead.popleft()
        if not ahead:
            ahead.extend(islice(steps, 1))
        wanted = min([size.size, *map(_most, islice(ahead, 1))])


def _num_alike(steps: Sequence[Stackable | FailedElement]) -> int:
    """Return how many of the first steps can be stacked; 1 if the first cannot."""
    first = _kind(steps[0])
    if first is None:
        return 1
    others = (place for place, step in enumerate(steps) if _kind(step) != first)
    return next(others, len(steps))


def _kind(step: Stackable | FailedElement) -> tuple[Any, ...] | None:
    return None if isinstance(step, FailedElement) else step.kind


def _most(step: Stackable | FailedElement) -> int:
    if isinstance(step, FailedElement):
        return 1
    return max(MOST_BYTES // max(step.bytes, 1), 1)


def placed(group: list[Step], place: Callable[..., Any]) -> Chunk:
    """Return a group with its arrays on the devices; raises the error of a failed element."""
    first = group[0]
    if isinstance(first, FailedElement):
        raise first.error
    parts, shapes = first.parts, first.shapes_of_all
    if len(group) > 1:
        leaves = zip(*(step.parts for step in group if isinstance(step, StepInput)), strict=True)
        parts = [[np.stack(part) for part in zip(*leaf, strict=True)] for leaf in leaves]
        shapes = [tuple((len(group), *shape) for shape in of_leaf) for of_leaf in shapes]
    given = zip(parts, shapes, strict=True) if shapes else zip(parts, strict=True)
    values = [place(list(leaf), *shapes_of_leaf) for leaf, *shapes_of_leaf in given]
    return Chunk(jax.tree.unflatten(first.structure, values), len(group))
