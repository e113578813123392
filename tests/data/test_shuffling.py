"""The order of a shuffled dataset is TensorFlow's, recorded with version 2.21."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdist.data import Dataset


def values(dataset: Dataset) -> list[Any]:
    return [element.tolist() for element in dataset]


def test_every_iteration_has_another_order() -> None:
    dataset = Dataset.range(20).shuffle(5, seed=7)
    assert values(dataset) == [
        2, 4, 0, 3, 8, 1, 9, 10, 5, 13, 12, 14, 15, 7, 6, 19, 16, 17, 11, 18,
    ]  # fmt: skip
    assert values(dataset) == [
        4, 0, 3, 7, 2, 6, 8, 9, 5, 1, 12, 15, 14, 10, 11, 17, 13, 18, 16, 19,
    ]  # fmt: skip


def test_an_order_for_all_iterations() -> None:
    dataset = Dataset.range(20).shuffle(5, seed=7, reshuffle_each_iteration=False)
    expected = [2, 3, 0, 7, 4, 8, 6, 11, 1, 12, 10, 13, 15, 14, 17, 16, 18, 9, 19, 5]
    assert values(dataset) == values(dataset) == expected


def test_a_dataset_made_anew_starts_again() -> None:
    for _ in range(2):
        assert values(Dataset.range(6).shuffle(6, seed=1)) == [4, 5, 1, 2, 3, 0]


def test_epochs_are_iterations() -> None:
    dataset = Dataset.range(6).shuffle(6, seed=1).repeat(2)
    assert values(dataset) == [4, 5, 1, 2, 3, 0, 4, 3, 1, 5, 0, 2]
    assert values(dataset) == [3, 5, 0, 1, 4, 2, 0, 3, 2, 5, 1, 4]


def test_shuffles_of_shuffles() -> None:
    once = Dataset.range(6).shuffle(3, seed=2)
    dataset = once.repeat(2).shuffle(4, seed=3).batch(4)
    assert values(dataset) == [[2, 5, 4, 3], [0, 2, 0, 5], [1, 1, 3, 4]]
    assert values(dataset) == [[2, 0, 1, 4], [3, 5, 0, 2], [1, 5, 3, 4]]


def test_two_iterators_at_once() -> None:
    dataset = Dataset.range(6).shuffle(3, seed=2)
    pairs = [(int(one), int(other)) for one, other in Dataset.zip((dataset, dataset))]
    assert pairs == [(2, 0), (3, 2), (4, 1), (5, 5), (0, 3), (1, 4)]


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (0, [3, 7, 2, 8, 1, 6, 5, 4, 0]),
        (2**40, [1, 6, 4, 7, 2, 3, 5, 8, 0]),
        (-1, [7, 4, 2, 6, 1, 5, 3, 0, 8]),
    ],
)
def test_seeds_of_all_kinds(seed: int, expected: list[int]) -> None:
    assert values(Dataset.range(9).shuffle(9, seed=seed)) == expected


def test_without_a_seed_programs_differ() -> None:
    orders = {tuple(values(Dataset.range(20).shuffle(20))) for _ in range(3)}
    assert len(orders) == 3  # by chance 2 in 20! programs


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 2**32))
def test_a_shuffle_loses_nothing_and_looks_as_far_as_its_buffer(
    size: int, buffer_size: int, seed: int
) -> None:
    found = values(Dataset.range(size).shuffle(buffer_size, seed=seed))
    assert sorted(found) == list(range(size))
    assert all(number < place + buffer_size for place, number in enumerate(found))
