"""A dataset of another library of which each of several workers reads a part.

The dataset has as many parts as there are workers. An element of a part is a global batch; its rows
are cut into as many pieces as there are parts, and a step takes a piece of each part. So the pieces
of a step make up a global batch, of rows of several elements, and each element is read by one
worker. A part that ends earlier gives no rows to the last steps.

The state of a part is its state before the element that is in use, and the number of pieces that
were taken of it. On fewer workers a worker reads several of the parts and joins their pieces: the
steps have the rows that they would have had. So the number of parts stays what it was when the
position was saved, and must divide by the number of workers. A dataset that can start at any
element is cut into new parts instead, if its position is between elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple  # Any: JSON, elements

import jax
import numpy as np

from graphdist.data.elements import Array, Element, batch_size, flattened
from graphdist.data.failures import FailedElement, attempted, element_or_raise, made_from
from graphdist.data.other_datasets import OtherDataset, Parts
from graphdist.data.positions import SourceStates
from graphdist.data.rebatching import batch_sizes_for_worker, parts_of
from graphdist.data.sources import DatasetNode, Description, ElementStream
from graphdist.errors import ArgumentError

_COUNT, _START, _PARTS = _KEYS = ("num_parts", "start", "worker_parts")
"""The keys of a state: the number of parts; the element of the dataset at which all parts start;
the states of the parts by index."""
_AT_START = {"elements": 0, "pieces": 0, "state": None}
"""The state of a part before its first element."""
_END = object()


@dataclass(eq=False)
class DatasetParts(DatasetNode):
    """The parts of a dataset that this worker reads, as this worker's rows of each step."""

    whole: OtherDataset
    count: int
    """The number of parts of the dataset, which all workers read together."""
    own: Sequence[int]
    """The indices of the parts that this worker reads."""

    def __iter__(self) -> Iterator[Element]:
        return self.stream()

    def stream(self, start: int = 0, state: Any = None) -> ElementStream:
        """Return the pieces from index `start` on, or from a state of an earlier stream."""
        first = 0 if state is None else int(state[_START])
        saved = {} if state is None else state[_PARTS]
        assert self.whole.parts is not None
        parts = {
            str(index): _Part(
                self.whole.parts.of(self.count, index, first),
                self.count,
                index,
                saved.get(str(index), _AT_START),
            )
            for index in self.own
        }

        def states() -> Any:
            of_parts = {index: part.state() for index, part in parts.items()}
            return {_COUNT: self.count, _START: first, _PARTS: of_parts}

        pieces = _joined(list(parts.values()))
        return ElementStream(islice(pieces, start if state is None else 0, None), states)

    @property
    def description(self) -> Description:
        """Describe the whole dataset: a step has a global batch."""
        return self.whole.description


