"""`element_spec` of distributed datasets: what it says, and that a function is traced with it."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd
from graphdist.data import Dataset


def replicas(count: int) -> gd.Strategy:
    if count == 1:
        return gd.OneDeviceStrategy("cpu:0")
    return gd.MirroredStrategy([f"cpu:{index}" for index in range(count)])


def distribute(source: Any, count: int = 2) -> gd.DistributedDataset:
    return replicas(count).experimental_distribute_dataset(source)


def first_rows(dataset: Any) -> list[Any]:
    """Return what replica 0 holds of each element."""
    return [np.asarray(element.values[0]).tolist() for element in dataset]


def batches(count: int, size: int = 4) -> list[Any]:
    return list(np.arange(count * size).reshape(count, size))


def spec(shape: tuple[int | None, ...], dtype: Any = np.int32) -> gd.PerReplicaSpec:
    return gd.PerReplicaSpec(shape, dtype)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Dataset.range(8).batch(4), spec((None,))),
        (Dataset.range(8).batch(4, drop_remainder=True), spec((2,))),
        (Dataset.range(10).batch(5, drop_remainder=True), spec((None,))),
        (Dataset.range(0).batch(4), spec((None,))),
        (Dataset.range(8).batch(4, drop_remainder=True).map(lambda x: x * 2), spec((2,))),
        (Dataset.range(8).batch(4).map(lambda x: x * 2), spec((None,))),
        ([np.zeros((4, 3), np.float32)], spec((None, 3), np.float32)),
    ],
)
def test_element_spec(source: Any, expected: gd.PerReplicaSpec) -> None:
    dataset = distribute(source)
    assert dataset.element_spec == expected
    assert iter(dataset).element_spec == expected


def test_element_spec_has_the_structure_of_elements() -> None:
    dataset = distribute([(np.zeros((4, 3), np.float32), {"label": np.zeros(4, np.int64)})])
    assert dataset.element_spec == (spec((None, 3), np.float32), {"label": spec((None,))})


def test_one_replica_has_plain_specs() -> None:
    assert distribute(batches(1), 1).element_spec == gd.ArraySpec((None,), np.dtype(np.int32))
    whole = Dataset.range(8).batch(4, drop_remainder=True)
    assert distribute(whole, 1).element_spec == jax.ShapeDtypeStruct((4,), np.int32)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("size", [4, 5])
def test_a_function_can_be_traced_with_the_spec(count: int, size: int) -> None:
    strategy = replicas(count)

    @gd.function
    def mean(batch: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(lambda x: x * 2, args=(batch,)), axis=0)

    dataset = strategy.experimental_distribute_dataset([np.arange(size, dtype=np.float32)])
    by_spec = mean.trace(dataset.element_spec).lower().as_text("graph")
    (batch,) = dataset
    assert by_spec == mean.trace(batch).lower().as_text("graph")
    assert mean(batch) == size - 1


@pytest.mark.parametrize("make", [list, iter])
def test_element_spec_loses_no_element(make: Callable[[list[Any]], Any]) -> None:
    dataset = distribute(make(batches(3)))
    assert dataset.element_spec == dataset.element_spec == spec((None,))
    assert first_rows(dataset) == [[0, 1], [4, 5], [8, 9]]


def test_element_spec_of_an_iterator_of_a_generator_loses_no_element() -> None:
    iterator = iter(distribute(iter(batches(2))))
    assert iterator.element_spec == spec((None,))
    assert first_rows(iterator) == [[0, 1], [4, 5]]
    assert iterator.element_spec == spec((None,))


def test_nothing_is_read_before_it_is_asked_for() -> None:
    def fail() -> Iterator[Any]:
        raise AssertionError
        yield

    distribute(fail())


@pytest.mark.parametrize("make", [list, iter])
def test_an_empty_dataset_that_declares_nothing_has_no_element_spec(
    make: Callable[[list[Any]], Any],
) -> None:
    dataset = distribute(make([]))
    for _ in range(2):
        with pytest.raises(ValueError, match="an empty dataset has no element_spec"):
            _ = dataset.element_spec
    assert list(dataset) == []
