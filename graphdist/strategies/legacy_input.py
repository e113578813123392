"""Iterators as TF1 has them.

An iterator is an object with `initialize` and `get_next`. It needs no initialization before its
first element, and starts again when it is initialized again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any  # Any: users' pytrees and functions

import jax

from graphdist.data.dataset import Dataset
from graphdist.data.input_options import InputContext
from graphdist.errors import ArgumentError, OutOfRangeError
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.components import per_replica_of
from graphdist.values.distributed import type_name


class DatasetIterator:
    """An iterator over a distributed dataset; TensorFlow's class has this name too."""

    def __init__(self, dataset: Any) -> None:
        """Start at the first element."""
        self._dataset = dataset
        self._iterator: Any = None

    @property
    def element_spec(self) -> Any:
        """Return the shapes and dtypes of an element."""
        return self._dataset.element_spec

    def initialize(self) -> None:
        """Go back to the first element."""
        self._iterator = None

    def get_next(self) -> Any:
        """Return the next element; raises what `DistributedIterator.get_next` raises at the end."""
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return self._iterator.get_next()


class InputFunctionIterator:
    """An iterator over what an input function returned: a dataset, or a function of its own."""

    def __init__(self, strategy: StrategyBase, input_fn: Callable[..., Any]) -> None:
        """Call `input_fn(InputContext)`; raises `ArgumentError` for a result of another kind."""
        self._strategy = strategy
        made = input_fn(InputContext(1, 0, strategy.num_replicas_in_sync))
        if not callable(made) and (not isinstance(made, Iterable) or isinstance(made, str)):
            raise ArgumentError(
                f"input_fn returned a value of type {type_name(made)}, which is neither a dataset "
                f"nor a function",
                source=here(),
                hint="return a gd.data.Dataset, or a function that returns one element",
            )
        self._made = made
        self._elements: Iterator[Any] | None = None

    def initialize(self) -> None:
        """Go back to the first element."""
        self._elements = None

    def get_next(self) -> Any:
        """Return an element of each replica; raises `OutOfRangeError` when some would get none."""
        if self._elements is None:
            made = self._made
            self._elements = iter(made) if isinstance(made, Iterable) else _calls(made)
        count = self._strategy.num_replicas_in_sync
        elements = list(islice(self._elements, count))
        if len(elements) < count:
            raise OutOfRangeError(
                f"get_next past the end: elements left: {len(elements)}, replicas: {count}",
                source=here(),
                hint="call initialize() to start again",
            )
        if count == 1:
            return elements[0]
        return jax.tree.map(lambda *leaves: per_replica_of(leaves, self._strategy), *elements)


def _calls(made: Callable[[], Any]) -> Iterator[Any]:
    while True:
        yield made()


def numpy_dataset(numpy_input: Any) -> Dataset:
    """Return the dataset of the slices of arrays along dimension 0."""
    return Dataset.from_tensor_slices(numpy_input)
