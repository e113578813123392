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

Where there are several workers, a dataset that can read a part of itself is read in parts; one that
the program has divided is taken as divided; all workers read any other (`source_of_worker`).
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple  # Any: datasets of all kinds

import jax
import numpy as np

from graphdist.data.dataset import Dataset
from graphdist.data.dataset_parts import DatasetParts
from graphdist.data.elements import UNKNOWN
from graphdist.data.input_options import AutoShardPolicy
from graphdist.data.other_datasets import OtherDataset, Parts
from graphdist.data.sources import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    DatasetNode,
    Description,
)
from graphdist.data.worker_input import has_part_for_each, part_of_worker, sharded_for_worker
from graphdist.errors import DatasetError
from graphdist.runtime.devices import Devices
from graphdist.values.distributed import type_name
from graphdist.values.specs import ArraySpec

_log = logging.getLogger("graphdist")
_NO_END = 2**48
"""A dataset of this length or more has no end: the length of grain's endless datasets is
`sys.maxsize`, divided by the size of a batch."""


class DatasetSource(NamedTuple):
    """A dataset to distribute.

    `declares`: whether the dataset describes its elements; if it does not, all elements must be
    like the first.
    """

    node: DatasetNode
    policy: AutoShardPolicy = AutoShardPolicy.AUTO
    declares: bool = False


def dataset_source(dataset: Any) -> DatasetSource:
    """Return a dataset as a source; raises `DatasetError` for anything else."""
    if isinstance(dataset, Dataset):
        return _of_dataset(dataset)
    if hasattr(dataset, "as_numpy_iterator") and hasattr(dataset, "element_spec"):
        return _of_tf_data(dataset)
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
    return DatasetSource(other_dataset(dataset))


def source_of_worker(dataset: Any, devices: Devices) -> DatasetSource:
    """Return the part of a dataset that this worker reads; all workers call it together."""
    source = dataset_source(part_of_worker(dataset, devices))
    if not isinstance(source.node, OtherDataset) or source.policy is not AutoShardPolicy.AUTO:
        return source
    if _is_divided(dataset, devices):
        return source._replace(policy=AutoShardPolicy.OFF)
    parts = source.node.parts
    if parts is None:
        return source
    if not has_part_for_each(parts.most, f"{parts.most} parts of a {type_name(dataset)}", devices):
        return source
    node = DatasetParts(source.node, devices.num_pipelines, (devices.pipeline,))
    return source._replace(node=node)


def _is_divided(dataset: Any, devices: Devices) -> bool:
    """Return whether the program has divided a dataset among the workers.

    Programs divide datasets by `split_dataset_by_node` of Hugging Face, or by torch's
    `DistributedSampler`.
    """
    if getattr(dataset, "_distributed", None) is not None and hasattr(dataset, "with_format"):
        return True
    sampler = getattr(dataset, "sampler", None)
    place = (getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None))
    return place == (devices.num_pipelines, devices.pipeline)


def other_dataset(dataset: Any, *, as_it_is: bool = False) -> OtherDataset:
    """Return an iterable as a source; `as_it_is` keeps the format of its elements."""
    has_state = not _has_buffer(getattr(dataset, "_ex_iterable", None))
    if not has_state:
        _log.info(
            "the rows in a shuffle buffer are not in the state of a %s: a position in it is the "
            "number of elements, which are read again and dropped",
            type_name(dataset),
        )
    declared = Description(cardinality=_length(dataset))
    opened = partial(_iterable_of, dataset, as_it_is)
    return OtherDataset(dataset, declared, opened, _parts(dataset), has_state)


def _has_buffer(node: Any) -> bool:
    """Return whether a stream of Hugging Face has a shuffle buffer.

    The state of such a stream does not have the rows in the buffer.
    """
    kind = type(node).__name__
    if not kind.endswith("ExamplesIterable"):
        return False
    if kind.startswith("BufferShuffled") and node.buffer_size > 1:
        return True
    sources = [getattr(node, "ex_iterable", None), *getattr(node, "ex_iterables", ())]
    return any(map(_has_buffer, sources))


