"""Iterators over datasets, with the methods of tf.data's."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import (  # Any: elements, and pytrees of specs
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    Protocol,
    Self,
    cast,
)

import jax
import jax.numpy as jnp

from graphdist.context import in_replica_context_of_a_run
from graphdist.data.chunks import Chunk, ChunkSize, grouped
from graphdist.data.elements import Element
from graphdist.data.failures import FailedElement, caught, element_or_raise
from graphdist.data.positions import Position
from graphdist.data.prefetch import Prefetched
from graphdist.errors import ArgumentError, OutOfRangeError, UnsupportedError
from graphdist.tracing.jax_settings import is_jax_tracing
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.copying import refuse_to_pickle
from graphdist.values.distributed import PerReplicaArray
from graphdist.values.type_variables import Element_co

if TYPE_CHECKING:
    from graphdist.data.dataset import Dataset
    from graphdist.runtime.processes.cluster_workers import ClusterWorkers
    from graphdist.strategy_base import StrategyBase

_NOTHING = object()
"""Stands for an element past the last."""


class DatasetInTrace(UnsupportedError):
    """A traced function uses a distributed dataset; the host can run the function instead."""

    is_loop = True
    """Whether the function iterates the dataset. If false, the function reduces the dataset."""


class ElementIterator(ABC, Generic[Element_co]):
    """The base of iterators over datasets."""

    def __init__(self, position: Position) -> None:
        """Start at a position."""
        self._position = position

    def __iter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at element {self._position.taken}>"

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(
            "an iterator over a dataset, which prepares elements on a thread of this process,",
            "save its get_state(), and call set_state(state) of an iterator over an equal dataset",
        )

    def get_state(self) -> Any:
        """Return the iterator's position, as a value that JSON can hold."""
        return self._position.state

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Go on at a position that `get_state` returned, in a dataset made the same way.

        Elements prepared ahead are dropped. Raises `ArgumentError` for a position of another kind
        of dataset.
        """

    @abstractmethod
    def __next__(self) -> Element_co: ...

    def get_next(self) -> Element_co:
        """Return the next element; raises `OutOfRangeError` past the last."""
        for element in self:
            return element
        raise OutOfRangeError(
            "get_next past the end: the dataset has no more elements",
            hint="loop with `for element in dataset`, or ask get_next_as_optional()",
        )

    def get_next_as_optional(self) -> OptionalElement[Element_co]:
        """Return the next element, or an `OptionalElement` without a value past the last."""
        return OptionalElement(next(self, _NOTHING))


class OptionalElement(Generic[Element_co]):
    """An element of a dataset, or no element.

    >>> OptionalElement().has_value()
    False
    """

    def __init__(self, value: Any = _NOTHING) -> None:
        """Hold an element; without an argument, hold none."""
        self._value = value

    def has_value(self) -> bool:
        """Return whether there is an element."""
        return self._value is not _NOTHING

    def get_value(self) -> Element_co:
        """Return the element; raises `ArgumentError` when there is none."""
        if self._value is _NOTHING:
            raise ArgumentError(
                "get_value of an optional without a value: the dataset is at its end",
                hint="ask has_value() first",
            )
        return cast("Element_co", self._value)


class DatasetIterator(ElementIterator[Element]):
    """The elements of a `Dataset` in order.

    An exception of a source or of a function is raised by the `next` that would have returned the
    element. The `next` after it returns the next element. The position counts failed elements, too.
    """

    def __init__(self, dataset: Dataset) -> None:
        """Iterate a dataset from the first element on."""
        super().__init__(Position.at_start([dataset.node]))
        self._dataset = dataset
        self._elements = iter(self._position.datasets[0])

    def __next__(self) -> Element:
        element = next(self._elements)
        self._position.taken += 1
        return element_or_raise(element)

    def set_state(self, state: Any) -> None:
        """Go on at a position that `get_state` returned, in a dataset made the same way."""
        self._position = Position.of_state(state, [self._dataset.node])
        self._elements = self._position.datasets[0].elements_from(self._position.taken)

    @property
    def element_spec(self) -> Any:
        """Return the dataset's specs, for which elements may have to be made."""
        return self._dataset.element_spec


class ResumableDataset(Protocol):
    """The part of a distributed dataset that its iterators use.

    A protocol, since the module of distributed datasets imports this one.
    """

    @property
    def element_spec(self) -> Any:
        """Return the specs of an element."""

    @property
    def has_spec(self) -> bool:
        """Return whether `element_spec` is known without reading the first element."""

    @property
    def strategy(self) -> StrategyBase:
        """Return the strategy on whose devices the elements are."""

    @property
    def workers(self) -> ClusterWorkers | None:
        """Return the workers that divide the elements; None if there is one process."""

    def resumed(self, state: Any, elements: Prefetched) -> tuple[Prefetched, Position]:
        """Return the elements from a saved position on, and the position; drop `elements`."""


@dataclass(frozen=True, eq=False)
class _PlacedStep:
    """A step of a loop over an iterator, whose element is on the devices already."""

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


def _array_of(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, PerReplicaArray) else leaf


def _stacked(*elements: Any) -> Any:
    return jax.tree.map(lambda *parts: jnp.stack(parts), *elements)


