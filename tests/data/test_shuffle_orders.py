"""An iteration takes orders of its own: others do not change them, nor what its position means."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphdist as gd
from graphdist.data.shuffle_orders import ShuffleSeed
from tests.data.test_positions import as_it_is, in_turn, pair, split, values

Dataset = gd.data.Dataset
SECONDS_AT_MOST = 30.0

DATASETS: dict[str, Callable[[], Any]] = {
    "repeat of shuffle": lambda: Dataset.range(8).shuffle(5, seed=3).repeat(4).batch(4),
    "shuffle of repeat": lambda: Dataset.range(8).repeat(4).shuffle(5, seed=3).batch(4),
    "shuffles in shuffles": lambda: (
        Dataset.range(5).shuffle(7, seed=1).repeat(2).shuffle(3, seed=2).batch(2).repeat(3)
    ),
    "filtered": lambda: (
        Dataset.range(9).shuffle(9, seed=4).filter(lambda x: x != 3).repeat(3).batch(2)
    ),
    "one order": lambda: (
        Dataset.range(8).shuffle(8, seed=5, reshuffle_each_iteration=False).repeat(3).batch(4)
    ),
    "prefetched": lambda: Dataset.range(8).shuffle(5, seed=3).prefetch(2).repeat(4).batch(4),
    "prefetched whole": lambda: Dataset.range(8).shuffle(5, seed=3).repeat(4).batch(4).prefetch(3),
}


def elements(iterator: Any) -> list[Any]:
    return [values(batch) for batch in iterator]


@pytest.mark.parametrize("distribute", [as_it_is, split, in_turn])
@pytest.mark.parametrize("name", DATASETS)
def test_iterators_in_turns_are_as_if_alone(name: str, distribute: Callable[[Any], Any]) -> None:
    alone = distribute(DATASETS[name]())
    first = iter(alone)
    expected = elements(itertools.islice(first, 5))
    expected_of_other = elements(itertools.islice(iter(alone), 4))
    dataset = distribute(DATASETS[name]())
    one = iter(dataset)
    found = elements(itertools.islice(one, 5))
    other, found_of_other = iter(dataset), []
    rest = []
    for _ in range(4):
        found_of_other += elements(itertools.islice(other, 1))
        rest += elements(itertools.islice(one, 1))
    assert found == expected
    assert found_of_other == expected_of_other
    assert rest == elements(itertools.islice(first, 4))


@pytest.mark.parametrize("distribute", [as_it_is, split, in_turn])
@pytest.mark.parametrize("name", DATASETS)
def test_a_position_among_others(name: str, distribute: Callable[[Any], Any]) -> None:
    """A position is saved between other iterators, and restored between others."""
    dataset = distribute(DATASETS[name]())
    next(iter(dataset))
    iterator = iter(dataset)
    other = iter(dataset)
    for _ in range(3):
        next(iterator)
        next(other)
    state = json.loads(json.dumps(iterator.get_state()))
    next(other, None)
    rest = elements(iterator)
    again = distribute(DATASETS[name]())
    between = [iter(again), iter(again)]
    next(between[0])
    iterator = iter(again)
    iterator.set_state(state)
    found = []
    for batch in iterator:
        found.append(values(batch))
        next(between[1], None)
        next(iter(again))
    assert found == rest


def test_each_iterator_takes_the_next_order() -> None:
    orders = [[4, 5, 1, 2, 3, 0], [4, 3, 1, 5, 0, 2], [3, 5, 0, 1, 4, 2]]
    dataset = Dataset.range(6).shuffle(6, seed=1)
    iterators = [iter(dataset) for _ in orders]
    rows = list(zip(*iterators, strict=True))
    assert [list(map(int, one)) for one in zip(*rows, strict=True)] == orders


def test_a_dataset_in_two_pipelines() -> None:
    base = Dataset.range(6).shuffle(6, seed=1)
    tens, pairs = base.map(lambda x: x * 10), base.batch(2)
    one, other = iter(tens), iter(pairs)
    next(one)
    state, other_state = one.get_state(), other.get_state()
    assert [int(x) for x in one] == [50, 10, 20, 30, 0]
    assert [x.tolist() for x in other] == [[4, 3], [1, 5], [0, 2]]
    one.set_state(state)
    other.set_state(other_state)
    assert [int(x) for x in one] == [50, 10, 20, 30, 0]
    assert [x.tolist() for x in other] == [[4, 3], [1, 5], [0, 2]]


def test_a_shuffle_twice_in_one_pipeline() -> None:
    """Each takes every second order, on whatever thread it does."""
    base = Dataset.range(6).shuffle(6, seed=1).repeat(2)
    plain = Dataset.zip(base, base)
    expected = [tuple(map(int, one)) for one in plain]
    assert [one for one, _ in expected] == [4, 5, 1, 2, 3, 0, 3, 5, 0, 1, 4, 2]
    assert [other for _, other in expected[:6]] == [4, 3, 1, 5, 0, 2]
    base = Dataset.range(6).shuffle(6, seed=1).repeat(2)
    ahead = Dataset.zip(base.prefetch(5), base.prefetch(1))
    assert [tuple(map(int, one)) for one in ahead] == expected


@pytest.mark.parametrize("distribute", [as_it_is, split])
def test_what_is_made_ahead_takes_no_order_from_the_next(
    distribute: Callable[[Any], Any],
) -> None:
    """A loop left early does not say how far ahead its thread was: workers would differ."""
    is_ahead = threading.Event()

    def seen(x: Any) -> Any:
        made.append(int(x))
        if len(made) >= 20:
            is_ahead.set()
        return x

    made: list[int] = []
    base = Dataset.range(6).shuffle(6, seed=1).repeat().map(seen).batch(2)
    dataset = distribute(base.prefetch(12))
    iterator = iter(dataset)
    next(iterator)
    assert is_ahead.wait(SECONDS_AT_MOST)
    assert np.concatenate([np.ravel(values(x)) for x in itertools.islice(dataset, 3)]).tolist() == [
        4, 3, 1, 5, 0, 2,
    ]  # fmt: skip


def test_restoring_goes_back_for_the_iterations_after_it() -> None:
    def make() -> Any:
        return Dataset.range(6).shuffle(6, seed=1)

    dataset = make()
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    following = [[int(x) for x in dataset] for _ in range(2)]
    again = make()
    for _ in range(3):
        next(iter(again))
    iterator = iter(again)
    iterator.set_state(state)
    assert [int(x) for x in iterator] == [5, 1, 2, 3, 0]
    assert [[int(x) for x in again] for _ in range(2)] == following


def test_a_position_of_before_iterations_had_their_own() -> None:
    """Saved when all iterators of a dataset drew from one generator."""
    dataset = Dataset.range(6).shuffle(6, seed=1).repeat()
    iterator = iter(dataset)
    iterator.set_state({"taken": 7, "orders": [[[1, 2]]]})
    found = [int(next(iterator)) for _ in range(5)]
    numbers = [int(x) for x in Dataset.range(6).shuffle(6, seed=1).repeat(4)]
    assert found == numbers[12 + 7 : 12 + 12]


@pytest.mark.parametrize("orders", [[[[1]]], [[[1, -1]]], [[["x", 0]]], [[[1, 0.5]]], [[1]]])
def test_orders_that_are_none(orders: Any) -> None:
    with pytest.raises(gd.ArgumentError, match="is not the position of an iterator"):
        iter(Dataset.range(3).shuffle(3)).set_state({"taken": 1, "orders": orders})


def test_an_order_far_on_is_found_at_once() -> None:
    seeds = ShuffleSeed(1, reshuffles=True)
    (orders,) = seeds.resume(1, 10**12, 1)
    assert len(list(itertools.islice(orders.next(), 5))) == 5


def test_workers_see_one_order_however_far_ahead_they_are() -> None:
    """Two workers leave their loops at one step; what their threads made by then differs."""
    found = []
    for ahead in (0, 9):
        options = gd.InputOptions(experimental_per_replica_buffer_size=ahead)
        dataset = Dataset.range(8).shuffle(8, seed=2).repeat().batch(4)
        distributed = pair().experimental_distribute_dataset(dataset, options)
        batches = []
        for _ in range(3):
            batches += elements(itertools.islice(distributed, 3))
        found.append(batches)
    assert found[0] == found[1]
