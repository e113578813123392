"""The storage of a program's variables, which its final graph determines.

Before the passes run, the logical graph receives the current storage of its variables
(`as_stored`), so that programs choose the same storage where they can. Before compilation, the
variables are moved to the storage that the final graph asks for (`ProgramStorage.apply`).

Another program may move the variables later. The buffer stores count the moves in `version`. In
each call a step compares `version` with the version at which the step's own storage was applied. If
the versions differ, the program restores its storage, or is compiled again for the current storage.

Variables are moved between steps, under the lock of the stores. A step that ran during a move would
read some variables in old buffers and some in new buffers.

The variables that `passes/logical/local_steps.py` adds belong to the parameters for which it adds
them, and programs that synchronize the same parameters share these variables. An added variable
exists as long as the first of its parameters. An anchor starts with the value of its parameter, a
slot with the value that the outer optimizer makes for the anchors, and the count of steps with
zero.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any  # Any: buffers, or their shapes

import jax
import jax.numpy as jnp

from graphdist.ir.graph import Graph, GraphVariable
from graphdist.ir.types import MIRRORED, numpy_dtype
from graphdist.ir.variable_storage import Anchor, OuterSlot
from graphdist.runtime.buffers import BufferStore
from graphdist.state.storage import BufferStorage, HeldBuffer, StorageOnDevices, VariablePack
from graphdist.state.stored_values import StoredValue, store_in_pack
from graphdist.state.variable import Variable
from graphdist.strategy_base import StrategyBase


def as_stored(graph: Graph, variables: Sequence[Variable], strategy: StrategyBase) -> Graph:
    """Return a logical graph with the current storage of its variables.

    Returns the same graph object if it has this storage already, since callers compare by identity.
    """
    names = {variable.name for variable in graph.variables}
    packs: dict[VariablePack, str] = {}
    storages = iter([variable.storage for variable in variables])
    described = []
    for variable in graph.variables:
        if not variable.is_local:
            storage = next(storages)
            pack = "" if storage.pack is None else _name_of(storage.pack, packs, names)
            form, core = storage.in_graph(pack, strategy), storage.layout.core
            variable = replace(variable, storage=form, core=core)
        described.append(variable)
    is_current = tuple(described) == graph.variables
    return graph if is_current else graph.replace(variables=tuple(described))


def _name_of(pack: VariablePack, packs: dict[VariablePack, str], taken: set[str]) -> str:
    if pack not in packs:
        names = (f"pack_{number}" for number in count(len(packs)))
        packs[pack] = next(name for name in names if name not in taken)
        taken.add(packs[pack])
    return packs[pack]


class ProgramStorage:
    """The storage of one program's variables, in the forms that its step expects."""

    def __init__(
        self, graph: Graph, values: Mapping[str, StoredValue], strategy: StrategyBase
    ) -> None:
        """Store the final graph, and the values of the variables in it and in its packs."""
        self.graph, self.strategy, self._values = graph, strategy, values
        self.holders: tuple[HeldBuffer, ...] = ()
        """The buffer of each variable of the graph."""
        self.version = 0
        """The version of the buffer stores when this storage was applied."""

    @property
    def storages(self) -> list[StorageOnDevices]:
        """Return the current storage of the user's variables, in the graph's order."""
        return [value.on_devices for value in self._values.values()]

    @property
    def assigned(self) -> list[HeldBuffer]:
        """Return the buffers that steps assign."""
        pairs = zip(self.holders, self.graph.variables, strict=True)
        return [holder for holder, variable in pairs if variable.assigned]

    def apply(self) -> None:
        """Store the variables as the graph says."""
        # Added variables come first, since they copy values of parameters that move to copies next.
        added = [variable for variable in self.graph.variables if variable.serves]
        for variable in added:
            self._holder(variable)
        self.holders = tuple(map(self._holder, self.graph.variables))
        self._applied, self.version = self.storages, BufferStore.version

    def begin_unread_with_zeros(self) -> bool:
        """Fill variables with zeros that have no value yet and that the step does not read.

        Returns whether there were such variables. The step of a function that initializes
        variables receives buffers of variables that the step does not read.
        """
        graph = self.graph
        read = {operand for node in graph.nodes for operand in node.operands} | set(graph.outputs)
        unread = [
            self._values[variable.name]
            for variable, value in zip(graph.variables, graph.inputs, strict=False)
            if variable.assigned and not (variable.pieces or variable.serves)
            if value not in read
        ]
        return sum(value.begin_with_zeros() for value in unread) > 0

    def _holder(self, variable: GraphVariable) -> HeldBuffer:
        if variable.pieces:
            pieces = [self._values[name] for name in variable.pieces if name]
            if pieces[0].storage.pack is None:
                store_in_pack(pieces)
            return pieces[0].on_devices.holder
        if variable.serves:
            served = [self._values[name] for name in variable.serves]
            return _added_value(variable, served).on_devices.holder
        value = self._values[variable.name]
        value.store_as(variable.storage, variable.core)
        return value.on_devices.holder

    def restore(self) -> bool:
        """Shard variables again that have become unsharded; return whether storage is restored.

        Returns False if a variable entered or left a pack, is sharded along another dimension, or
        is stored in copies. In these cases the step needs other buffers, and the program must be
        compiled again.
        """
        pairs = list(zip(self.storages, self._applied, strict=True))
        if not all(now is then or _may_be_restored(now, then) for now, then in pairs):
            return False
        for value, (now, then) in zip(self._values.values(), pairs, strict=True):
            if now is not then:
                value.store_as(then.in_graph("", self.strategy), then.layout.core)
        self._applied, self.version = self.storages, BufferStore.version
        return True


