"""An iterator goes on where another stood, over every kind of dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphdist as gd

Dataset = gd.data.Dataset

DATASETS: dict[str, Callable[[], Any]] = {
    "shuffle, map, batch": lambda: (
        Dataset.range(23).shuffle(7, seed=3).map(lambda x: x * 2).batch(4)
    ),
    "repeat of shuffle": lambda: Dataset.range(23).shuffle(7, seed=3).batch(4).repeat(3),
    "prefetch": lambda: Dataset.range(23).shuffle(7, seed=5).batch(4).repeat(2).prefetch(2),
    "shuffles in shuffles": lambda: (
        Dataset.range(5).shuffle(7, seed=1).repeat(2).shuffle(3, seed=2).batch(2).repeat(3)
    ),
    "rows": lambda: Dataset.from_tensor_slices(np.arange(30)).batch(4).skip(1).take(5),
    "zip": lambda: (
        Dataset.zip(Dataset.range(10), Dataset.range(20).shuffle(20, seed=2))
        .enumerate()
        .map(lambda i, pair: pair[1] * 10 + i)
        .batch(3)
    ),
    "filter": lambda: Dataset.range(10).filter(lambda x: x % 2).repeat(4).batch(2),
    "shard, concatenate": lambda: (
        Dataset.range(20).shard(3, 1).concatenate(Dataset.range(5).shuffle(5, seed=1)).batch(2)
    ),
    "one order": lambda: (
        Dataset.range(5).shuffle(5, seed=1, reshuffle_each_iteration=False).batch(2)
    ),
    "padded": lambda: Dataset.range(1, 9).map(lambda size: [7] * int(size)).padded_batch(2),
}


def as_it_is(dataset: Any) -> Any:
    return dataset


def split(dataset: Any) -> Any:
    return pair().experimental_distribute_dataset(dataset)


def in_turn(dataset: Any) -> Any:
    return pair().distribute_datasets_from_function(lambda context: dataset)


def pair() -> gd.Strategy:
    return gd.MirroredStrategy(["cpu:0", "cpu:1"])


def values(batch: Any) -> list[Any]:
    parts = batch.values if isinstance(batch, gd.PerReplica) else [batch]
    return [np.asarray(part).tolist() for part in parts]


@pytest.mark.parametrize("distribute", [as_it_is, split, in_turn])
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("epochs", [0, 2])
def test_every_position(name: str, distribute: Callable[[Any], Any], epochs: int) -> None:
    dataset = distribute(DATASETS[name]())
    for _ in range(epochs):
        list(dataset)
    iterator, states, whole = iter(dataset), [], []
    states.append(iterator.get_state())
    for batch in iterator:
        whole.append(values(batch))
        states.append(iterator.get_state())
    after = [values(batch) for batch in dataset]
    for taken, state in enumerate(states):
        again = distribute(DATASETS[name]())
        iterator = iter(again)
        iterator.set_state(state)
        assert iterator.get_state() == state
        assert [values(batch) for batch in iterator] == whole[taken:]
        assert [values(batch) for batch in again] == after, "shuffles go on as they would have"


def test_a_shuffle_with_a_seed_of_its_own() -> None:
    def make() -> Any:
        return Dataset.range(40).shuffle(40).repeat(2)

    iterator = iter(make())
    for _ in range(50):
        next(iterator)
    other = iter(make())
    other.set_state(iterator.get_state())
    assert list(other) == list(iterator)


def test_functions_are_not_called_for_what_is_left_out() -> None:
    called: list[int] = []

    def seen(x: Any) -> Any:
        called.append(int(x))
        return x

    iterator = iter(Dataset.range(100).map(seen).batch(10))
    iterator.set_state({"taken": 9, "orders": [[]]})
    assert next(iterator).tolist() == list(range(90, 100))
    assert called == list(range(90, 100))


def test_a_dataset_described_before_it_is_iterated() -> None:
    dataset = split(Dataset.range(9).shuffle(9, seed=1).map(lambda x: x).batch(4))
    _ = dataset.element_spec  # reads the first element, and draws its order
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    rest = [values(batch) for batch in iterator]
    other = iter(split(Dataset.range(9).shuffle(9, seed=1).map(lambda x: x).batch(4)))
    other.set_state(state)
    assert [values(batch) for batch in other] == rest


def test_other_iterables_are_iterated_from_their_start() -> None:
    batches = [np.arange(4) + i for i in range(5)]
    iterator = iter(split(batches))
    next(iterator)
    next(iterator)
    other = iter(split(batches))
    other.set_state(iterator.get_state())
    assert values(next(other)) == values(next(iterator)) == [[2, 3], [4, 5]]
    used = iter(split(iter(batches)))
    with pytest.raises(ValueError, match="can be iterated once"):
        used.set_state(iterator.get_state())


@pytest.mark.parametrize("state", [None, 3, {"taken": 1}, {"taken": "x", "orders": []}])
def test_what_is_no_position(state: Any) -> None:
    with pytest.raises(ValueError, match="is not the position of an iterator"):
        iter(Dataset.range(3)).set_state(state)
