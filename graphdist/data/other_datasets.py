"""Datasets of other libraries as sources of elements, with their states and their parts.

A state is what a pair of methods returns and takes: `get_state` and `set_state`, or `state_dict`
and `load_state_dict`. The pair belongs to the iterable (`StatefulDataLoader`, a streaming dataset
of Hugging Face) or to its iterators (grain). A state is read after each element, since the elements
are drawn ahead of the program's use: see `positions.py`. Without a pair, or with a state that JSON
cannot hold, the position is the number of elements, and they are drawn again and dropped.

A part is what one of several workers reads: see `dataset_parts.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import GeneratorType
from typing import Any, NamedTuple  # Any: datasets of all kinds, their states

from graphdist.data.elements import Element
from graphdist.data.failures import FailedElement, attempted, caught
from graphdist.data.sources import DatasetNode, Description, ElementStream
from graphdist.data.state_encoding import decoded, encoded
from graphdist.errors import ArgumentError
from graphdist.values.distributed import type_name

_log = logging.getLogger("graphdist")
_NAMES_OF_PAIRS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class StatePair(NamedTuple):
    """The methods that read and set a state."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]


def state_pair(holder: Any) -> StatePair | None:
    """Return the methods of an object that read and set its state; None if it lacks them."""
    for names in _NAMES_OF_PAIRS:
        get, set_ = (getattr(holder, name, None) for name in names)
        if callable(get) and callable(set_):
            return StatePair(get, set_)
    return None


class Parts(NamedTuple):
    """How a dataset reads a part of itself."""

    most: int
    """The largest number of parts that all have elements."""
    of: Callable[[int, int, int], DatasetNode]
    """Returns, for `(count, index, start)`, part `index` of `count` of the elements from element
    `start` on."""
    starts_anywhere: bool = False
    """Whether `start` may be greater than 0."""


def _set_shared(iterable: Any, pair: StatePair, state: Any) -> None:
    """Set the state of an iterable; its next iteration starts from the state."""
    if hasattr(iterable, "set_epoch") and isinstance(state, dict) and "epoch" in state:
        iterable.set_epoch(state["epoch"])  # Hugging Face leaves the state of another epoch out
    pair.set(state)


@dataclass(eq=False)
class OtherDataset(DatasetNode):
    """The elements of a dataset of another library, or of any iterable."""

    dataset: Any
    declared: Description
    opened: Callable[[], Any]
    """Returns the iterable of one iteration."""
    parts: Parts | None = None
    has_state: bool = True
    """Whether the states that the dataset returns are complete, and so are used."""
    is_used_up: bool = False
    """Whether the dataset is its own only iterator, and an iteration has begun."""
    newest: object = None
    """Identifies the iteration begun last. The state of an iterable is that of this iteration."""

    def __iter__(self) -> Iterator[Element]:
        return self.stream()

    def stream(self, start: int = 0, state: Any = None) -> ElementStream:
        """Return the elements from index `start` on, or from a state of an earlier stream.

        Raises `ArgumentError` for a second iteration of a dataset that is its own iterator, and for
        a state of another kind of dataset.
        """
        iterable = self.opened()
        pair = state_pair(iterable) if self.has_state else None
        if self.is_used_up and (state is None or pair is None):
            raise ArgumentError(
                f"a {type_name(self.dataset)} can be iterated once, and this one was",
                hint="distribute a list, or an object whose __iter__ starts again",
            )
        if pair is not None and state is not None:
            _set_shared(iterable, pair, decoded(state))
        elements = attempted(iter, iterable)
        if isinstance(elements, FailedElement):
            return ElementStream(iter([elements]))
        self.is_used_up = elements is self.dataset
        is_shared = pair is not None and elements is not iterable
        if pair is None:
            pair = state_pair(elements) if self.has_state else None
            if state is not None:
                self._restore(pair, state)
        # A generator has not begun: the iterable's state is still that of the iteration before.
        is_new = start == 0 and not (is_shared and isinstance(elements, GeneratorType))
        is_known = state is not None or is_new
        drawn = _Drawn(self, elements, pair, is_shared, is_known)
        skipped = start if state is None else 0
        return ElementStream(islice(drawn, skipped, None), drawn.state)

    def _restore(self, pair: StatePair | None, state: Any) -> None:
        """Set the state of an iterator by its pair of methods.

        Raises `ArgumentError` if it has none.
        """
        if pair is None:
            raise ArgumentError(
                f"the position has a state of the dataset, and a {type_name(self.dataset)} has "
                f"no set_state or load_state_dict",
                hint="make the dataset the same way as when the position was saved",
            )
        pair.set(decoded(state))

    @property
    def description(self) -> Description:
        """Return what the dataset declares."""
        return self.declared


@dataclass(eq=False)
class _Drawn:
    """The elements of an iteration, with a `FailedElement` for one that raises, and the state."""

    node: OtherDataset
    elements: Iterator[Any]
    pair: StatePair | None
    is_shared: bool
    """Whether the pair belongs to the iterable, whose state is that of its newest iteration."""
    is_known: bool
    """Whether the state is known before the first element is drawn."""

    def __post_init__(self) -> None:
        elements = self.elements
        self.elements = caught(lambda: elements)
        self._token = self.node.newest = object()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        element = next(self.elements)
        self.is_known = True
        return element

    def state(self) -> Any:
        """Return the state after the last element that was drawn.

        None if the state is not known, or is no value of JSON.
        """
        is_of_another_iteration = self.is_shared and self.node.newest is not self._token
        if self.pair is None or not self.is_known or is_of_another_iteration:
            return None
        try:
            return encoded(self.pair.get())
        except Exception as error:  # libraries raise all kinds where an iterator has no state
            _log.warning(
                "the state of a %s is not saved (%s: %s): a position in it is the number of "
                "elements, which are read again and dropped",
                type_name(self.node.dataset),
                type(error).__name__,
                error,
            )
            self.pair = None
            return None
