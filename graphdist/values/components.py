"""Copies the components of per-replica values to the devices.

Components of one rank and dtype become one array: each component is padded to the largest shape and
copied to its replica's device, and the copies are the shards of a global array. They must be copies
because the caller may change a NumPy array afterwards, and because a step must not donate a buffer
that the caller still holds. Other components stay Python values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any  # Any: users' values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import ArgumentError
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


def per_replica_of(values: Sequence[Any], strategy: StrategyBase) -> PerReplica:
    """Return the per-replica value with these components.

    Arrays of one rank and dtype are copied to the devices; other values are kept as they are.
    """
    if strategy.devices.workers is not None:
        return per_replica_of_workers(values, strategy)
    if not all(isinstance(value, np.ndarray | np.generic | jax.Array) for value in values):
        return PerReplica(values)
    shapes = tuple(tuple(np.shape(value)) for value in values)
    if len({(len(shape), value.dtype) for shape, value in zip(shapes, values, strict=True)}) > 1:
        return PerReplica(values)
    shape = largest(shapes)
    devices = strategy.devices
    if devices.is_absent:
        rows, *inner = shape or (1,)
        dtype = jax.dtypes.canonicalize_dtype(values[0].dtype)
        described: Any = jax.ShapeDtypeStruct((len(values) * rows, *inner), dtype)
        return PerReplicaArray(described, strategy, shape, shapes=unequal(shapes))
    return _on_devices(values, strategy, shapes)


def per_replica_of_workers(values: Sequence[Any], strategy: StrategyBase) -> PerReplica:
    """Return the per-replica value; `values` are the components of this worker's replicas.

    All workers must call this function together. Each sends a description of its components to the
    others, since every worker must know the dtype and the largest shape. Python numbers become
    arrays. Strings and None are sent to every worker. Raises `ArgumentError` for values of other
    types, and if the components are of different kinds.
    """
    workers = strategy.devices.workers
    assert workers is not None
    local = [np.asarray(x) if isinstance(x, bool | int | float) else x for x in values]
    described = [_description(value) for value in local]
    key = f"components {workers.ordinal('components')}"
    descriptions = workers.exchange(key, described, "a per-replica value", here())
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
    return _on_devices(local, strategy, tuple(tuple(shape) for _, shape in components))


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


def _on_devices(values: Sequence[Any], strategy: StrategyBase, shapes: Shapes) -> PerReplicaArray:
    """Return a per-replica value on the devices of a strategy.

    `values` are the components of this process's replicas, `shapes` the shapes of all components.
    """
    devices, shape = strategy.devices, largest(shapes)
    parts = [
        jax.device_put(_padded(value, shape).reshape(shape or (1,)), devices.devices[replica])
        for value, replica in zip(values, devices.local_replicas, strict=True)
    ]
    global_shape = (len(shapes) * parts[0].shape[0], *parts[0].shape[1:])
    array = jax.make_array_from_single_device_arrays(global_shape, devices.per_replica, parts)
    return PerReplicaArray(array, strategy, shape, shapes=unequal(shapes))


def _padded(value: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return a copy, padded with zeros up to a shape."""
    if isinstance(value, np.ndarray):
        value = np.array(value)  # JAX may read it later, after the caller has changed it
    if np.shape(value) == shape:
        return jnp.array(value)
    ends = [(0, full - part) for full, part in zip(shape, np.shape(value), strict=True)]
    return jnp.pad(value, ends)


def argument_array(value: Any, strategy: StrategyBase, name: str) -> jax.Array:
    """Return the array of a per-replica argument; raises `ArgumentError` if it has none."""
    if not isinstance(value, PerReplicaArray):
        if not isinstance(value, PerReplica):
            raise shape_without_value(value, name)
        components = [np.asarray(component) for component in value.values]
        converted = per_replica_of(components, strategy)
        assert isinstance(converted, PerReplicaArray)  # the signature has checked the components
        if len(components) == 1:  # the scalar of one replica stays a scalar
            return converted.array.reshape(converted.type.shape)
        return converted.array
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
