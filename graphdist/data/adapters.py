"""The datasets that can be distributed, recognized by their attributes.

No other library is imported. A dataset is recognized as one of these, in this order:

* `gd.data.Dataset`;
* tf.data, by `as_numpy_iterator` and `element_spec`;
* a Hugging Face dataset, by `with_format` and `features`: it is asked for NumPy arrays. Its
  elements are examples unless it was batched with its own `batch(...)`;
* any other iterable of batches: grain's datasets and loaders, torch's `DataLoader`, lists,
  generators. Its leaves are values that `numpy.asarray` takes, including tensors in the host's
  memory.

Every iteration asks the source for a new iterator. A generator has only one iterator, so it can be
iterated once. A second attempt is an error: it would look like an empty epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple  # Any: datasets of all kinds

import jax
import numpy as np

from graphdist.data.dataset import Dataset
from graphdist.data.elements import UNKNOWN, Element
from graphdist.data.failures import caught
from graphdist.data.input_options import AutoShardPolicy
from graphdist.data.sources import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    DatasetNode,
    Description,
)
from graphdist.data.worker_input import sharded_for_worker
from graphdist.errors import ArgumentError, DatasetError
from graphdist.values.distributed import type_name
from graphdist.values.specs import ArraySpec

_NO_END = 2**48
"""A length from here on means no end: grain's is `sys.maxsize`, divided by the size of a batch."""


class DatasetSource(NamedTuple):
    """A dataset to distribute.

    `declares`: whether the dataset describes its elements; if it does not, all elements must be
    like the first.
    """

    node: DatasetNode
    policy: AutoShardPolicy = AutoShardPolicy.AUTO
    declares: bool = False


@dataclass(eq=False)
class OtherDataset(DatasetNode):
    """The elements of a dataset of another library, or of any iterable."""

    dataset: Any
    declared: Description
    iterate: Callable[[], Iterator[Element]]
    _is_used_up: bool = False
    """Whether the only iterator was handed out."""

    def __iter__(self) -> Iterator[Element]:
        if self._is_used_up:
            raise ArgumentError(
                f"a {type_name(self.dataset)} can be iterated once, and this one was",
                hint="distribute a list, or an object whose __iter__ starts again",
            )
        elements = self.iterate()
        self._is_used_up = elements is self.dataset
        return caught(lambda: elements)

    @property
    def description(self) -> Description:
        """Return what the dataset declares."""
        return self.declared


def dataset_source(dataset: Any) -> DatasetSource:
    """Return a dataset as a source; raises `DatasetError` for anything else."""
    if isinstance(dataset, Dataset):
        return _of_dataset(dataset)
    if hasattr(dataset, "as_numpy_iterator") and hasattr(dataset, "element_spec"):
        return _of_tf_data(dataset)
    if hasattr(dataset, "with_format") and hasattr(dataset, "features"):
        dataset = dataset.with_format("numpy")
    kind = type_name(dataset)
    if isinstance(dataset, Mapping | str | bytes | np.ndarray | jax.Array):
        raise DatasetError(
            f"a dataset is an iterable of batches, and this {kind} would be a single one",
            hint="distribute a list of batches, [batch] if there is one",
        )
    if not isinstance(dataset, Iterable):
        raise DatasetError(
            f"a dataset is an iterable of batches, and {kind} has no __iter__",
            hint="distribute a list of batches, or an object whose __iter__ gives them",
        )
    declared = Description(cardinality=_length(dataset))
    return DatasetSource(OtherDataset(dataset, declared, partial(iter, dataset)))


def _of_dataset(dataset: Dataset) -> DatasetSource:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    node = dataset.node
    if policy is AutoShardPolicy.HINT:
        node = sharded_for_worker(node, 1, 0, policy)
    return DatasetSource(node, policy, declares=True)


def _of_tf_data(dataset: Any) -> DatasetSource:
    spec = jax.tree.map(_array_spec, dataset.element_spec)
    is_known = not any(leaf is UNKNOWN for leaf in jax.tree.leaves(spec))
    declared = Description(spec if is_known else UNKNOWN, int(dataset.cardinality()))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return DatasetSource(
        OtherDataset(dataset, declared, dataset.as_numpy_iterator),
        AutoShardPolicy[getattr(policy, "name", "AUTO")],
        declares=True,
    )


def _array_spec(spec: Any) -> Any:
    """Return a TensorFlow spec as an `ArraySpec`; UNKNOWN for no array and for an open rank."""
    rank = getattr(getattr(spec, "shape", None), "rank", None)
    if rank is None or not hasattr(spec, "dtype"):
        return UNKNOWN
    return ArraySpec(spec.shape.as_list(), spec.dtype.as_numpy_dtype)


def _length(dataset: Any) -> int:
    """Return the number of elements of an iterable, `UNKNOWN_CARDINALITY` if it has no length."""
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        return UNKNOWN_CARDINALITY
    return INFINITE_CARDINALITY if length >= _NO_END else length
