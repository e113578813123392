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

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any  # Any: datasets of all kinds

import jax
import numpy as np

from graphdist.data.autosharding import sharded_for_worker
from graphdist.data.dataset import Dataset
from graphdist.data.elements import UNKNOWN, Element, Flat
from graphdist.data.failures import caught
from graphdist.data.input_options import AutoShardPolicy
from graphdist.data.sources import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY, Batching, DatasetNode
from graphdist.data.transformations import observed_spec
from graphdist.errors import ArgumentError, DatasetError
from graphdist.values.distributed import type_name
from graphdist.values.specs import ArraySpec

_NO_END = 2**48
"""A length from here on means no end: grain's is `sys.maxsize`, divided by the size of a batch."""


@dataclass
class DatasetSource:
    """A dataset to distribute, with what it declares.

    `element_spec` is a pytree of `ArraySpec`, or UNKNOWN. `batching` is None where elements are not
    known to be batches. `declares`: whether the dataset describes its elements; if it does not, all
    elements must be like the first.
    """

    elements: Iterable[Element]
    element_spec: Any = UNKNOWN
    cardinality: int = UNKNOWN_CARDINALITY
    policy: AutoShardPolicy = AutoShardPolicy.AUTO
    batching: Batching | None = None
    declares: bool = False
    _is_used_up: bool = False

    @property
    def is_used_up(self) -> bool:
        """Return whether the only iterator was handed out."""
        return self._is_used_up

    def iterate(self, elements: Any, start: int = 0) -> Iterator[Element]:
        """Return an iterator from element `start` on, with `FailedElement` for those that fail.

        `elements` are the nodes of the iteration, or the dataset of another library. Raises
        `ArgumentError` if the only iterator was handed out before.
        """
        if self._is_used_up:
            raise ArgumentError(
                f"a {type_name(self.elements)} can be iterated once, and this one was",
                hint="distribute a list, or an object whose __iter__ starts again",
            )
        if isinstance(elements, DatasetNode):
            return elements.elements_from(start)
        own = iter(elements)
        self._is_used_up = own is elements
        return islice(caught(lambda: own), start, None)

    def describe(self, first: Flat) -> Any:
        """Return the declared specs of the elements, or else the specs of the first."""
        if self.element_spec is not UNKNOWN:
            return self.element_spec
        batching = self.batching or Batching()
        return observed_spec([jax.tree.unflatten(first.structure, first.arrays)], batching)


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
    return DatasetSource(dataset, cardinality=_length(dataset))


def _of_dataset(dataset: Dataset) -> DatasetSource:
    policy = dataset.options().experimental_distribute.auto_shard_policy
    node = dataset.node
    if policy is AutoShardPolicy.HINT:
        node = sharded_for_worker(node, 1, 0, policy)
    return DatasetSource(
        node, node.element_spec, node.cardinality, policy, node.batching, declares=True
    )


@dataclass(frozen=True)
class _NumpyElements:
    """The elements of a dataset of tf.data, as NumPy arrays."""

    dataset: Any

    def __iter__(self) -> Iterator[Element]:
        return self.dataset.as_numpy_iterator()


def _of_tf_data(dataset: Any) -> DatasetSource:
    spec = jax.tree.map(_array_spec, dataset.element_spec)
    is_known = not any(leaf is UNKNOWN for leaf in jax.tree.leaves(spec))
    policy = dataset.options().experimental_distribute.auto_shard_policy
    return DatasetSource(
        _NumpyElements(dataset),
        spec if is_known else UNKNOWN,
        int(dataset.cardinality()),
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