def _may_be_restored(now: StorageOnDevices, then: StorageOnDevices) -> bool:
    shards = [(each.sharded_along, each.layout.core) for each in (now, then)]
    is_alike = type(now) is type(then) and shards[0] == shards[1]
    is_unsharded = type(now) is BufferStorage and shards[0] == (None, None)
    return now.holder is then.holder and (is_alike or is_unsharded)


def _added_value(variable: GraphVariable, served: Sequence[StoredValue]) -> StoredValue:
    """Return the value of a variable that local steps add for parameters with values `served`."""
    first, role = served[0], variable.role
    key = _key(role, served)
    if key not in first.added:
        if isinstance(role, OuterSlot):
            _make_slots(served)
        else:
            is_anchor = isinstance(role, Anchor)
            value = first.on_devices.one_value() if is_anchor else _zeros(variable, first)
            first.added[key] = _beside(first, variable.name, value)
    return first.added[key]


def _key(role: Any, served: Sequence[StoredValue]) -> tuple[object, ...]:
    """Return the key of an added value among the values that its first parameter keeps.

    The key has weak references, so that a dropped model is freed at once, without garbage
    collection.
    """
    unnamed = replace(role, serves=())  # graphs name the parameters differently
    return (unnamed,) if isinstance(role, Anchor) else (unnamed, *map(weakref.ref, served))


def _beside(first: StoredValue, name: str, array: Any) -> StoredValue:
    holder = HeldBuffer(first.on_devices.strategy, array)
    return StoredValue(BufferStorage(name, array.shape, holder))


def _zeros(variable: GraphVariable, beside: StoredValue) -> Any:
    zeros = jnp.zeros(variable.type.shape, numpy_dtype(variable.type.dtype))
    return beside.on_devices.strategy.place_variable(zeros, MIRRORED)


def _make_slots(served: Sequence[StoredValue]) -> None:
    """Make all slots of an outer optimizer for the parameters `served`."""
    first = served[0]
    strategy = first.on_devices.strategy
    steps = strategy.local_steps
    assert steps is not None
    assert steps.outer is not None
    values = [_value_or_zeros(value.on_devices) for value in served]
    if strategy.devices.is_absent:
        slots: Sequence[Any] = jax.eval_shape(steps.outer.slots, values)
    else:
        home = strategy.devices.home(MIRRORED)
        slots = jax.jit(steps.outer.slots, out_shardings=home)(values)
    for index, slot in enumerate(slots):
        role = OuterSlot((), index)
        name = f"{first.on_devices.name}.{str(role).replace(' ', '_')}"
        first.added[_key(role, served)] = _beside(first, name, slot)


def _value_or_zeros(storage: StorageOnDevices) -> Any:
    """Return a parameter's value; zeros if the parameter has no value yet."""
    value = storage.one_value()
    if isinstance(value, jax.Array) or storage.strategy.devices.is_absent:
        return value
    return jnp.zeros(value.shape, value.dtype)
