"""Some of the elements of a dataset or of an iterator, in chunks for loops of functions.

The elements of an iterator are on the devices already: a program stacks them there. An iterator
goes on where the loop has ended. So elements that were taken ahead, to find out whether they can be
stacked, are put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol  # Any: elements

import jax
import jax.numpy as jnp

from graphdist.data.chunks import Chunk, ChunkSize, grouped
from graphdist.data.failures import FailedElement
from graphdist.errors import OutOfRangeError
from graphdist.ir.source import Source
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import PerReplicaArray

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


class Chunked(Protocol):
    """A dataset or an iterator whose elements come in chunks."""

    def __iter__(self) -> Iterator[Any]: ...

    def chunks(self, size: ChunkSize, most: int | None = None) -> Iterator[Chunk]:
        """Return the elements, `most` of them at most, stacked to chunks."""


@dataclass(frozen=True)
class TakenElements:
    """The first `most` elements, None for all; if it `requires_all`, there have to be as many."""

    elements: Chunked
    most: int | None
    requires_all: bool = False

    def __iter__(self) -> Iterator[Any]:
        return islice(self.elements, self.most)

    def chunks(self, size: ChunkSize) -> Iterator[Chunk]:
        """Yield the elements, stacked to chunks; raises `OutOfRangeError` if some are missing."""
        taken = 0
        found = self.elements.chunks(size, self.most)
        try:
            for chunk in found:
                taken += chunk.num_elements
                yield chunk
        finally:
            close(found)
        if self.requires_all and taken != self.most:
            raise past_the_end(here())


class AskedAhead(Protocol):
    """An iterator whose elements can be put back."""

    def take_ahead(self) -> Any:
        """Return the next element, which does not count as taken before `count` says so."""

    def count(self, number: int) -> None:
        """Count elements that `take_ahead` returned."""

    def put_back(self, elements: Any) -> None:
        """Let elements come next, in order."""


@dataclass(frozen=True, eq=False)
class _PlacedStep:
    """An element on the devices, as a step that can be stacked."""

    element: Any

    @property
    def kind(self) -> tuple[Any, ...] | None:
        leaves, structure = jax.tree.flatten(self.element)
        if any(isinstance(leaf, PerReplicaArray) and leaf.shapes is not None for leaf in leaves):
            return None
        arrays = map(_array_of, leaves)
        return (structure, *((array.shape, array.dtype) for array in arrays))

    @property
    def bytes(self) -> int:
        return sum(_array_of(leaf).nbytes for leaf in jax.tree.leaves(self.element))


def stacked_chunks(
    iterator: AskedAhead, strategy: StrategyBase, size: ChunkSize, most: int | None
) -> Iterator[Chunk]:
    """Yield the next elements of an iterator, stacked on the devices."""
    taken: deque[_PlacedStep | FailedElement] = deque()

    def steps() -> Iterator[_PlacedStep | FailedElement]:
        for _ in count() if most is None else range(most):
            try:
                element = iterator.take_ahead()
            except StopIteration:
                return
            except Exception as error:  # raised when the elements before it have been used
                element = FailedElement(error)
            taken.append(element if isinstance(element, FailedElement) else _PlacedStep(element))
            yield taken[-1]

    stack = strategy.implicit_call("stacked elements", _stacked, _run_on_each(strategy))
    try:
        for group in grouped(steps(), size):
            for _ in group:
                taken.popleft()
            elements = [step.element for step in group if isinstance(step, _PlacedStep)]
            if not elements:
                (failed,) = group
                assert isinstance(failed, FailedElement)
                raise failed.error
            iterator.count(len(group))
            yield Chunk(elements[0] if len(group) == 1 else stack(elements, {}), len(group))
    finally:
        iterator.put_back(step.element for step in taken if isinstance(step, _PlacedStep))


def _run_on_each(strategy: StrategyBase) -> Any:
    return lambda fn, args, kwargs: strategy.run(fn, args=args)


def _stacked(*elements: Any) -> Any:
    return jax.tree.map(lambda *parts: jnp.stack(parts), *elements)


def _array_of(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, PerReplicaArray) else leaf


def close(elements: Iterator[Any]) -> None:
    """Close a generator, so that it puts back what it took; others have nothing to put back."""
    if (end := getattr(elements, "close", None)) is not None:
        end()


def past_the_end(source: Source) -> OutOfRangeError:
    """Return the error for an element after the last."""
    return OutOfRangeError(
        "next past the end: the dataset has no more elements",
        source=source,
        hint="loop with `for batch in dataset`, or ask get_next_as_optional()",
    )
