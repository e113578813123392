"""What each of several workers sees of a dataset, and how many rows."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphdist as gd
from graphdist.data import SHARD_HINT, AutoShardPolicy, Dataset, auto_shard, batch_sizes_for_worker

OFF, AUTO, FILE, DATA, HINT = AutoShardPolicy


def seen(dataset: Dataset, policy: AutoShardPolicy, workers: int = 2) -> list[Any]:
    """Return what each worker iterates."""
    return [
        [element.tolist() for element in auto_shard(dataset, workers, worker, policy)]
        for worker in range(workers)
    ]


def files(folder: Path, count: int, lines: int = 2) -> Dataset:
    paths = [folder / f"{number}.txt" for number in range(count)]
    for number, path in enumerate(paths):
        path.write_text("".join(f"{number}_{line}\n" for line in range(lines)))
    return Dataset.from_files(paths).batch(2)


@pytest.mark.parametrize("policy", [AUTO, DATA])
def test_by_element(policy: AutoShardPolicy) -> None:
    assert seen(Dataset.range(7).batch(2), policy) == [[[0, 1], [4, 5]], [[2, 3], [6]]]
    assert seen(Dataset.range(5), policy) == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("policy", [AUTO, FILE])
def test_by_file(policy: AutoShardPolicy, tmp_path: Path) -> None:
    expected = [[["0_0", "0_1"], ["2_0", "2_1"]], [["1_0", "1_1"], ["3_0", "3_1"]]]
    assert seen(files(tmp_path, 4), policy) == expected
    with pytest.raises(gd.ArgumentError, match="2 workers share 1 file: some would have no"):
        seen(files(tmp_path, 1), policy)


def test_one_file_by_element(tmp_path: Path) -> None:
    assert seen(files(tmp_path, 1, lines=4), DATA) == [[["0_0", "0_1"]], [["0_2", "0_3"]]]


def test_by_file_through_other_transformations(tmp_path: Path) -> None:
    lines = files(tmp_path, 2).unbatch().map(len)
    dataset = Dataset.zip(lines.concatenate(lines), Dataset.range(9)).map(lambda size, i: i + size)
    assert seen(dataset, FILE) == [[3, 4, 5, 6], [3, 4, 5, 6]]


@pytest.mark.parametrize("policy", [OFF, HINT])
def test_all_for_everyone(policy: AutoShardPolicy) -> None:
    assert seen(Dataset.range(3), policy) == [[0, 1, 2], [0, 1, 2]]


def test_as_the_dataset_says() -> None:
    hinted = Dataset.range(8).shard(SHARD_HINT, SHARD_HINT).batch(2)
    assert seen(hinted, HINT) == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    for policy in (AUTO, DATA, OFF):
        with pytest.raises(gd.ArgumentError, match="has not been told how many shards"):
            seen(hinted, policy)


def test_the_policy_is_by_default_that_of_the_options() -> None:
    options = gd.data.Options()
    options.experimental_distribute.auto_shard_policy = OFF
    dataset = Dataset.range(2).with_options(options)
    assert [int(x) for x in auto_shard(dataset, 2, 1)] == [0, 1]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_worker_that_is_not_there(index: int) -> None:
    with pytest.raises(gd.ArgumentError, match=f"worker {index} of 2"):
        auto_shard(Dataset.range(2), 2, index)


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 5))
def test_every_element_goes_to_one_worker(size: int, batch: int, workers: int) -> None:
    batches = Dataset.range(size).batch(batch)
    parts = seen(batches, AUTO, workers)
    together = sorted(row for part in parts for element in part for row in element)
    assert together == list(range(size))


@pytest.mark.parametrize(
    ("global_batch", "workers", "replicas", "expected"),
    [
        (7, 2, 2, [[2, 2, 2, 1], [2, 1, 2, 2]]),
        (8, 2, 2, [[2, 2, 2, 2], [2, 2, 2, 2]]),
        (10, 4, 1, [[3, 3, 2, 2], [3, 2, 2, 3], [2, 2, 3, 3], [2, 3, 3, 2]]),
        (1, 2, 1, [[1, 0], [0, 1]]),
        (5, 1, 4, [[2, 1, 1, 1]]),
    ],
)
def test_batch_sizes_for_worker(
    global_batch: int, workers: int, replicas: int, expected: list[list[int]]
) -> None:
    assert [
        batch_sizes_for_worker(global_batch, workers, replicas, worker) for worker in range(workers)
    ] == expected


@given(st.integers(0, 50), st.integers(1, 5), st.integers(1, 5))
def test_the_replicas_of_a_step_make_up_the_global_batch(
    global_batch: int, workers: int, replicas: int
) -> None:
    sizes = [
        batch_sizes_for_worker(global_batch, workers, replicas, worker) for worker in range(workers)
    ]
    for step in range(workers):
        first = step * replicas
        assert sum(sum(one[first : first + replicas]) for one in sizes) == global_batch
