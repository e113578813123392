"""The methods of strategies that distribute datasets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast  # Any: datasets of all kinds

import numpy as np

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
from graphdist.strategy_base import StrategyBase
from graphdist.values.components import on_devices
from graphdist.values.distributed import PerReplica, wrong_type

_PER_REPLICA = InputReplicationMode.PER_REPLICA


class InputMethods(StrategyBase):
    """The methods of a strategy that distribute datasets."""

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
                hint="use distribute_datasets_from_function",
            )
        depth = prefetch_depth(options.experimental_per_replica_buffer_size)
        return DistributedDataset(dataset, self, self._place(options), depth)

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
        depth = prefetch_depth(options.experimental_per_replica_buffer_size)
        contexts, place = self._input_contexts(options), self._place(options)
        return DistributedDatasetsFromFunction(dataset_fn, contexts, self, place, depth)

    def _input_contexts(self, options: InputOptions) -> list[InputContext]:
        """Return the arguments for the calls of a dataset function, one for each call."""
        count = len(self.devices)
        is_per_replica = options.experimental_replication_mode is _PER_REPLICA
        if is_per_replica and not self.has_input_per_replica:
            raise UnsupportedError(
                f"{self} has no input per replica",
                hint="leave experimental_replication_mode out, or use MirroredStrategy",
            )
        if options.experimental_place_dataset_on_device and (
            not is_per_replica or options.experimental_fetch_to_device
        ):
            raise ArgumentError(
                "experimental_place_dataset_on_device needs PER_REPLICA and "
                "experimental_fetch_to_device=False",
                hint="leave it out: elements are placed on the devices anyway",
            )
        if is_per_replica:
            return [InputContext(count, replica, count) for replica in range(count)]
        return [InputContext(self.devices.num_pipelines, self.devices.pipeline, count)]

    def _place(self, options: InputOptions) -> PlaceParts:
        if not options.experimental_fetch_to_device:
            if self.devices.workers is not None:
                raise UnsupportedError(
                    "experimental_fetch_to_device=False with several workers: the host of each has "
                    "only its own rows",
                    hint="leave it out",
                )
            return left_on_host
        return partial(on_devices, self)


def left_on_host(parts: Sequence[Array]) -> Any:
    """Return the per-replica value of `parts`, which are copied but stay on the host."""
    copies = [np.array(part) for part in parts]
    return copies[0] if len(copies) == 1 else PerReplica(copies)
