"""Values of which each worker has its own: datasets and their iterators.

A worker makes its value when a function first needs it, and again after it was restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn  # Any: specs of elements

from graphdist.errors import UnsupportedError
from graphdist.parameter_server.input import WorkerIterator
from graphdist.tracing.user_lines import here


class PerWorkerValues:
    """One value on each worker; as an argument of a scheduled function it is the worker's own."""

    def __init__(self, number: int) -> None:
        """Take the number by which workers know it."""
        self.number = number


class PerWorkerIterator(PerWorkerValues):
    """An iterator over each worker's dataset."""

    def __init__(self, number: int, dataset: PerWorkerDataset) -> None:
        """Take the dataset, which is kept alive."""
        super().__init__(number)
        self._dataset = dataset

    @property
    def element_spec(self) -> Any:
        """Return the specs of an element."""
        return self._dataset.element_spec

    def here(self) -> WorkerIterator:
        """Return an iterator of this process, over a dataset that is made here."""
        return WorkerIterator(self._dataset.make())

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> NoReturn:
        raise UnsupportedError(
            "an iterator of workers is asked for an element by the coordinator",
            source=here(),
            hint="ask it in a function: coordinator.schedule(step, args=(iterator,))",
        )

    get_next = __next__


class PerWorkerDataset(PerWorkerValues):
    """A dataset that each worker makes."""

    def __init__(
        self,
        number: int,
        make: Callable[[], Any],
        iterator: Callable[[PerWorkerDataset], PerWorkerIterator],
    ) -> None:
        """Take functions that make the dataset here, and an iterator over it."""
        super().__init__(number)
        self.make, self._iterator = make, iterator

    @property
    def element_spec(self) -> Any:
        """Return the specs of an element."""
        return self.make().element_spec

    def __iter__(self) -> PerWorkerIterator:
        return self._iterator(self)
