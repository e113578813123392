"""The position of an iterator in its dataset, which can be saved and resumed.

A position is the number of elements taken, and the state that this number does not imply: for each
shuffle its seed and the number of orders taken before the iteration began. A new iterator resumes
by giving the shuffles that state and skipping the elements (`DatasetNode.elements_from`). Skipped
elements are not made where that can be avoided: arrays and ranges start at a later row, and
functions given to `map` are not called. So an element may depend on the dataset only, not on how
often a function was called before.

An iteration has its own copies of the nodes, whose shuffles count the orders of this iteration
only. Other iterators of the dataset do not affect them.

The dataset of another library may have a state of its own (`other_datasets.py`). The position then
has the state after the last step before it at which one is known, and the number of steps up to
there; an iterator resumes from the state, and drops the steps between. Without a state all elements
are iterated and dropped, and a shuffle in such a dataset must give the same order in a new program.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias  # Any: JSON, and nodes of all kinds

from graphdist.data.shuffle_orders import ShuffleOrders, ShuffleSeed
from graphdist.data.sources import DatasetNode, nodes_of, rewritten
from graphdist.data.transformations import Shuffle
from graphdist.errors import ArgumentError

Orders: TypeAlias = list[list[int]]
"""For each shuffle of a dataset: its seed, and the number of orders taken before."""

Begin: TypeAlias = Callable[[ShuffleSeed, int], list[ShuffleOrders]]
"""Returns the orders of a shuffle that occurs so many times in an iteration that begins."""


class SourceStates:
    """The states of the iterated datasets after some of the steps, of which the last are kept.

    The thread that draws elements adds states, ahead of the caller. The caller asks for the states
    nearest to its position.
    """

    def __init__(self, steps: int = 0, states: list[Any] | None = None) -> None:
        """Begin with the states after a number of steps; `states` is None if they are not known."""
        self._after = deque([(steps, states)])
        self._lock = threading.Lock()
        self.is_asked_for = True
        """Whether a position may be saved, which only iterators do."""

    def add(self, steps: int, states: list[Any], taken: int) -> None:
        """Add the states after `steps` steps; forget the states before the `taken` steps in use."""
        with self._lock:
            self._after.append((steps, states))
            # One more is kept, since a step that was taken may be put back.
            while len(self._after) > 1 and self._after[1][0] < taken:
                self._after.popleft()

    def before(self, taken: int) -> tuple[int, list[Any] | None]:
        """Return the last known states after at most `taken` steps, and after how many steps."""
        with self._lock:
            return [known for known in self._after if known[0] <= taken][-1]


@dataclass
class Position:
    """The position of an iteration."""

    datasets: list[DatasetNode]
    """The iterated datasets, of nodes that belong to this iteration."""
    orders: list[Orders]
    """The orders of each iterated dataset, as of the start of the iteration."""
    taken: int = 0
    sources: SourceStates = field(default_factory=SourceStates)
    divided_by: int | None = None
    """The number of workers if it decides which elements each worker reads, else None."""

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
            steps, states = state.get("sources", (0, None))
            known = SourceStates(_count(steps), states)
            divided_by = state.get("divided_by")
        except (AttributeError, TypeError, KeyError, ValueError) as error:
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
        if states is not None and len(states) != len(datasets):
            raise ArgumentError(
                f"the position is of {len(states)} datasets, these are {len(datasets)}", hint=_ALIKE
            )
        of_seeds = {
            shuffle.seed: order
            for shuffle, order in zip(chain(*shuffles), chain(*orders), strict=True)
        }
        position = cls._begun(datasets, lambda seed, times: seed.resume(*of_seeds[seed], times))
        position.taken, position.sources, position.divided_by = taken, known, divided_by
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
        state: dict[str, Any] = {"taken": self.taken, "orders": self.orders}
        steps, states = self.sources.before(self.taken)
        if states is not None:
            state["sources"] = [steps, states]
        if self.divided_by is not None:
            state["divided_by"] = self.divided_by
        return state


def check_division(position: Position, now: int | None) -> None:
    """Raise `ArgumentError` for a position that another number of workers has saved.

    `now` is the number of workers if it decides which elements each worker reads, else None. A
    single worker reads what all workers together read where the elements are not divided. The state
    of grain's `ElasticIterator` counts the rows of all workers, and fits any number of them.
    """
    saved = position.divided_by
    _, states = position.sources.before(position.taken)
    is_of_all = all(
        isinstance(state, dict) and {*state} == {"global_next_index"} for state in states or [None]
    )
    if saved in (None, now) or (saved == 1 and now is None) or is_of_all:
        return
    raise ArgumentError(
        f"the position was saved by {saved} workers, each of which has elements of its own, and is "
        f"restored on {1 if now is None else now}",
        hint=f"restore it on {saved} workers, or leave the iterator out and begin the epoch again",
    )


_ALIKE = "make the dataset the same way as when the position was saved"


def _count(value: Any) -> int:
    """Return a value as an integer; raises `ValueError` unless it is an integer from 0 on."""
    count = int(value)
    if count != value or count < 0:
        raise ValueError(f"{value!r} is no count")
    return count


def _shuffles(dataset: DatasetNode) -> list[Shuffle]:
    """Return the shuffles among the nodes of a dataset.

    Shuffles in the datasets of other libraries are not known.
    """
    return [node for node in nodes_of(dataset) if isinstance(node, Shuffle)]