class DistributedIterator(ElementIterator[Element_co]):
    """The elements of a distributed dataset in order, prepared ahead on a background thread.

    For use outside traces: the host runs functions that read elements of an iterator. An exception
    of the source is raised by the call that would have returned the element, with the traceback
    into the source. The next call returns the next element, if the source has one. The position
    counts failed elements, too. Any thread may call the methods.
    """

    def __init__(self, dataset: ResumableDataset, elements: Prefetched, position: Position) -> None:
        """Iterate the prepared elements of a dataset from a position on."""
        super().__init__(position)
        self._dataset = dataset
        self._elements = elements
        self._seen_ahead: list[Element] = []  # by element_spec

    def __next__(self) -> Element_co:
        refuse_inside_a_function("an iterator of a distributed dataset is asked for an element")
        if notice := getattr(_of_thread, "notice", None):
            notice(self)
        element = self.take_ahead()
        self._position.taken += 1
        return cast("Element_co", element)

    @property
    def can_be_stacked(self) -> bool:
        """Return whether there are `chunks`.

        There are none with several workers, which agree on each step.
        """
        return self._dataset.workers is None

    def chunks(self, size: ChunkSize, most: int | None = None) -> Iterator[Chunk]:
        """Yield the next elements, `most` of them at most, stacked on the devices by a program.

        Close the generator, which puts back the elements that it took and did not yield.
        """
        taken: deque[_PlacedStep | FailedElement] = deque()

        def steps() -> Iterator[_PlacedStep | FailedElement]:
            # An error is caught here, and raised when the elements before it have been used.
            elements = caught(lambda: iter(self.take_ahead, _NOTHING))
            for element in islice(elements, most):
                is_failed = isinstance(element, FailedElement)
                taken.append(element if is_failed else _PlacedStep(element))
                yield taken[-1]

        strategy = self._dataset.strategy
        stack = strategy.implicit.of_function(
            "stacked elements", _stacked, lambda fn, args, kwargs: strategy.run(fn, args=args)
        )
        try:
            for group in grouped(steps(), size):
                for _ in group:
                    taken.popleft()
                elements = [element_or_raise(step).element for step in group]
                self.count(len(group))
                yield Chunk(elements[0] if len(group) == 1 else stack(elements, {}), len(group))
        finally:
            self.put_back(step.element for step in taken if isinstance(step, _PlacedStep))

    def take_ahead(self) -> Element:
        """Return the next element without counting it; `count` counts elements as taken."""
        return self._seen_ahead.pop() if self._seen_ahead else self._next()

    def count(self, number: int) -> None:
        """Count elements that `take_ahead` returned as taken; a negative number uncounts them."""
        self._position.taken += number

    def put_back(self, elements: Iterable[Element]) -> None:
        """Put elements that `take_ahead` returned back in front of the next one, in order.

        The elements must not be counted as taken.
        """
        self._seen_ahead.extend(reversed(list(elements)))

    def _next(self) -> Element:
        """Return the next element; count it as taken only if it fails."""
        try:
            return next(self._elements).element
        except StopIteration:
            raise
        except Exception:
            self._position.taken += 1
            raise

    def set_state(self, state: Any) -> None:
        """Go on at a position that `get_state` returned, in a dataset made the same way."""
        refuse_inside_a_function("an iterator of a distributed dataset is set to a position")
        self._elements, self._position = self._dataset.resumed(state, self._elements)
        self._seen_ahead.clear()

    @property
    def element_spec(self) -> Any:
        """Return the dataset's specs; wait for the first element if it is needed for them."""
        if not self._dataset.has_spec and not self._seen_ahead:
            self._seen_ahead.extend(islice(iter(self._next, _NOTHING), 1))
        return self._dataset.element_spec


Notice = Callable[["DistributedIterator[Any]"], None]
"""A function that is called with an iterator when an element of the iterator is read."""


_of_thread = threading.local()
"""Has the attribute `notice` while the thread is in a block `with noticed(..)`."""


@contextmanager
def noticed(notice: Notice) -> Iterator[None]:
    """Call `notice` whenever this thread reads an element of a distributed iterator.

    Inside of another such block, the `notice` of the outer block is called instead.
    """
    outer: Notice | None = getattr(_of_thread, "notice", None)
    _of_thread.notice = outer or notice
    try:
        yield
    finally:
        _of_thread.notice = outer


def refuse_inside_a_function(what: str, *, is_loop: bool = True) -> None:
    """Raise an error if a function is being traced.

    Raises `DatasetInTrace` in a `gd.function`, and `ArgumentError` in a replica function or if only
    JAX traces, such as in `jax.jit`.
    """
    if current_trace() is None:
        if is_jax_tracing():
            raise ArgumentError(
                f"{what} inside a function that JAX is tracing, which is traced once for all steps",
                hint="take the element outside of it; loop with `for batch in dataset`, or give "
                "jax.lax.scan the elements",
            )
        return
    if in_replica_context_of_a_run():
        raise ArgumentError(
            f"{what} inside a replica function",
            hint="take the element outside: strategy.run(fn, args=(next(iterator),))",
        )
    met = DatasetInTrace(
        f"{what} inside a function, which is traced once for all elements",
        hint="loop outside: for batch in dataset: step(batch)",
    )
    met.is_loop = is_loop
    raise met
