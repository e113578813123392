"""The binding of a compiled step: from a call's arguments to inputs, from outputs to the result.

A `Binding` is for one storage of the step's variables. `feeds` turn the leaves of a call's
arguments into inputs of the step. `run` runs the step on these inputs and on the variables'
buffers. `take` builds the user's result from the outputs. A binding never changes: when variables
move to other storage, the program makes a new binding. A call reads the program's binding once, so
that `feeds`, `run` and `take` belong together even if another thread replaces the binding.

`CheckedStep` is a step whose outputs are checked for nan and infinity, under `jax_debug_nans` and
`jax_debug_infs`. The step donates no buffers, so that the variables can get their old buffers back
if the check fails. The check waits for the devices, so it runs after the lock of the stores is
released. Meanwhile another thread may have replaced a buffer again. The variable of this buffer
keeps the value of the other thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from threading import get_ident
from typing import Any  # Any: users' arguments and results

import jax
import numpy as np

from graphdist.ir.graph import Value
from graphdist.ir.types import PER_REPLICA, numpy_dtype
from graphdist.program.argument_keys import LeafKey, is_converted, is_per_replica
from graphdist.program.interface import OUTPUT, Interface, filled
from graphdist.runtime.bound_step import BoundStep
from graphdist.runtime.buffers import HOLDS_BUFFERS, BufferStore, StateElsewhere, StateInPlace
from graphdist.runtime.executable import Step
from graphdist.runtime.resharding import resharded
from graphdist.state.program_storage import ProgramStorage
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.user_lines import here
from graphdist.values.components import argument_array, buffer_gone, shape_without_value
from graphdist.values.distributed import Mirrored, PerReplicaArray
from graphdist.values.pytrees import unflatten


class Binding:
    """A step and its conversions, for the current storage of its variables."""

    def __init__(
        self,
        step: Step,
        interface: Interface,
        storage: ProgramStorage,
        output_shapes: Sequence[tuple[int, ...]],
    ) -> None:
        """Bind a step to the current storage of its variables.

        `output_shapes` are the shapes of the user's results, as they were traced.
        """
        self.step, self.interface, self.storage = step, interface, storage
        self.output_shapes = output_shapes
        self.holders, self.assigned = storage.holders, storage.assigned
        self.feeds = _feeds(interface, storage)
        bind = BoundStep if step.check is None else partial(CheckedStep, storage)
        self.run = bind(step, self._state(), storage.version).run
        self.take = self._taker()

    def moved(self) -> Binding:
        """Return a binding of the same step to the current storage of its variables."""
        return Binding(self.step, self.interface, self.storage, self.output_shapes)

    def _state(self) -> StateInPlace | StateElsewhere:
        """Return access to the variables' buffers, on the step's devices or elsewhere."""
        own = self.interface.strategy
        homes = [(holder.strategy.buffers, holder.place) for holder in self.holders]
        assigned = [(holder.strategy.buffers, holder.place) for holder in self.assigned]
        if own.devices.parameter_device is None and all(store is own.buffers for store, _ in homes):
            places, assigned_places = ([place for _, place in each] for each in (homes, assigned))
            return StateInPlace(own.buffers, places, assigned_places)
        return StateElsewhere(homes, assigned, self.step.state)

    def _taker(self) -> Callable[[list[jax.Array]], Any]:
        """Return the function that builds the user's result from a step's outputs."""
        interface, num_assigned = self.interface, len(self.assigned)
        if any(interface.per_replica) or any(leaf is not OUTPUT for leaf in interface.statics):
            take = _taker_of_leaves(interface, self.storage, self.output_shapes)
            return lambda outputs: take(outputs[num_assigned:])
        if interface.structure == jax.tree.structure(0):
            return itemgetter(num_assigned)
        return lambda outputs: interface.structure.unflatten(outputs[num_assigned:])


class CheckedStep(BoundStep):
    """A step that is undone if its outputs have a nan or infinity for which JAX is set to raise."""

    def __init__(
        self,
        storage: ProgramStorage,
        step: Step,
        state: StateInPlace | StateElsewhere,
        version: int,
    ) -> None:
        """Bind a step that has a check to the storage of its variables."""
        super().__init__(step, state, version)
        assert step.check is not None
        self._check, self._assigned = step.check, storage.assigned
        self._replaced: dict[int, list[tuple[Any, Any]]] = {}
        """The old and the new buffer of each assigned variable, by the thread that ran the step."""

        def write(outputs: Sequence[jax.Array]) -> None:
            old = [holder.held for holder in self._assigned]
            state.write(outputs)
            new = (holder.held for holder in self._assigned)
            self._replaced[get_ident()] = list(zip(old, new, strict=True))

        self._write = write

    def run(self, inputs: Sequence[jax.Array]) -> list[jax.Array] | None:
        """Run the step; if it raises `InvalidNumberError`, the variables keep their old values."""
        outputs = super().run(inputs)
        replaced = self._replaced.pop(get_ident(), [])
        error = None if outputs is None else self._check.error(*self._check.last_step())
        if error is None:
            return outputs
        with BufferStore.lock:
            for holder, (old, new) in zip(self._assigned, replaced, strict=True):
                if holder.held is new:
                    holder.held = old
        raise error


def _feeds(interface: Interface, storage: ProgramStorage) -> list[tuple[int, Callable[[Any], Any]]]:
    """Return, for each input, the index of its leaf and the function from leaf to array."""
    inputs = storage.graph.inputs[len(storage.graph.variables) :]
    return [
        (i, _feed(interface.keys[i], interface.names[i], interface.strategy, value))
        for i, value in zip(interface.dynamic, inputs, strict=True)
    ]


def _feed(key: LeafKey, name: str, strategy: StrategyBase, value: Value) -> Callable[[Any], Any]:
    """Return the function that turns a leaf of an argument into an input of the executable."""
    dtype = value.type.dtype
    if is_per_replica(key):
        if is_converted(key):
            return lambda leaf: argument_array(leaf, strategy, name).astype(numpy_dtype(dtype))
        return lambda leaf: argument_array(leaf, strategy, name)
    mirrored = strategy.devices.mirrored

    def shared(leaf: Any) -> Any:
        if HOLDS_BUFFERS[type(leaf)]:
            if leaf.is_deleted():
                raise buffer_gone(name)
            sharding = leaf.sharding
            if sharding is mirrored or sharding == mirrored:
                return leaf
            if strategy.devices.workers is None:
                return jax.device_put(leaf, mirrored)
            what = f"placing argument {name!r} on the devices of all workers"
            return resharded(leaf, mirrored, strategy.devices, what, here())
        if isinstance(leaf, Mirrored):
            return shared(leaf.array)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise shape_without_value(leaf, name)
        # A copy, since JAX may read the caller's memory while the step runs.
        return np.array(leaf, numpy_dtype(dtype))

    if is_converted(key):
        return lambda leaf: shared(leaf).astype(numpy_dtype(dtype))
    return shared


def _taker_of_leaves(
    interface: Interface, storage: ProgramStorage, output_shapes: Sequence[tuple[int, ...]]
) -> Callable[[list[jax.Array]], Any]:
    """Return the function that builds a result of which some leaves are not plain arrays."""
    outputs = storage.graph.outputs[len(storage.graph.assigned) :]
    each = zip(output_shapes, outputs, interface.per_replica, interface.shapes, strict=True)
    described = [
        (shape, output.type.layout or PER_REPLICA, shapes, interface.rows.get(index))
        if per_replica
        else None
        for index, (shape, output, per_replica, shapes) in enumerate(each)
    ]

    def take(arrays: list[jax.Array]) -> Any:
        results = iter(
            [
                array if args is None else PerReplicaArray(array, interface.strategy, *args)
                for array, args in zip(arrays, described, strict=True)
            ]
        )
        leaves = [filled(leaf, results) for leaf in interface.statics]
        return unflatten(interface.structure, leaves)

    return take
