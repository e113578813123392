"""Components of per-replica values on their way to the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any  # Any: users' values

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.errors import ArgumentError
from graphdist.tracing.sources import here
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
    """Return the per-replica value of these components.

    Arrays of one rank and dtype go to the devices; anything else is kept as it is.
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
    """Return the per-replica value of which this worker's replicas have these components.

    All workers call it at once. Numbers are arrays. Of other values, which JSON holds, every worker
    gets all. Raises `ArgumentError` for components of several kinds, or that JSON does not hold.
    """
    workers = strategy.devices.workers
    assert workers is not None
    local = [np.asarray(one) if isinstance(one, bool | int | float) else one for one in values]
    described = [_description(value) for value in local]
    key = f"components {workers.ordinal('components')}"
    given = workers.exchange(key, described, "a per-replica value", here())
    all_described = [one for of_worker in given for one in of_worker]
    kinds = {one[0] if isinstance(one, list) else None for one in all_described}
    ranks = {len(one[1]) for one in all_described if isinstance(one, list)}
    if len(kinds) > 1 or len(ranks) > 1:
        raise ArgumentError(
            f"the replicas' components are of several kinds: {', '.join(map(str, all_described))}",
            source=here(),
            hint="give all replicas arrays of one rank and dtype, or none",
        )
    if None in kinds:
        return PerReplica([one["value"] for one in all_described])
    return _on_devices(local, strategy, tuple(tuple(shape) for _, shape in all_described))


def _description(value: Any) -> Any:
    """Return dtype and shape of an array, and what is no array itself, as JSON holds it."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return [str(jax.dtypes.canonicalize_dtype(value.dtype)), list(np.shape(value))]
    if isinstance(value, str | None):
        return {"value": value}
    raise ArgumentError(
        f"a component is a {type_name(value)}, which other workers cannot be told of",
        source=here(),
        hint="give arrays, numbers, strings or None",
    )


def _on_devices(values: Sequence[Any], strategy: StrategyBase, shapes: Shapes) -> PerReplicaArray:
    """Return the value of these arrays of this process's replicas; all replicas have `shapes`."""
    devices, shape = strategy.devices, largest(shapes)
    parts = [
        jax.device_put(_padded(value, shape).reshape(shape or (1,)), devices.devices[replica])
        for value, replica in zip(values, devices.local_replicas, strict=True)
    ]
    whole = (len(shapes) * parts[0].shape[0], *parts[0].shape[1:])
    array = jax.make_array_from_single_device_arrays(whole, devices.per_replica, parts)
    return PerReplicaArray(array, strategy, shape, shapes=unequal(shapes))


def _padded(value: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return a copy of its own, with zeros up to a shape."""
    if isinstance(value, np.ndarray):
        value = np.array(value)  # JAX may copy it later, when the caller has changed it
    if np.shape(value) == shape:
        return jnp.array(value)
    ends = [(0, full - part) for full, part in zip(shape, np.shape(value), strict=True)]
    return jnp.pad(value, ends)


def argument_array(value: Any, strategy: StrategyBase, name: str) -> jax.Array:
    """Return the array of a per-replica argument; raises where the strategy cannot take it."""
    if not isinstance(value, PerReplicaArray):
        if not isinstance(value, PerReplica):
            raise shape_without_value(value, name)
        components = [np.asarray(component) for component in value.values]
        converted = per_replica_of(components, strategy)
        assert isinstance(converted, PerReplicaArray)  # the signature has seen shapes and dtypes
        if len(components) == 1:  # one value, and a scalar is no row of several
            return converted.array.reshape(converted.type.shape)
        return converted.array
    if value.strategy is not strategy:
        raise ArgumentError(
            f"argument {name!r} is a PerReplica of {value.strategy}, "
            f"the function runs on {strategy.beside(value.strategy)}",
            source=here(),
            hint="distribute the value with the strategy that uses it",
        )
    if value.array.is_deleted():  # it would take the process down
        raise buffer_gone(name)
    return value.array


def buffer_gone(name: str) -> ArgumentError:
    """Return the error for an argument whose buffer was donated or deleted."""
    return ArgumentError(
        f"argument {name!r} is an array whose buffer is gone: it was donated or deleted",
        source=here(),
        hint="use what the step that took the array returned, or pass that step a copy",
    )


def shape_without_value(value: Any, name: str) -> ArgumentError:
    """Return the error for an argument that only describes a value."""
    return ArgumentError(
        f"argument {name!r} is {value}: a shape, without a value to run with",
        source=here(),
        hint="pass shapes to .trace(...) alone, and values to the function",
    )
