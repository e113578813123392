"""The cores of a replica, as `tf.distribute.TPUStrategy` names them: its logical devices.

A strategy with `cores_per_replica=k` runs each replica on k devices. The methods here ask for the
layout of one value. What they do not name follows (`graphdist.passes.cores.split_over_cores`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any  # Any: arrays and tracers

from graphdist.context import in_replica_context_of_a_run, require_same_strategy
from graphdist.errors import ArgumentError, ContextError
from graphdist.runtime.devices import Devices
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.primitives import split_over_cores_p
from graphdist.values.distributed import checked_array


class LogicalDevices(StrategyBase):
    """The methods of a strategy that split values over the cores of a replica."""

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Return the tensor, which every core of the replica has in full.

        Raises `ArgumentError` for a core that a replica does not have, `ContextError` outside of a
        replica function.
        """
        _require_replica("experimental_assign_to_logical_device")
        _require_core(logical_device_id, self.devices.num_cores)
        return self._split(tensor, None)

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Return the tensor, which the cores of the replica hold in shards.

        `partition_dimensions` has the number of parts along each dimension. All cores shard one
        dimension, that of the most parts that they divide: parts along several dimensions are no
        other values. Each core has the full tensor if they divide none.

        Raises `ArgumentError` unless there is a number for each dimension of the tensor, their
        product is the number of cores, and each divides its dimension; `ContextError` outside of a
        replica function.
        """
        _require_replica("experimental_split_to_logical_devices")
        tensor = checked_array(tensor, "the tensor is")
        shape, cores = tensor.shape, self.devices.num_cores
        parts = _checked_parts(partition_dimensions, shape, cores)
        divided = [i for i, count in enumerate(parts) if count > 1 and shape[i] % cores == 0]
        return self._split(tensor, max(divided, key=parts.__getitem__, default=None))

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Return the tensor, which every core of the replica has in full.

        Raises `ContextError` outside of a replica function.
        """
        _require_replica("experimental_replicate_to_logical_devices")
        return self._split(tensor, None)

    def _split(self, tensor: Any, axis: int | None) -> Any:
        require_same_strategy(self, "a split over logical devices")
        tensor = checked_array(tensor, "the tensor is")
        cores = self.devices.num_cores
        if cores == 1:
            return tensor
        return split_over_cores_p.bind(tensor, axis=axis, num_cores=cores)


def _checked_parts(given: Any, shape: tuple[int, ...], cores: int) -> list[int]:
    try:
        parts = [operator.index(count) for count in given]
    except TypeError as error:
        raise ArgumentError(
            f"partition_dimensions is {given!r}, not a sequence of integers",
            hint="give a number of parts for each dimension, such as [1, 2]",
        ) from error
    if len(parts) != len(shape):
        raise ArgumentError(
            f"partition_dimensions has {len(parts)} numbers for a tensor of {len(shape)} dimensions"
        )
    if min(parts, default=1) < 1 or prod(parts) != cores:
        raise ArgumentError(
            f"partition_dimensions {parts} makes {prod(parts)} parts, but a replica has "
            f"{_count(cores)}",
            hint="make as many parts as cores; cores_per_replica of the strategy says how many",
        )
    for axis, (count, size) in enumerate(zip(parts, shape, strict=True)):
        if size % count:
            raise ArgumentError(
                f"partition_dimensions {parts} makes {count} parts of dimension {axis} of a tensor "
                f"of shape {list(shape)}, which has {size} elements"
            )
    return parts


@contextmanager
def logical_device(devices: Devices, logical_device_id: int) -> Iterator[None]:
    """Check that a replica has this core; variables are on all cores, so on this one, too."""
    _require_core(logical_device_id, devices.num_cores)
    yield


def _require_core(core: int, num_cores: int) -> None:
    if type(core) is not int or core not in range(num_cores):
        last = ", with id 0" if num_cores == 1 else f", with ids 0 to {num_cores - 1}"
        raise ArgumentError(
            f"logical_device_id is {core!r}, but a replica has {_count(num_cores)}{last}"
        )


def _count(cores: int) -> str:
    return f"{cores} core{'s' if cores > 1 else ''}"


def _require_replica(name: str) -> None:
    if not in_replica_context_of_a_run():
        raise ContextError(
            f"{name} was called outside of a replica function",
            hint="call it in the function given to `strategy.run`",
        )
