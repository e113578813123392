"""Datasets with a state of their own continue where they were, and read nothing twice."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import graphdist as gd

SIZE, ROWS = 7, 4
BATCHES = [list(range(ROWS * index, ROWS * (index + 1))) for index in range(SIZE)]


class Source:
    """Batches that are counted as they are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def batch(self, index: int) -> Any:
        if index >= SIZE:
            raise StopIteration
        self.read.append(index)
        return np.arange(ROWS) + ROWS * index


class Reader:
    """An iterator without a state."""

    def __init__(self, source: Source) -> None:
        self.source, self.index = source, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = self.source.batch(self.index)
        self.index += 1
        return batch


class Stateful(Reader):
    """An iterator with a state, as grain has it."""

    def get_state(self) -> Any:
        return {"next": self.index}

    def set_state(self, state: Any) -> None:
        self.index = state["next"]


class IteratorsWithStates(Source):
    def __iter__(self) -> Iterator[Any]:
        return Stateful(self)


class IteratorsWithBytes(Source):
    """As grain's DataLoader, whose state is text in bytes."""

    def __iter__(self) -> Iterator[Any]:
        class OfBytes(Stateful):
            def get_state(self) -> Any:
                return json.dumps(super().get_state()).encode()

            def set_state(self, state: Any) -> None:
                assert type(state) is bytes
                super().set_state(json.loads(state))

        return OfBytes(self)


class IteratorsWithStateDicts(Source):
    def __iter__(self) -> Iterator[Any]:
        class OfDict(Reader):
            def state_dict(self) -> Any:
                return {("next", 1): (np.int64(self.index), np.arange(self.index))}

            def load_state_dict(self, state: Any) -> None:
                number, array = state["next", 1]
                assert type(number) is np.int64
                assert array.tolist() == list(range(number))
                self.index = int(number)

        return OfDict(self)


class IterableWithState(Source):
    """As StatefulDataLoader and streaming datasets: the state is the iterable's, and is live."""

    def __init__(self) -> None:
        super().__init__()
        self.live = {"next": 0}
        self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.live["next"], self.start = self.start, 0
        while self.live["next"] < SIZE:
            batch = self.batch(self.live["next"])
            self.live["next"] += 1
            yield batch

    def state_dict(self) -> Any:
        return self.live

    def load_state_dict(self, state: Any) -> None:
        self.start = state["next"]


class IteratorWithState(Source):
    """An iterator that is given itself, and has no other."""

    def __init__(self) -> None:
        super().__init__()
        self.iterator = Stateful(self)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.iterator)

    def get_state(self) -> Any:
        return self.iterator.get_state()

    def set_state(self, state: Any) -> None:
        self.iterator.set_state(state)


SOURCES = [
    IteratorsWithStates,
    IteratorsWithBytes,
    IteratorsWithStateDicts,
    IterableWithState,
    IteratorWithState,
]


def pair() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


NOTHING_AHEAD = gd.InputOptions(experimental_per_replica_buffer_size=0)
"""What is read is then what was asked for."""


def split(dataset: Any, options: Any = None) -> Any:
    return iter(pair().experimental_distribute_dataset(dataset, options))


def in_turn(dataset: Any, options: Any = None) -> Any:
    """Return an iterator whose steps take two elements each."""
    return iter(pair().distribute_datasets_from_function(lambda context: dataset, options))


def values(step: Any) -> list[int]:
    return [int(row) for part in step.values for row in np.asarray(part)]


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("taken", range(SIZE + 1))
def test_the_rest_is_read_once(make: Callable[[], Source], taken: int) -> None:
    iterator = split(make())
    for _ in range(taken):
        next(iterator)
    state = through_json(iterator.get_state())
    source = make()
    again = split(source, NOTHING_AHEAD)
    next(again)  # it has begun elsewhere
    source.read.clear()
    again.set_state(state)
    assert again.get_state() == state
    assert [values(step) for step in again] == BATCHES[taken:]
    assert source.read == list(range(taken, SIZE))


