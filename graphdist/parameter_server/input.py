"""The input of workers: per-worker datasets and iterators, and their elements in steps.

The coordinator has objects that stand for per-worker values. A worker makes its own value when a
function first needs the value, and again after a restart.

A function with an iterator requests elements while the function is traced. The elements are then
arguments of the compiled step. The number of elements depends on everything that is traced: shapes,
static arguments, the elements themselves. So a call takes the largest number of elements that any
call has requested. The step returns its result and the number of elements that it used, and unused
elements are put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NoReturn  # Any: users' datasets, elements and functions

import jax

from graphdist.errors import ArgumentError, OutOfRangeError, UnsupportedError
from graphdist.program.function import Function
from graphdist.program.stages import Traced
from graphdist.program.step_functions import DEFAULT_OPTIONS


class DatasetOfWorkers:
    """A distributed dataset that each worker makes; the coordinator never has its elements."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        """Keep the function that makes the dataset from a worker's strategy."""
        self.make = make

    def __iter__(self) -> NoReturn:
        raise ArgumentError(
            "a distributed dataset of a ParameterServerStrategy is iterated by its coordinator",
            hint="give it to the workers: coordinator.create_per_worker_dataset(dataset)",
        )


class WorkerIterator:
    """An iterator over a worker's dataset."""

    def __init__(self, dataset: Any) -> None:
        """Begin at the first element."""
        self._elements = iter(dataset)
        self._returned: deque[Any] = deque()

    def __next__(self) -> Any:
        return self._returned.popleft() if self._returned else next(self._elements)

    def __iter__(self) -> WorkerIterator:
        return self

    def take(self) -> Any:
        """Return the next element; raise `OutOfRangeError` after the last."""
        for element in self:
            return element
        raise OutOfRangeError(
            "next past the end: the worker's dataset has no more elements",
            hint="repeat the dataset, or schedule as many functions as it has elements",
        )

    def put_back(self, elements: Sequence[Any]) -> None:
        """Put back elements that were taken but not used: `next` returns them again, in order."""
        self._returned.extendleft(reversed(elements))


def made_value(value: Any, strategy: Any) -> Any:
    """Return a per-worker value: `value`, or the result of the call if `value` is a function."""
    made = value() if callable(value) else value
    return made.make(strategy) if isinstance(made, DatasetOfWorkers) else made


class PerWorkerValues:
    """One value per worker; a scheduled function receives the value of its worker."""

    number: int
    """The id by which workers know the value."""


class PerWorkerIterator(PerWorkerValues):
    """An iterator over each worker's dataset."""

    def __init__(self, dataset: PerWorkerDataset) -> None:
        """Keep the dataset alive."""
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        """Return the specs of an element."""
        return self._dataset.element_spec

    def here(self) -> WorkerIterator:
        """Return an iterator over the dataset, which this process makes."""
        return WorkerIterator(self._dataset.make())

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> NoReturn:
        raise UnsupportedError(
            "an iterator of workers is asked for an element by the coordinator",
            hint="ask it in a function: coordinator.schedule(step, args=(iterator,))",
        )

    get_next = __next__


class PerWorkerDataset(PerWorkerValues):
    """A dataset that each worker makes."""

    def __init__(
        self, make: Callable[[], Any], iterator: Callable[[PerWorkerDataset], PerWorkerIterator]
    ) -> None:
        """Keep functions that make the dataset in this process, and an iterator over a dataset."""
        self.make, self._iterator = make, iterator

    @property
    def element_spec(self) -> Any:
        """Return the specs of an element."""
        return self.make().element_spec

    def __iter__(self) -> PerWorkerIterator:
        return self._iterator(self)


@dataclass(frozen=True)
class _Place:
    """A placeholder for an iterator among a step's arguments."""

    number: int


@dataclass(eq=False)
class _NeedsMore(BaseException):
    """A trace requests more elements of the iterator with an index than the call has taken.

    The class is no `Exception`, so that the user's handlers do not catch it.
    """

    number: int


