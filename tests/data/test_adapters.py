"""Datasets of other libraries: of the real ones where they are installed, else of their likes."""

from __future__ import annotations

import importlib
import warnings
from collections import UserDict
from collections.abc import Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import graphdist as gd

STRATEGY = ["cpu:0", "cpu:1"]


def distribute(dataset: Any) -> gd.DistributedDataset:
    return gd.MirroredStrategy(STRATEGY).experimental_distribute_dataset(dataset)


def is_distributed(leaf: Any) -> bool:
    return isinstance(leaf, gd.PerReplica)


def steps(dataset: gd.DistributedDataset) -> list[Any]:
    """Return the elements with lists of what each replica holds."""
    return [
        jax.tree.map(
            lambda value: [np.asarray(part).tolist() for part in value.values],
            element,
            is_leaf=is_distributed,
        )
        for element in dataset
    ]


def twice(dataset: Any) -> list[Any]:
    """Return the steps of a dataset that can be iterated again."""
    distributed = distribute(dataset)
    first = steps(distributed)
    assert steps(distributed) == first
    return first


def library(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what importing it does
        return importlib.import_module(name)


# Their likes: what the adapters know them by, and no more.


class Tensor:
    """A tensor of a library that shares NumPy's protocol."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._values


class DeviceTensor:
    """A tensor that is not in the host's memory."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise RuntimeError("it lies on device 3")


class Loader:
    """A loader like torch's: iterable again and again, lists of tensors, a length."""

    def __iter__(self) -> Iterator[Any]:
        yield [Tensor(np.arange(4)), Tensor(np.ones((4, 2), np.float32))]
        yield [Tensor(np.arange(3)), Tensor(np.ones((3, 2), np.float32))]

    def __len__(self) -> int:
        return 2


class LoaderWithoutLength(Loader):
    def __len__(self) -> int:
        raise TypeError("a stream has no length")


class Policy(Enum):
    OFF = -1


class Shape(tuple[int, ...]):
    @property
    def rank(self) -> int:
        return len(self)

    def as_list(self) -> list[int]:
        return list(self)


class DType(Enum):
    int64 = np.int64

    @property
    def as_numpy_dtype(self) -> Any:
        return self.value


class TensorFlowDataset:
    """A dataset like tf.data's."""

    @property
    def element_spec(self) -> Any:
        return {"x": SimpleNamespace(shape=Shape((4,)), dtype=DType.int64)}

    def as_numpy_iterator(self) -> Iterator[Any]:
        return iter([{"x": np.arange(4)}, {"x": np.arange(4, 8)}])

    def cardinality(self) -> Any:
        return np.int64(2)

    def options(self) -> Any:
        return SimpleNamespace(
            experimental_distribute=SimpleNamespace(auto_shard_policy=Policy.OFF)
        )


class HuggingFaceDataset:
    """A dataset like those of Hugging Face: Python lists, until it is asked for another format."""

    features = ("x",)

    def __init__(self, form: str = "python") -> None:
        self.form = form

    def with_format(self, form: str) -> HuggingFaceDataset:
        return HuggingFaceDataset(form)

    def __iter__(self) -> Iterator[Any]:
        for rows in ([1, 2, 3], [4]):
            yield {"x": np.array(rows) if self.form == "numpy" else rows}


def test_a_loader_of_tensors() -> None:
    assert twice(Loader()) == [
        [[[0, 1], [2, 3]], [[[1, 1], [1, 1]], [[1, 1], [1, 1]]]],
        [[[0, 1], [2]], [[[1, 1], [1, 1]], [[1, 1]]]],
    ]
    assert distribute(Loader()).cardinality == 2
    assert distribute(LoaderWithoutLength()).cardinality == gd.data.UNKNOWN_CARDINALITY


def test_a_dataset_of_tf_data() -> None:
    assert twice(TensorFlowDataset()) == [{"x": [[0, 1], [2, 3]]}, {"x": [[4, 5], [6, 7]]}]
    distributed = distribute(TensorFlowDataset())
    assert distributed.cardinality == 2
    assert distributed.element_spec == {"x": gd.PerReplicaSpec((2,), np.int32)}


def test_a_dataset_of_hugging_face() -> None:
    assert twice(HuggingFaceDataset()) == [{"x": [[1, 2], [3]]}, {"x": [[4], []]}]


def test_mappings_are_dicts() -> None:
    assert steps(distribute([UserDict(x=np.arange(2), y=UserDict(z=np.arange(2)))])) == [
        {"x": [[0], [1]], "y": {"z": [[0], [1]]}}
    ]


def test_a_length_without_end() -> None:
    class Repeated(Loader):
        def __len__(self) -> int:
            return 2**61

    assert distribute(Repeated()).cardinality == gd.data.INFINITE_CARDINALITY


def test_a_tensor_elsewhere() -> None:
    with pytest.raises(gd.ArgumentTypeError) as error:
        next(iter(distribute([{"x": DeviceTensor()}])))
    assert str(error.value).startswith(
        "element['x'] is a DeviceTensor that cannot be read as an array: it lies on device 3"
    )


# The libraries themselves.


def test_grain() -> None:
    grain = library("grain")
    batches = grain.MapDataset.range(6).batch(4)
    assert (
        twice(batches)
        == twice(batches.to_iter_dataset())
        == [
            [[0, 1], [2, 3]],
            [[4], [5]],
        ]
    )
    assert distribute(batches).cardinality == 2
    assert distribute(batches.repeat()).cardinality == gd.data.INFINITE_CARDINALITY
    pairs = grain.MapDataset.source([{"x": np.full(2, i), "y": i} for i in range(3)])
    assert twice(pairs.batch(2)) == [
        {"x": [[[0, 0]], [[1, 1]]], "y": [[0], [1]]},
        {"x": [[[2, 2]], []], "y": [[2], []]},
    ]
    loader = grain.DataLoader(
        data_source=grain.sources.RangeDataSource(0, 6, 1),
        sampler=grain.samplers.SequentialSampler(
            num_records=6, shard_options=grain.sharding.NoSharding()
        ),
        operations=[grain.transforms.Batch(4)],
        worker_count=0,
    )
    assert twice(loader) == [[[0, 1], [2, 3]], [[4], [5]]]


@pytest.mark.needs("torch")
def test_torch() -> None:
    torch = library("torch")
    from_tensors = torch.utils.data.TensorDataset(torch.arange(6), torch.ones(6, 1))
    loader = torch.utils.data.DataLoader(from_tensors, batch_size=4)
    assert twice(loader) == [
        [[[0, 1], [2, 3]], [[[1], [1]], [[1], [1]]]],
        [[[4], [5]], [[[1]], [[1]]]],
    ]
    assert distribute(loader).cardinality == 2
    with pytest.raises(gd.DatasetError, match="TensorDataset has no __iter__"):
        distribute(from_tensors)


def test_hugging_face() -> None:
    datasets = library("datasets")
    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 3, "y": [0, 1, 2]})
    expected = [
        {"x": [[[1, 2]], [[1, 2]]], "y": [[0], [1]]},
        {"x": [[[1, 2]], []], "y": [[2], []]},
    ]
    assert twice(rows.batch(2)) == expected
    assert twice(rows.to_iterable_dataset().batch(2)) == expected
    assert steps(distribute(rows.with_format("numpy").iter(2))) == expected
    with pytest.raises(gd.BatchDimensionError, match=r"element\['y'\] is a scalar"):
        next(iter(distribute(rows)))


@pytest.mark.needs("tensorflow")
def test_tensorflow() -> None:
    tf = library("tensorflow")
    batches = tf.data.Dataset.range(5).batch(4)
    assert twice(batches) == [[[0, 1], [2, 3]], [[4], []]]
    assert distribute(batches).element_spec == gd.PerReplicaSpec((None,), np.int32)
    assert distribute(batches.repeat()).cardinality == gd.data.INFINITE_CARDINALITY
    with pytest.raises(gd.BatchDimensionError):
        distribute(tf.data.Dataset.range(5))
    ragged = tf.data.Dataset.range(1, 4).map(lambda x: tf.fill([x], x)).ragged_batch(2)
    with pytest.raises(gd.ArgumentTypeError):
        next(iter(distribute(ragged)))