@pytest.mark.parametrize("make", SOURCES)
def test_steps_of_several_elements(make: Callable[[], Source]) -> None:
    iterator = in_turn(make())
    seen = [values(next(iterator)) for _ in range(2)]
    source = make()
    again = in_turn(source, NOTHING_AHEAD)
    again.set_state(through_json(iterator.get_state()))
    seen += [values(step) for step in again]
    assert list(chain(*seen)) == list(chain(*BATCHES))
    assert source.read == [4, 5, 6]


def test_a_dataset_for_each_replica() -> None:
    def begin() -> tuple[list[Source], Any]:
        sources = [IteratorsWithStates(), IterableWithState()]
        mode = gd.InputReplicationMode.PER_REPLICA
        options = gd.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=mode,
            experimental_per_replica_buffer_size=0,
        )
        dataset = pair().distribute_datasets_from_function(
            lambda context: sources[context.input_pipeline_id], options
        )
        return sources, iter(dataset)

    _, iterator = begin()
    whole = [values(step) for step in iterator]
    _, iterator = begin()
    for _ in range(3):
        next(iterator)
    sources, again = begin()
    again.set_state(through_json(iterator.get_state()))
    assert [values(step) for step in again] == whole[3:]
    assert [source.read for source in sources] == [[3, 4, 5, 6]] * 2


def test_a_described_dataset_and_one_of_two_iterators() -> None:
    dataset = pair().experimental_distribute_dataset(IteratorsWithStates())
    _ = dataset.element_spec  # reads the first element
    first, second = iter(dataset), iter(dataset)
    next(first)
    next(second)
    next(second)
    for iterator, index in ((first, 1), (second, 2)):
        again = split(IteratorsWithStates())
        again.set_state(through_json(iterator.get_state()))
        assert values(next(again)) == BATCHES[index]


def test_the_state_of_an_iterable_is_that_of_its_last_iteration() -> None:
    # Both iterations change one state, so the first one must not read ahead while the second runs.
    dataset = pair().experimental_distribute_dataset(IterableWithState(), NOTHING_AHEAD)
    first = iter(dataset)
    next(first)
    state = first.get_state()
    assert state["sources"] == [1, [{"next": 1}]]
    second = iter(dataset)
    assert "sources" not in second.get_state(), "it has that of the iteration before"
    next(second)
    assert second.get_state()["sources"] == [1, [{"next": 1}]]


def test_a_function_that_asks_an_iterator_in_chunks() -> None:
    strategy = pair()

    @gd.function
    def total(iterator: Any) -> Any:
        result = jnp.int32(0)
        for _ in range(3):
            result += strategy.reduce("SUM", next(iterator), axis=0)
        return result

    iterator = iter(strategy.experimental_distribute_dataset(IteratorsWithStates()))
    assert int(total(iterator)) == sum(range(3 * ROWS))
    source = IteratorsWithStates()
    again = split(source, NOTHING_AHEAD)
    again.set_state(through_json(iterator.get_state()))
    assert [values(step) for step in again] == BATCHES[3:]
    assert source.read == [3, 4, 5, 6]


def test_no_states_are_kept_where_no_position_can_be_saved() -> None:
    class Unread(IterableWithState):
        def state_dict(self) -> Any:
            raise AssertionError("a reduction has no position")

    strategy = pair()
    dataset = strategy.experimental_distribute_dataset(Unread())
    total = dataset.reduce(0, lambda total, batch: total + strategy.reduce("SUM", batch, axis=0))
    assert int(total) == sum(range(SIZE * ROWS))


def test_elements_that_raise_have_a_position(tmp_path: Path) -> None:
    class Failing(Stateful):
        def __next__(self) -> Any:
            batch = super().__next__()
            if batch[0] == ROWS:
                raise OSError("cannot read")
            return batch

    class Source1(Source):
        def __iter__(self) -> Iterator[Any]:
            return Failing(self)

    iterator = split(Source1())
    next(iterator)
    with pytest.raises(OSError, match="cannot read"):
        next(iterator)
    again = split(Source1())
    again.set_state(through_json(iterator.get_state()))
    assert values(next(again)) == BATCHES[2]