class ElementsInTrace:
    """The object that a traced function receives in place of an iterator."""

    def __init__(self, number: int, elements: list[Any]) -> None:
        """Keep the iterator's index, and the available elements."""
        self._number, self._elements = number, deque(elements)
        self.num_used = 0

    def __next__(self) -> Any:
        if not self._elements:
            raise _NeedsMore(self._number)
        self.num_used += 1
        return self._elements.popleft()

    get_next = __next__

    def __iter__(self) -> NoReturn:
        raise UnsupportedError(
            "a worker's iterator is looped over inside a function, where its length is not known",
            hint="take one element with next(iterator), and schedule the function for each",
        )

    get_next_as_optional = __iter__


class FunctionOfElements:
    """A function as workers run it: elements of its iterators are arguments of the step."""

    def __init__(self, function: Any) -> None:
        """Keep the user's function."""
        self._function = function
        options = function.options if isinstance(function, Function) else DEFAULT_OPTIONS
        self._with_elements = Function(self._filled, (), options)
        self._most: dict[int, list[int]] = {}
        """The largest number of elements requested of each iterator, by the number of iterators."""

    def __call__(self, args: Any, kwargs: Any) -> Any:
        """Run the function with a closure's arguments, and put unused elements back."""
        iterators, args, kwargs = _without_iterators(args, kwargs)
        if not iterators:
            return self._function(*args, **kwargs)
        (result, used), taken = self._with_enough(self._with_elements, iterators, args, kwargs)
        for iterator, elements, num_used in zip(iterators, taken, used, strict=True):
            iterator.put_back(elements[num_used:])
        return result

    def trace(self, args: Any, kwargs: Any) -> Traced:
        """Trace the function for a closure's arguments."""
        iterators, args, kwargs = _without_iterators(args, kwargs)
        if not iterators:
            return self._function.trace(*args, **kwargs)
        return self._with_enough(self._with_elements.trace, iterators, args, kwargs)[0]

    def _with_enough(
        self, call: Callable[..., Any], iterators: Sequence[WorkerIterator], args: Any, kwargs: Any
    ) -> tuple[Any, list[list[Any]]]:
        """Call a function with enough elements; return its result and the elements."""
        most = self._most.setdefault(len(iterators), [0] * len(iterators))
        taken = [list(elements) for elements in map(islice, iterators, most)]
        while True:
            try:
                return call(taken, args, kwargs), taken
            except _NeedsMore as more:
                taken[more.number].append(iterators[more.number].take())
                most[more.number] = max(most[more.number], len(taken[more.number]))
            except Exception:  # an error of the user's function, which has used its elements
                raise
            except BaseException:  # nothing has run, such as for `VariablesApart`
                for iterator, elements in zip(iterators, taken, strict=True):
                    iterator.put_back(elements)
                raise

    def _filled(self, taken: Any, args: Any, kwargs: Any) -> Any:
        """Trace the user's function; return its result and the number of elements it uses."""
        given = [ElementsInTrace(number, elements) for number, elements in enumerate(taken)]
        args, kwargs = jax.tree.map(
            lambda leaf: given[leaf.number] if isinstance(leaf, _Place) else leaf, (args, kwargs)
        )
        result = self._function(*args, **kwargs)
        return result, [elements.num_used for elements in given]


def _without_iterators(args: Any, kwargs: Any) -> tuple[list[WorkerIterator], Any, Any]:
    """Return the iterators among arguments, and the arguments with placeholders for them."""
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=_is_iterator)
    iterators = [leaf for leaf in leaves if _is_iterator(leaf)]
    places = map(_Place, count())
    leaves = [next(places) if _is_iterator(leaf) else leaf for leaf in leaves]
    return iterators, *jax.tree.unflatten(structure, leaves)


def _is_iterator(leaf: Any) -> bool:
    return isinstance(leaf, WorkerIterator)
