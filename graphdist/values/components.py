"""Copies the components of per-replica values to the devices.

Components of one rank and dtype become one array. Each component is padded to the largest shape and
copied to its replica's device, and the copies are the shards of a global array. Copies are needed
because the caller may change a NumPy array afterwards, and because a step must not donate a buffer
that the caller still holds. Other components stay Python values.

A component that is a view of a batch is copied to the replica's device alone. Only a component
with fewer rows than the largest is copied on the host, to pad it with zeros. On CPU every component
is copied once, to aligned memory. Without this copy JAX would use the component's own memory, and
the device would see later changes of the source's buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any  # Any: users' values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import ArgumentError
from graphdist.runtime.value_agreement import checksums_of_input, require_equal_input
from graphdist.tracing.user_lines import here
from graphdist.values.distributed import (
    PerReplica,
    PerReplicaArray,
    Shapes,
    largest,
    type_name,
    unequal,
)

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase

_ALIGNMENT = 64
"""The alignment, in bytes, of arrays that CPU devices use without a copy."""


def per_replica_of(values: Sequence[Any], strategy: StrategyBase) -> Any:
    """Return the per-replica value with these components; of one replica, its array.

    Arrays of one rank and dtype are copied to the devices. Other values are kept unchanged.
    """
    if strategy.devices.workers is not None:
        return per_replica_of_workers(values, strategy)
    if not all(isinstance(value, np.ndarray | np.generic | jax.Array) for value in values):
        return PerReplica(values)
    shapes = tuple(tuple(np.shape(value)) for value in values)
    if len({(len(shape), value.dtype) for shape, value in zip(shapes, values, strict=True)}) > 1:
        return PerReplica(values)
    return on_devices(strategy, values, shapes)


def per_replica_of_workers(values: Sequence[Any], strategy: StrategyBase) -> Any:
    """Return the per-replica value; `values` are the components of this worker's replicas.

    All workers must call this function together. Each worker sends a description of its components
    to the other workers, because every worker must know the dtype and the largest shape. Python
    numbers become arrays. Strings and None are sent to every worker. Raises `ArgumentError` for
    values of other types, and if the components are of different kinds.
    """
    devices, workers = strategy.devices, strategy.devices.workers
    assert workers is not None
    local = [np.asarray(x) if isinstance(x, bool | int | float) else x for x in values]
    described = [_description(value) for value in local]
    key = f"components {workers.ordinal('components')}"
    arrays = [value for value in local if not isinstance(value, str | None)]
    message = [described, checksums_of_input(arrays, devices)]
    messages = workers.exchange(key, message, "a per-replica value", here())
    require_equal_input([checksums for _, checksums in messages], devices, here())
    descriptions = [described for described, _ in messages[:: devices.workers_per_replica]]
    components = [component for of_worker in descriptions for component in of_worker]
    kinds = {component[0] if isinstance(component, list) else None for component in components}
    ranks = {len(component[1]) for component in components if isinstance(component, list)}
    if len(kinds) > 1 or len(ranks) > 1:
        raise ArgumentError(
            f"the replicas' components are of several kinds: {', '.join(map(str, components))}",
            hint="give all replicas arrays of one rank and dtype, or none",
        )
    if None in kinds:
        return PerReplica([component["value"] for component in components])
    return on_devices(strategy, local, tuple(tuple(shape) for _, shape in components))


def _description(value: Any) -> Any:
    """Return a component as JSON: dtype and shape of an array; the value of a string or None."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return [str(jax.dtypes.canonicalize_dtype(value.dtype)), list(np.shape(value))]
    if isinstance(value, str | None):
        return {"value": value}
    raise ArgumentError(
        f"a component is a {type_name(value)}, which cannot be sent to other workers",
        hint="give arrays, numbers, strings or None",
    )


def on_devices(strategy: StrategyBase, parts: Sequence[Any], shapes: Shapes | None = None) -> Any:
    """Return the per-replica value of `parts`, which are arrays; of one replica, its array.

    Each part is copied to its replica's device. `shapes` are the shapes on the replicas of all
    workers; None if there is only this worker.
    """
    devices = strategy.devices
    if shapes is None:
        shapes = tuple(part.shape for part in parts)
    shape = largest(shapes)
    dtype: Any = jax.dtypes.canonicalize_dtype(parts[0].dtype, allow_extended_dtype=True)
    full_shape = shape
    if len(shapes) > 1:
        rows, *inner = shape or (1,)  # scalars become the rows of one array
        full_shape = (len(shapes) * rows, *inner)
    if devices.is_absent:
        array: Any = jax.ShapeDtypeStruct(full_shape, dtype)
    else:
        padded = [_padded(part, shape, dtype, devices.platform) for part in parts]

        def part_at(index: Any) -> Any:
            if len(shapes) == 1:
                return padded[0]
            local_replica = index[0].start // rows - devices.local_replicas.start if rows else 0
            return padded[local_replica].reshape(rows, *inner)

        # This takes a third of the time of a device_put for each part. It waits until all parts are
        # copied, since their source may change them later.
        array = jax.make_array_from_callback(full_shape, devices.per_replica, part_at)
        array.block_until_ready()
    if len(shapes) == 1:
        return array
    return PerReplicaArray(array, strategy, shape, shapes=unequal(shapes))


def _padded(part: Any, shape: tuple[int, ...], dtype: np.dtype[Any], platform: str) -> Any:
    """Return an array padded with zeros to `shape`, from which a device of `platform` copies."""
    if isinstance(part, jax.Array):
        ends = [(0, full - size) for full, size in zip(shape, part.shape, strict=True)]
        return jnp.array(part) if part.shape == shape else jnp.pad(part, ends)
    if part.shape == shape and platform != "cpu":
        return np.asarray(part, dtype)
    # JAX's CPU devices use the memory of aligned arrays without another copy.
    size = dtype.itemsize * prod(shape)
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(shape)
    if part.shape != shape:
        copy[...] = 0
    copy[tuple(map(slice, part.shape))] = part
    return copy


def argument_array(value: Any, strategy: StrategyBase, name: str) -> jax.Array:
    """Return the array of a per-replica argument; raises `ArgumentError` if it has none."""
    if not isinstance(value, PerReplicaArray):
        if not isinstance(value, PerReplica):
            raise shape_without_value(value, name)
        components = [np.asarray(component) for component in value.values]
        # The signature has checked the components, so that they become arrays on the devices.
        converted = per_replica_of(components, strategy)
        return converted.array if len(components) > 1 else converted
    if value.strategy is not strategy:
        raise ArgumentError(
            f"argument {name!r} is a PerReplica of {value.strategy}, "
            f"the function runs on {strategy.beside(value.strategy)}",
            hint="distribute the value with the strategy that uses it",
        )
    if value.array.is_deleted():  # a step that reads it would crash the process
        raise buffer_gone(name)
    return value.array


def buffer_gone(name: str) -> ArgumentError:
    """Return the error for an argument whose buffer was donated or deleted."""
    return ArgumentError(
        f"argument {name!r} is an array whose buffer is gone: it was donated or deleted",
        hint="use the array that the step returned in its place, or pass the step a copy",
    )


def shape_without_value(value: Any, name: str) -> ArgumentError:
    """Return the error for an argument that is a spec instead of a value."""
    return ArgumentError(
        f"argument {name!r} is {value}: a shape, without a value to run with",
        hint="pass shapes to .trace(...) alone, and values to the function",
    )
