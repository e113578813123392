"""The input of a strategy: distributed datasets, and how their elements are placed on devices.

A replica's part of a batch is a view of the batch, and is copied to the replica's device alone.
Only a part with fewer rows than the largest part is copied on the host, to pad it with zeros. On
CPU every part is copied once, to aligned memory. Without this copy JAX would use the memory of the
part itself, and the device would see later changes of the source's buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, cast  # Any: datasets of all kinds

import jax
import numpy as np
from jax.sharding import Sharding

from graphdist.context import require_cross_replica
from graphdist.data.datasets_from_function import DistributedDatasetsFromFunction
from graphdist.data.distributed_dataset import DistributedDataset, PlaceParts
from graphdist.data.elements import Array
from graphdist.data.input_options import (
    InputContext,
    InputOptions,
    InputReplicationMode,
    checked_input_options,
)
from graphdist.data.prefetch import prefetch_depth
from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.runtime.devices import Devices
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    PerReplica,
    PerReplicaArray,
    Shapes,
    largest,
    unequal,
    wrong_type,
)

_ALIGNMENT = 64  # bytes: JAX uses the memory of such arrays without a copy
_PER_REPLICA = InputReplicationMode.PER_REPLICA


class InputMethods:
    """The methods of a strategy that distribute datasets."""

    devices: Devices
    is_default: bool
    has_input_per_replica = True
    """Whether each replica may have a dataset of its own."""

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset[Any]:
        """Return a dataset whose elements are `PerReplica`: each global batch split in order.

        `dataset` is a `gd.data.Dataset`, any other iterable of pytrees of arrays with a batch
        dimension, or a dataset of another library: see `docs/input.md`. Of a batch of b rows each
        of n replicas gets ceil(b / n) rows. The last replicas may get fewer rows, or none. Elements
        are prefetched to the devices. Outside every scope the dataset is returned unchanged. For
        type checkers annotate the type of elements: `gd.DistributedDataset[Batch]`.

        Raises `DatasetError` for a value that is no dataset, `UnsupportedError` for
        `InputReplicationMode.PER_REPLICA`, `ContextError` in replica context.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> for batch in strategy.experimental_distribute_dataset([np.arange(3)]):
        ...     print(batch.values)
        (Array([0, 1], dtype=int32), Array([2], dtype=int32))
        """
        require_cross_replica("experimental_distribute_dataset")
        options = checked_input_options(options)
        if self.is_default:
            return cast("DistributedDataset[Any]", dataset)
        if options.experimental_replication_mode is _PER_REPLICA:
            raise UnsupportedError(
                "experimental_distribute_dataset with InputReplicationMode.PER_REPLICA: "
                "one dataset cannot give each replica a dataset",
                source=here(),
                hint="use distribute_datasets_from_function",
            )
        strategy = cast("StrategyBase", self)
        return DistributedDataset(
            dataset,
            strategy,
            self._place(options),
            prefetch_depth(options.experimental_per_replica_buffer_size),
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDatasetsFromFunction[Any]:
        """Return a dataset made by a function; each of its elements is the batch of one replica.

        `dataset_fn(InputContext)` returns any dataset that `experimental_distribute_dataset` takes.
        The replicas get the elements of the dataset in turn, without a split. In
        `InputReplicationMode.PER_REPLICA` the function is called for each replica, and each replica
        iterates over its own dataset. If the elements end within a step, the replicas without an
        element get arrays without rows. Outside every scope the dataset is returned unchanged.

        Raises `DatasetError` if the function returns no dataset, `ArgumentError` for options that
        exclude each other, `UnsupportedError` if the strategy has no input per replica.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = strategy.distribute_datasets_from_function(
        ...     lambda context: [np.arange(2), np.arange(3)])
        >>> for batch in dataset:
        ...     print(batch.values)
        (Array([0, 1], dtype=int32), Array([0, 1, 2], dtype=int32))
        """
        require_cross_replica("distribute_datasets_from_function")
        options = checked_input_options(options)
        if not callable(dataset_fn):
            hint = "give a function of the InputContext that returns the dataset"
            raise wrong_type("dataset_fn", dataset_fn, "a function", hint)
        if self.is_default:
            return cast("DistributedDatasetsFromFunction[Any]", dataset_fn(InputContext()))
        contexts, depth = (
            self._input_contexts(options),
            prefetch_depth(options.experimental_per_replica_buffer_size),
        )
        strategy, place = cast("StrategyBase", self), self._place(options)
        return DistributedDatasetsFromFunction(dataset_fn, contexts, strategy, place, depth)

    def _input_contexts(self, options: InputOptions) -> list[InputContext]:
        """Return the arguments for the calls of a dataset function, one for each call."""
        count = len(self.devices)
        is_per_replica = options.experimental_replication_mode is _PER_REPLICA
        if is_per_replica and not self.has_input_per_replica:
            raise UnsupportedError(
                f"{self} has no input per replica",
                source=here(),
                hint="leave experimental_replication_mode out, or use MirroredStrategy",
            )
        if options.experimental_place_dataset_on_device and (
            not is_per_replica or options.experimental_fetch_to_device
        ):
            raise ArgumentError(
                "experimental_place_dataset_on_device needs PER_REPLICA and "
                "experimental_fetch_to_device=False",
                source=here(),
                hint="leave it out: elements are placed on the devices anyway",
            )
        if not is_per_replica:
            workers = self.devices.workers
            if workers is not None:
                return [InputContext(len(workers), workers.index, count)]
            return [InputContext(1, 0, count)]
        return [InputContext(count, replica, count) for replica in range(count)]

    def _place(self, options: InputOptions) -> PlaceParts:
        if not options.experimental_fetch_to_device:
            if self.devices.workers is not None:
                raise UnsupportedError(
                    "experimental_fetch_to_device=False with several workers: the host of each has "
                    "only its own rows",
                    source=here(),
                    hint="leave it out",
                )
            return left_on_host
        return partial(on_devices, cast("StrategyBase", self))


def left_on_host(parts: Sequence[Array]) -> Any:
    """Return the per-replica value of `parts`, which are copied but stay on the host."""
    copies = [np.array(part) for part in parts]
    return copies[0] if len(copies) == 1 else PerReplica(copies)


def on_devices(strategy: StrategyBase, parts: Sequence[Array], shapes: Shapes | None = None) -> Any:
    """Return the per-replica value of `parts`, each copied to its replica's device.

    `shapes` are the shapes on the replicas of all workers; None if there is only this worker.
    """
    devices = strategy.devices
    if shapes is None:
        shapes = tuple(part.shape for part in parts)
    shape, dtype = largest(shapes), jax.dtypes.canonicalize_dtype(parts[0].dtype)
    pad = _aligned if devices.platform == "cpu" else _padded
    padded = [pad(part, shape, dtype) for part in parts]
    if len(shapes) == 1 and devices.is_absent:
        return jax.ShapeDtypeStruct(shape, dtype)
    if len(shapes) == 1:
        return _placed(shape, devices.per_replica, lambda index: padded[0])
    rows, *inner = shape or (1,)  # scalars become the rows of one array

    def part_at(index: Any) -> Array:
        local_replica = index[0].start // rows - devices.local_replicas.start if rows else 0
        return padded[local_replica].reshape(rows, *inner)

    full_shape = (len(shapes) * rows, *inner)
    if devices.is_absent:
        array: Any = jax.ShapeDtypeStruct(full_shape, dtype)
    else:
        array = _placed(full_shape, devices.per_replica, part_at)
    return PerReplicaArray(array, strategy, shape, shapes=unequal(shapes))


def _placed(
    shape: tuple[int, ...], sharding: Sharding, part_at: Callable[[Any], Array]
) -> jax.Array:
    """Return an array of several parts, once all are copied and their source may change them.

    `part_at` returns the part of a device, for the slices of the array that the device holds.
    """
    # This takes a third of the time of a device_put for each part.
    return jax.make_array_from_callback(shape, sharding, part_at).block_until_ready()


def _padded(part: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return `part`, or a copy padded with zeros to `shape` if `part` is smaller."""
    if part.shape == shape:
        return np.asarray(part, dtype)
    copy = np.zeros(shape, dtype)
    copy[tuple(map(slice, part.shape))] = part
    return copy


def _aligned(part: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a copy padded with zeros, in aligned memory that JAX does not copy again."""
    size = dtype.itemsize * prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(shape)
    if part.shape != shape:
        copy[...] = 0
    copy[tuple(map(slice, part.shape))] = part
    return copy
