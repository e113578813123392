"""Input of workers: datasets and iterators that each worker makes, and their elements in steps.

A function that takes an iterator asks it for elements while it is traced. The elements are then
arguments of the compiled step: each call takes as many from the worker's iterator as the trace
asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn  # Any: users' datasets, elements and functions

import jax

from graphdist.errors import ArgumentError, OutOfRangeError, UnsupportedError
from graphdist.program.function import Function
from graphdist.program.stages import Traced
from graphdist.tracing.user_lines import here

_NOTHING = object()


class DatasetOfWorkers:
    """A distributed dataset that each worker makes; the coordinator has none of its elements."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        """Take the function that makes it of a worker's strategy."""
        self.make = make

    def __iter__(self) -> NoReturn:
        raise ArgumentError(
            "a distributed dataset of a ParameterServerStrategy is iterated by its coordinator",
            source=here(),
            hint="give it to the workers: coordinator.create_per_worker_dataset(dataset)",
        )


class WorkerIterator:
    """An iterator over a worker's dataset."""

    def __init__(self, dataset: Any) -> None:
        """Begin at the first element."""
        self._elements = iter(dataset)

    def __next__(self) -> Any:
        return next(self._elements)

    def __iter__(self) -> WorkerIterator:
        return self

    def take(self) -> Any:
        """Return the next element; raises `OutOfRangeError` past the last."""
        element = next(self._elements, _NOTHING)
        if element is _NOTHING:
            raise OutOfRangeError(
                "next past the end: the worker's dataset has no more elements",
                source=here(),
                hint="repeat the dataset, or schedule as many functions as it has elements",
            )
        return element


@dataclass(frozen=True)
class _Place:
    """Stands for an iterator among a step's arguments."""

    number: int


class _NeedsMore(BaseException):
    """A trace asks an iterator for one element more than it was given.

    Not an `Exception`: the user's own handlers are not meant.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ElementsInTrace:
    """What a traced function gets in place of an iterator."""

    def __init__(self, number: int, elements: list[Any]) -> None:
        """Take the iterator's number, and the elements that are there."""
        self._number, self._elements = number, deque(elements)

    def __next__(self) -> Any:
        if not self._elements:
            raise _NeedsMore(self._number)
        return self._elements.popleft()

    get_next = __next__

    def __iter__(self) -> NoReturn:
        raise UnsupportedError(
            "a worker's iterator is looped over inside a function: how often is not known there",
            source=here(),
            hint="take one element with next(iterator), and schedule the function for each",
        )

    get_next_as_optional = __iter__


class FunctionOfElements:
    """A function as a worker runs it: elements of its iterators are arguments of the step."""

    def __init__(self, function: Any) -> None:
        """Take the user's function."""
        self._function = function
        options = function.options if isinstance(function, Function) else ()
        self._with_elements = Function(self._filled, (), *options)
        self._counts: dict[tuple[Any, ...], list[int]] = {}

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Run the function with a closure's arguments."""
        return self._on_elements(self._function, self._with_elements, args, kwargs)

    def trace(self, args: Any, kwargs: Any) -> Traced:
        """Trace the function for a closure's arguments."""
        found: Traced = self._on_elements(
            self._function.trace, self._with_elements.trace, args, kwargs
        )
        return found

    def _on_elements(
        self, plain: Callable[..., Any], run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Call `plain` with arguments that have no iterators, else `run` with their elements."""
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_iterator)
        iterators = [leaf for leaf in leaves if _is_iterator(leaf)]
        if not iterators:
            return plain(*args, **kwargs)
        number = iter(range(len(iterators)))
        leaves = [_Place(next(number)) if _is_iterator(leaf) else leaf for leaf in leaves]
        args, kwargs = jax.tree.unflatten(structure, leaves)
        # How many elements a trace asks for is known after the first, which asks for one by one.
        counts = self._counts.setdefault(tuple(map(id, iterators)), [0] * len(iterators))
        taken: list[list[Any]] = [[] for _ in iterators]
        while True:
            for iterator, elements, needed in zip(iterators, taken, counts, strict=True):
                elements += [iterator.take() for _ in range(needed - len(elements))]
            try:
                return run(taken, args, kwargs)
            except _NeedsMore as more:
                counts[more.number] += 1

    def _filled(self, taken: Any, args: Any, kwargs: Any) -> Any:
        """Call the user's function; it is traced, with the elements as its input."""
        given = [ElementsInTrace(number, elements) for number, elements in enumerate(taken)]
        args, kwargs = jax.tree.map(
            lambda leaf: given[leaf.number] if isinstance(leaf, _Place) else leaf, (args, kwargs)
        )
        return self._function(*args, **kwargs)


def _is_iterator(leaf: Any) -> bool:
    return isinstance(leaf, WorkerIterator)
