"""The position of an iterator in its dataset, which can be saved and resumed.

A position is the number of elements taken, and the state that this number does not imply: for each
shuffle its seed and the number of orders taken before the iteration began. A new iterator resumes
by giving the shuffles that state and skipping the elements (`DatasetNode.elements_from`). Skipped
elements are not made where that can be avoided: arrays and ranges start at a later row, and
functions given to `map` are not called. So an element may depend on the dataset only, not on how
often a function was called before.

An iteration has its own copies of the nodes, whose shuffles count the orders of this iteration
only. Other iterators of the dataset do not affect them.

Elements of other libraries' datasets are iterated and dropped. A shuffle in such a dataset must
therefore give the same order in a new program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias  # Any: JSON, and nodes of all kinds

from graphdist.data.shuffle_orders import ShuffleOrders, ShuffleSeed
from graphdist.data.sources import DatasetNode, nodes_of, rewritten
from graphdist.data.transformations import Shuffle
from graphdist.errors import ArgumentError

Orders: TypeAlias = list[list[int]]
"""For each shuffle of a dataset: its seed, and the number of orders taken before."""

Begin: TypeAlias = Callable[[ShuffleSeed, int], list[ShuffleOrders]]
"""Begins the orders of a shuffle that occurs the given number of times in an iteration."""


@dataclass
class Position:
    """The position of an iteration."""

    datasets: list[DatasetNode]
    """The iterated datasets, of nodes that belong to this iteration."""
    orders: list[Orders]
    """The orders of each iterated dataset, as of the start of the iteration."""
    taken: int = 0

    @classmethod
    def at_start(cls, datasets: Sequence[DatasetNode]) -> Position:
        """Return the position of an iteration that begins."""
        return cls._begun(datasets, ShuffleSeed.begin)

    @classmethod
    def of_state(cls, state: Any, datasets: Sequence[DatasetNode]) -> Position:
        """Return the position that a state describes, in an iteration of these datasets.

        Raises `ArgumentError` for a state of other datasets.
        """
        try:
            taken = _count(state["taken"])
            orders = [
                [(_count(seed), _count(first)) for seed, first in of_dataset]
                for of_dataset in state["orders"]
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise ArgumentError(
                f"{state!r} is not the position of an iterator", hint=_ALIKE
            ) from error
        shuffles = [_shuffles(dataset) for dataset in datasets]
        saved_counts, counts = [len(part) for part in orders], [len(part) for part in shuffles]
        if saved_counts != counts:
            raise ArgumentError(
                f"the position is of datasets with {saved_counts} shuffles, these have {counts}",
                hint=_ALIKE,
            )
        states = {
            shuffle.seed: order
            for shuffle, order in zip(chain(*shuffles), chain(*orders), strict=True)
        }
        position = cls._begun(datasets, lambda seed, times: seed.resume(*states[seed], times))
        position.taken = taken
        return position

    @classmethod
    def _begun(cls, datasets: Sequence[DatasetNode], begin: Begin) -> Position:
        shuffles = [_shuffles(dataset) for dataset in datasets]
        occurrences = Counter(shuffle.seed for shuffle in chain(*shuffles))
        begun = {seed: begin(seed, times) for seed, times in occurrences.items()}
        orders = [
            [[shuffle.seed.value, begun[shuffle.seed][0].first] for shuffle in of_dataset]
            for of_dataset in shuffles
        ]

        def owned(node: Any) -> Any:
            is_shuffle = isinstance(node, Shuffle)
            return replace(node, orders=begun[node.seed].pop(0)) if is_shuffle else node

        return cls([rewritten(dataset, owned) for dataset in datasets], orders)

    @property
    def state(self) -> Any:
        """Return the position as a value that JSON can hold."""
        return {"taken": self.taken, "orders": self.orders}


_ALIKE = "make the dataset the same way as when the position was saved"


def _count(value: Any) -> int:
    """Return a count; raises `ValueError` for anything else."""
    count = int(value)
    if count != value or count < 0:
        raise ValueError(f"{value!r} is no count")
    return count


def _shuffles(dataset: DatasetNode) -> list[Shuffle]:
    """Return the shuffles of a dataset's nodes; those in other libraries' datasets are unknown."""
    return [node for node in nodes_of(dataset) if isinstance(node, Shuffle)]
