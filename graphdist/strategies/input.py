"""How a strategy gets its input: distributed datasets, and where their elements are placed.

A replica's part of a batch is a view of it, which goes to the replica's device and nowhere else.
Only a part with fewer rows than the largest is copied on the way, to be padded with zeros. On CPU
every part is copied, once, to aligned memory of its own, which is then what the device has: JAX
takes over aligned NumPy arrays as they are, so that a device would see what a source does to its
buffer later.
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
from graphdist.data.transformations import PREFETCHED_BY_DEFAULT
from graphdist.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from graphdist.runtime.devices import Devices
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    PerReplica,
    PerReplicaArray,
    Shapes,
    largest,
    type_name,
    unequal,
)

_ALIGNMENT = 64  # bytes: what JAX takes over without a copy
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
        dimension, or a dataset of another library: see `docs/input.md`. Of a batch of b rows every
        replica gets ceil(b / n) until the batch is used up, and so maybe none. Elements are placed
        on the devices ahead of time. Outside every scope the dataset is returned as it is. Type
        checkers are told what elements are by an annotation: `gd.DistributedDataset[Batch]`.

        Raises `DatasetError` for anything but a dataset, `UnsupportedError` for
        `InputReplicationMode.PER_REPLICA`, `ContextError` in replica context.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> for batch in strategy.experimental_distribute_dataset([np.arange(3)]):
        ...     print(batch.values)
        (Array([0, 1], dtype=int32), Array([2], dtype=int32))
        """
        require_cross_replica("experimental_distribute_dataset")
        given = checked_input_options(options)
        if self.is_default:
            return cast("DistributedDataset[Any]", dataset)
        if given.experimental_replication_mode is _PER_REPLICA:
            raise UnsupportedError(
                "experimental_distribute_dataset with InputReplicationMode.PER_REPLICA: "
                "one dataset cannot be one for each replica",
                source=here(),
                hint="use distribute_datasets_from_function",
            )
        strategy = cast("StrategyBase", self)
        return DistributedDataset(dataset, strategy, self._place(given), _ahead(given))

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDatasetsFromFunction[Any]:
        """Return a dataset made by a function, each element of which is the batch of one replica.

        `dataset_fn(InputContext)` returns any dataset that `experimental_distribute_dataset` takes.
        Its elements go to the replicas in turn, as they are; in `InputReplicationMode.PER_REPLICA`
        it is called for each replica, which iterates its own. When the elements run out in the
        middle of a step, the other replicas get arrays with no rows. Outside every scope the
        dataset is returned as it is.

        Raises `DatasetError` when the function returns no dataset, `ArgumentError` for options that
        do not go together, `UnsupportedError` where a strategy has no input per replica.

        >>> import graphdist as gd
        >>> strategy = gd.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = strategy.distribute_datasets_from_function(
        ...     lambda context: [np.arange(2), np.arange(3)])
        >>> for batch in dataset:
        ...     print(batch.values)
        (Array([0, 1], dtype=int32), Array([0, 1, 2], dtype=int32))
        """
        require_cross_replica("distribute_datasets_from_function")
        given = checked_input_options(options)
        if not callable(dataset_fn):
            raise ArgumentTypeError(
                f"dataset_fn is of type {type_name(dataset_fn)}, not a function",
                source=here(),
                hint="give a function of the InputContext that returns the dataset",
            )
        if self.is_default:
            return cast("DistributedDatasetsFromFunction[Any]", dataset_fn(InputContext()))
        contexts = self._input_contexts(given)
        strategy, place = cast("StrategyBase", self), self._place(given)
        return DistributedDatasetsFromFunction(dataset_fn, contexts, strategy, place, _ahead(given))

    def _input_contexts(self, options: InputOptions) -> list[InputContext]:
        """Return what the calls of a dataset function are given."""
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
                "experimental_place_dataset_on_device goes with PER_REPLICA and "
                "experimental_fetch_to_device=False alone",
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
                    "experimental_fetch_to_device=False with several workers: on the host each "
                    "has its own rows alone",
                    source=here(),
                    hint="leave it out",
                )
            return left_on_host
        return partial(on_devices, cast("StrategyBase", self))


def _ahead(options: InputOptions) -> int:
    size = options.experimental_per_replica_buffer_size
    return PREFETCHED_BY_DEFAULT if size == -1 else size


def left_on_host(parts: Sequence[Array]) -> Any:
    """Return the value of which the replicas have these parts, in copies on the host."""
    copies = [np.array(part) for part in parts]
    return copies[0] if len(copies) == 1 else PerReplica(copies)


def on_devices(strategy: StrategyBase, parts: Sequence[Array], shapes: Shapes | None = None) -> Any:
    """Return the value of which the replicas have these parts, each on its replica's device.

    Where other workers have replicas too, `shapes` are the shapes of all parts. The value does
    not change when the parts do.
    """
    devices = strategy.devices
    if shapes is None:
        shapes = tuple(part.shape for part in parts)
    shape, dtype = largest(shapes), jax.dtypes.canonicalize_dtype(parts[0].dtype)
    lay_out = _aligned if devices.platform == "cpu" else _padded
    laid_out = [lay_out(part, shape, dtype) for part in parts]
    if len(shapes) == 1 and devices.is_absent:
        return jax.ShapeDtypeStruct(shape, dtype)
    if len(shapes) == 1:
        return _placed(shape, devices.per_replica, lambda index: laid_out[0])
    rows, *inner = shape or (1,)  # scalars are the rows of one array

    def part_at(index: Any) -> Array:
        place = index[0].start // rows - devices.local_replicas.start if rows else 0
        return laid_out[place].reshape(rows, *inner)

    full_shape = (len(shapes) * rows, *inner)
    if devices.is_absent:
        array: Any = jax.ShapeDtypeStruct(full_shape, dtype)
    else:
        array = _placed(full_shape, devices.per_replica, part_at)
    return PerReplicaArray(array, strategy, shape, shapes=unequal(shapes))


def _placed(
    shape: tuple[int, ...], sharding: Sharding, part_at: Callable[[Any], Array]
) -> jax.Array:
    """Return the array of these parts, once it is there: the source may write to them then.

    `part_at` is given the slices of the array that a device holds.
    """
    # A third of the time of device_put, which does the same part by part.
    return jax.make_array_from_callback(shape, sharding, part_at).block_until_ready()


def _padded(part: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the part itself or, where it is smaller, a copy padded with zeros to a shape."""
    if part.shape == shape:
        return np.asarray(part, dtype)
    copy = np.zeros(shape, dtype)
    copy[tuple(map(slice, part.shape))] = part
    return copy


def _aligned(part: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a copy at an address that JAX takes over, padded with zeros to a shape."""
    size = dtype.itemsize * prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(shape)
    if part.shape != shape:
        copy[...] = 0
    copy[tuple(map(slice, part.shape))] = part
    return copy