def _iterable_of(dataset: Any, as_it_is: bool) -> Any:
    """Return the iterable of an iteration; `as_it_is` keeps the format of its elements.

    All iterations of a stream of Hugging Face have one state, and all start at a state that was
    set. So each iteration gets a new stream: shard 0 of 1.
    """
    if not _is_hugging_face(dataset):
        return dataset
    opened = dataset
    if not _has_rows(dataset) and _takes_a_shard(dataset):
        opened = _with_epoch_of(dataset, dataset.shard(num_shards=1, index=0))
    return opened if as_it_is else _with_epoch_of(dataset, opened.with_format("numpy"))


def _with_epoch_of(dataset: Any, made: Any) -> Any:
    """Return `made`, which was made of a dataset, with the epoch of the dataset.

    The epoch decides the order of the elements.
    """
    if hasattr(made, "set_epoch"):
        made.set_epoch(dataset.epoch)
    return made


def _is_hugging_face(dataset: Any) -> bool:
    return hasattr(dataset, "with_format") and hasattr(dataset, "features")


def _has_rows(dataset: Any) -> bool:
    """Return whether a dataset of Hugging Face has rows by index, unlike a stream."""
    return hasattr(dataset, "select")


def _parts(dataset: Any) -> Parts | None:
    """Return how a dataset reads a part of itself; None if it cannot.

    grain's `MapDataset` and Hugging Face's datasets in files can read any element by its index. A
    streaming dataset of Hugging Face has shards, which earlier versions do not count. Any object
    with a method `shard` that takes `num_shards` and `index` has shards, too.
    """
    part = partial(_part, dataset)
    is_streaming = _is_hugging_face(dataset) and not _has_rows(dataset)
    if _is_map_dataset(dataset) or (_is_hugging_face(dataset) and not is_streaming):
        return Parts(len(dataset), part, starts_anywhere=not _is_filtered(dataset))
    most = getattr(dataset, "num_shards", None if is_streaming else _NO_END)
    return Parts(most, part) if most is not None and _takes_a_shard(dataset) else None


def _part(dataset: Any, count: int, index: int, start: int) -> OtherDataset:
    """Return part `index` of `count` of the elements of a dataset from element `start` on."""
    if _is_map_dataset(dataset):
        return other_dataset(dataset[start + index :: count])
    if not _is_hugging_face(dataset):
        return other_dataset(dataset.shard(num_shards=count, index=index))
    if _has_rows(dataset):
        part = dataset.skip(start).shard(num_shards=count, index=index, contiguous=False)
    elif dataset.num_shards % count:
        part = dataset.shard(num_shards=count, index=index, contiguous=False)
    else:
        library = type(dataset).__module__.partition(".")[0]
        split = importlib.import_module(f"{library}.distributed").split_dataset_by_node
        part = split(dataset, rank=index, world_size=count)
    return other_dataset(_with_epoch_of(dataset, part))


def _is_map_dataset(dataset: Any) -> bool:
    """Return whether a dataset is a `MapDataset` of grain."""
    return hasattr(dataset, "to_iter_dataset") and hasattr(dataset, "__getitem__")


def _is_filtered(dataset: Any) -> bool:
    """Return whether a dataset of grain leaves indices out, so that they do not count elements."""
    parents = getattr(dataset, "parents", ())
    return type(dataset).__name__.startswith("Filter") or any(map(_is_filtered, parents))


def _takes_a_shard(dataset: Any) -> bool:
    try:
        parameters = inspect.signature(dataset.shard).parameters
    except (AttributeError, TypeError, ValueError):
        return False
    return {"num_shards", "index"} <= set(parameters)


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
    """Return a TensorFlow spec as an `ArraySpec`; UNKNOWN if it has no dtype or an open rank."""
    rank = getattr(getattr(spec, "shape", None), "rank", None)
    if rank is None or not hasattr(spec, "dtype"):
        return UNKNOWN
    return ArraySpec(spec.shape.as_list(), spec.dtype.as_numpy_dtype)


def _length(dataset: Any) -> int:
    """Return the number of elements of an iterable; `UNKNOWN_CARDINALITY` if it has no length."""
    try:
        length = len(dataset)
    except (TypeError, NotImplementedError):
        return UNKNOWN_CARDINALITY
    return INFINITE_CARDINALITY if length >= _NO_END else length