class _Part:
    """The pieces of the elements of one part."""

    def __init__(
        self, dataset: DatasetNode, count: int, index: int, saved: Mapping[str, Any]
    ) -> None:
        """Begin part `index` of `count`, with the elements of `dataset`, at a saved state."""
        self._count, self._index = count, index
        self._num_elements, self._before = int(saved["elements"]), saved["state"]
        self._elements = dataset.stream(self._num_elements, self._before)
        self._pieces: list[Any] = []
        self._taken = 0
        for _ in range(int(saved["pieces"])):
            next(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._pieces:
            self._before = self._elements.state()
            element = next(self._elements)
            pieces = attempted(self._cut, element)
            self._pieces = [pieces] if isinstance(pieces, FailedElement) else pieces
            self._num_elements += 1
            self._taken = 0
        self._taken += 1
        return self._pieces.pop(0)

    def _cut(self, element: Any) -> list[Element]:
        """Return the pieces of an element: equal numbers of its rows, as far as they divide."""
        flat = flattened(element_or_raise(element))
        if self._count == 1:
            return [element]
        sizes = batch_sizes_for_worker(batch_size(flat), self._count, 1, self._index)
        sizes = [size for size in sizes if size]
        columns: list[list[Array]] = [parts_of(array, sizes) for array in flat.arrays]
        return [jax.tree.unflatten(flat.structure, piece) for piece in zip(*columns, strict=True)]

    def state(self) -> Any:
        """Return the position after the piece that was returned last."""
        is_inside = bool(self._pieces)
        return {
            "elements": self._num_elements - is_inside,
            "pieces": self._taken if is_inside else 0,
            "state": self._before if is_inside else self._elements.state(),
        }


def is_state_of_parts(state: Any) -> bool:
    """Return whether a value is the state of some of the parts of a dataset."""
    return isinstance(state, dict) and set(state) == set(_KEYS)


def joined_states(states: Sequence[Any]) -> Any:
    """Return one value for the values that several workers saved, with the states of all parts.

    Raises `ValueError` if the values differ in anything else, as positions of different datasets
    do.

    >>> parts = [{"num_parts": 2, "start": 0, "worker_parts": {str(i): i}} for i in range(2)]
    >>> joined_states([[1, part] for part in parts])
    [1, {'num_parts': 2, 'start': 0, 'worker_parts': {'0': 0, '1': 1}}]
    """
    first = states[0]
    if all(state == first for state in states):
        return first
    if all(is_state_of_parts(state) for state in states):
        others = [{**state, _PARTS: None} for state in states]
        of_parts = {index: part for state in states for index, part in state[_PARTS].items()}
        return {**joined_states(others), _PARTS: of_parts}
    if all(isinstance(state, dict) and state.keys() == first.keys() for state in states):
        return {key: joined_states([state[key] for state in states]) for key in first}
    if all(isinstance(state, list) and len(state) == len(first) for state in states):
        return [joined_states(column) for column in zip(*states, strict=True)]
    raise ValueError("the states of workers differ")


class Resumed(NamedTuple):
    """A dataset that continues at a saved position, and the states of its source there."""

    node: DatasetNode
    sources: SourceStates


def resumed_parts(
    node: DatasetNode, sources: SourceStates, taken: int, num_workers: int, worker: int
) -> Resumed:
    """Return how worker `worker` of `num_workers` continues a dataset at a saved position.

    The position is after `taken` steps, with the states `sources`. Raises `ArgumentError` if this
    many workers cannot read the parts that were saved.
    """
    whole = node.whole if isinstance(node, DatasetParts) else node
    _, states = sources.before(taken)
    state: Any = states and states[0]
    parts = whole.parts if isinstance(whole, OtherDataset) else None
    if not is_state_of_parts(state):
        if isinstance(node, DatasetParts) and parts is not None and parts.starts_anywhere:
            return _divided_anew(node.whole, taken, taken, num_workers, worker)
        return Resumed(whole, sources)
    if parts is None or not isinstance(whole, OtherDataset):
        raise ArgumentError(
            f"the position is of one of {state[_COUNT]} parts of a dataset, and this dataset is "
            f"not read in parts",
            hint="make the dataset the same way as when the position was saved",
        )
    count = int(state[_COUNT])
    if count % num_workers == 0:
        each = count // num_workers
        own = range(worker * each, (worker + 1) * each)
        _require_states(own, state[_PARTS])
        return Resumed(DatasetParts(whole, count, own), sources)
    start = _common_start(state, parts)
    if start is None:
        raise _not_shared(count, num_workers, parts)
    return _divided_anew(whole, start, taken, num_workers, worker)


def _common_start(state: Mapping[str, Any], parts: Parts) -> int | None:
    """Return the index of the first element that no part has read, None if parts differ.

    Parts differ unless all have read the same number of whole elements. `state` is that of all
    parts.
    """
    of_parts = state[_PARTS].values()
    if not parts.starts_anywhere or len(of_parts) < int(state[_COUNT]):
        return None
    elements = [int(part["elements"]) for part in of_parts]
    start = int(state[_START]) + sum(elements)
    is_even = min(elements) == max(elements) or start == parts.most
    return start if is_even and all(part["pieces"] == 0 for part in of_parts) else None


def _divided_anew(
    whole: OtherDataset, start: int, taken: int, num_workers: int, worker: int
) -> Resumed:
    """Return the rest of a dataset, from element `start` on, in a part for each worker."""
    state = {_COUNT: num_workers, _START: start, _PARTS: {str(worker): _AT_START}}
    node = DatasetParts(whole, num_workers, (worker,))
    return Resumed(node, SourceStates(taken, [state]))


def _require_states(own: Sequence[int], of_parts: Mapping[str, Any]) -> None:
    missing = [index for index in own if str(index) not in of_parts]
    if missing:
        raise ArgumentError(
            f"the position has the states of the dataset's parts {', '.join(of_parts)}, and this "
            f"worker reads {', '.join(map(str, own))}",
            hint="restore it by a gd.train.Checkpoint, which has the states of all workers",
        )


def _not_shared(count: int, num_workers: int, parts: Parts) -> ArgumentError:
    fitting = [str(number) for number in range(1, count + 1) if count % number == 0]
    hint = f"restore on {', '.join(fitting)} workers, the divisors of {count}"
    if parts.starts_anywhere:
        hint += f"; or save after a multiple of {count} steps, where any number can continue"
    return ArgumentError(
        f"the position was saved where {count} workers each read a part of the dataset, and "
        f"{num_workers} cannot share {count} parts",
        hint=hint,
    )


def _joined(parts: Sequence[Iterator[Any]]) -> Iterator[Any]:
    """Yield pieces, each joined of the next piece of every part, until all parts have ended."""
    while True:
        pieces = [piece for part in parts if (piece := next(part, _END)) is not _END]
        if not pieces:
            return
        yield pieces[0] if len(pieces) == 1 else made_from(pieces, _concatenated)


def _concatenated(pieces: Sequence[Element]) -> Element:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *pieces)