@pytest.mark.parametrize("made", [lambda: object(), lambda: [1, lambda: None]])
def test_a_state_that_cannot_be_saved_is_told_and_elements_are_counted(
    made: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(IterableWithState):
        def state_dict(self) -> Any:
            return made()

    iterator = split(Odd())
    with caplog.at_level(logging.WARNING, "graphdist"):
        for _ in range(3):
            next(iterator)
    (record,) = caplog.records
    assert "the state of a Odd is not saved (TypeError: it has a value of type" in record.message
    state = through_json(iterator.get_state())
    assert state == {"taken": 3, "orders": [[]]}
    source = Odd()
    again = split(source)
    again.set_state(state)
    assert [values(step) for step in again] == BATCHES[3:]


def test_a_state_for_a_dataset_without_one_is_refused() -> None:
    iterator = split(IteratorsWithStates())
    next(iterator)
    with pytest.raises(gd.ArgumentError, match="a list has no set_state or load_state_dict"):
        split([np.arange(ROWS)]).set_state(iterator.get_state())


def test_positions_without_a_state_are_still_taken() -> None:
    source = IteratorsWithStates()
    iterator = split(source)
    iterator.set_state({"taken": 3, "orders": [[]]})
    assert [values(step) for step in iterator] == BATCHES[3:]


@pytest.mark.parametrize("make", [*SOURCES[:4], lambda: [np.array(batch) for batch in BATCHES]])
@pytest.mark.parametrize("stop", [1, 6, 7, 8, 12])
def test_a_backed_up_loop(make: Callable[[], Any], stop: int, tmp_path: Path) -> None:
    def train(source: Any, most: int) -> Iterator[tuple[int, list[int]]]:
        backup = gd.train.BackupAndRestore(gd.train.Checkpoint(), tmp_path, save_freq=1)
        for epoch in backup.epochs(2):
            for batch in backup.steps(source):
                if most == 0:
                    return
                most -= 1
                yield epoch, batch.tolist()

    seen = list(train(make(), stop))
    source = make()
    seen += list(train(source, -1))
    assert seen == [(epoch, batch) for epoch in range(2) for batch in BATCHES]
    if isinstance(source, Source):
        assert len(source.read) == 2 * SIZE - stop


def test_iterators_in_a_checkpoint(tmp_path: Path) -> None:
    def begin() -> dict[str, Any]:
        return {
            "bytes": iter(IteratorsWithBytes()),
            "dict": iter(IteratorsWithStateDicts()),
            "iterable": IterableWithState(),
        }

    objects = begin()
    iterable = iter(objects["iterable"])
    for iterator in (objects["bytes"], objects["dict"], iterable):
        next(iterator)
        next(iterator)
    path = gd.train.Checkpoint(**objects).write(tmp_path / "saved")
    restored = begin()
    gd.train.Checkpoint(**restored).read(path).assert_consumed()
    assert [int(next(iter(each))[0]) for each in restored.values()] == [2 * ROWS] * 3


def test_a_position_of_another_number_of_workers(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.txt" for index in range(2)]
    for file in files:
        file.write_text("1\n2\n")

    def by_file() -> Any:
        return split(gd.data.Dataset.from_files(files).map(int).batch(2))

    def by_function() -> Any:
        return in_turn(IteratorsWithStates())

    for make in (by_file, by_function):
        state = {**make().get_state(), "divided_by": 2}
        with pytest.raises(
            gd.ArgumentError, match=r"saved by 2 workers, each of which has .* on 1"
        ):
            make().set_state(state)
    elastic = {
        "taken": 2,
        "orders": [[]],
        "divided_by": 2,
        "sources": [2, [{"global_next_index": 4}]],
    }
    with pytest.raises(KeyError, match="next"):  # it is given to the iterator
        by_function().set_state(elastic)
    iterator = split([np.array(batch) for batch in BATCHES])
    iterator.set_state({"taken": 2, "orders": [[]], "divided_by": 1})
    assert values(next(iterator)) == BATCHES[2]
