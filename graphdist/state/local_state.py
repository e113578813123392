"""The storage of the variables that `passes/local_steps.py` adds to a program.

They belong to the parameters that they serve, and programs that synchronize the same parameters
share them: the count of steps since the last synchronization, each parameter's anchor, and the
slots of the outer optimizer. They live as long as the first of these parameters.

All are made when a program is stored that has them. An anchor begins with the value of its
parameter, the slots as the optimizer makes them for the anchors, and the count with zero.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any  # Any: buffers, or their shapes

import jax
import jax.numpy as jnp

from graphdist.ir.graph import GraphVariable
from graphdist.ir.types import MIRRORED, numpy_dtype
from graphdist.passes.local_variables import ANCHOR, SLOT
from graphdist.state.storage import Storage


def added_storage(variable: GraphVariable, served: Sequence[Storage]) -> Storage:
    """Return the storage of an added variable that serves parameters with these storages."""
    first, key = served[0], _key(variable, served)
    if key not in first.kept_for_it:
        if variable.role.startswith(SLOT):
            _make_slots(served)
        else:
            value = first.mean_of_copies() if variable.role == ANCHOR else _zeros(variable, first)
            first.kept_for_it[key] = _storage(variable.name, value, first)
    return first.kept_for_it[key]


def _key(variable: GraphVariable, served: Sequence[Storage]) -> tuple[object, ...]:
    """Return the place of a storage among those that are kept for its first parameter.

    By weak references: a model that is dropped is freed at once, not by the garbage collector.
    """
    if variable.role == ANCHOR:
        return (ANCHOR,)
    return (variable.role, *map(weakref.ref, served))


def _storage(name: str, value: Any, beside: Storage) -> Storage:
    return Storage(name, value.shape, beside.strategy, MIRRORED, value)


def _zeros(variable: GraphVariable, beside: Storage) -> Any:
    value = jnp.zeros(variable.type.shape, numpy_dtype(variable.type.dtype))
    return beside.strategy.place_variable(value, MIRRORED)


def _make_slots(served: Sequence[Storage]) -> None:
    """Make all slots of an outer optimizer for some parameters."""
    first = served[0]
    steps = first.strategy.local_steps
    assert steps is not None
    assert steps.outer is not None
    values = [_value_or_zeros(storage) for storage in served]
    if first.strategy.devices.is_absent:
        slots: Sequence[Any] = jax.eval_shape(steps.outer.slots, values)
    else:
        home = first.strategy.devices.home(MIRRORED)
        slots = jax.jit(steps.outer.slots, out_shardings=home)(values)
    for number, slot in enumerate(slots):
        key = (f"{SLOT} {number}", *map(weakref.ref, served))
        first.kept_for_it[key] = _storage(f"{first.name}.{SLOT}_{number}", slot, first)


def _value_or_zeros(storage: Storage) -> Any:
    """Return a parameter's value; zeros for one that has none yet."""
    value = storage.mean_of_copies()
    if isinstance(value, jax.Array) or storage.strategy.devices.is_absent:
        return value
    return jnp.zeros(value.shape, value.dtype)
