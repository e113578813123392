"""One compiled program of a function: how it was traced, and how it is called.

Tracing turns the arguments into tracers and distributed values of them, runs the user's function,
and takes its result apart: arrays become outputs of the graph, anything else is kept as it is. A
call does the reverse with real arrays. What both need to agree on is the `Interface`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from threading import RLock
from typing import Any, TypeVar  # Any: users' functions, arguments and results

import jax
import numpy as np

from graphdist.components import as_array, buffer_gone, shape_without_value
from graphdist.context import Entry, current_entry, entered
from graphdist.errors import ContextError, GraphdistError, RuntimeFailure
from graphdist.garbage import collection_put_off
from graphdist.interface import OUTPUT, Interface, filled, take_apart
from graphdist.ir.graph import Graph, Value
from graphdist.ir.types import PER_REPLICA, numpy_dtype
from graphdist.passes import Target
from graphdist.passes.manager import Pass
from graphdist.runtime.addresses import WorkerError
from graphdist.runtime.agreement import agree_on, wait_until_compiled
from graphdist.runtime.buffers import HOLDS_BUFFERS, BorrowedBuffers, is_lost
from graphdist.runtime.compilation import combining_options
from graphdist.runtime.executable import Executable, dispatcher
from graphdist.signature import (
    LeafKey,
    StaticArgument,
    input_aval,
    input_type,
    is_per_replica,
    is_static,
    leaf_name,
    traced_leaf,
)
from graphdist.specs import PerReplicaSpec
from graphdist.stages import Traced
from graphdist.strategies.base import StrategyBase
from graphdist.strategies.default import default_strategy
from graphdist.tracing.importer import import_jaxpr
from graphdist.tracing.sources import here
from graphdist.tracing.state import NeedsReplicaNumber, Trace, make_jaxpr
from graphdist.values import DistributedValues, Mirrored, PerReplica, PerReplicaArray
from graphdist.variable_checks import require_value
from graphdist.variable_packs import pack_small, packed, packs_of
from graphdist.variable_storage import as_stored, held, lay_out
from graphdist.variables import Variable

Result = TypeVar("Result")


@collection_put_off()
def trace_program(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    keys: tuple[LeafKey, ...],
    *,
    name: str,
    is_first: bool,
    pipeline_for: Callable[[Target], Sequence[Pass]],
    compiler_options: Mapping[str, Any] | None,
) -> tuple[Traced, Interface]:
    """Trace a function for arguments of these kinds."""
    by_number: set[int] = set()
    while True:
        try:
            return _trace(
                fn,
                args,
                kwargs,
                keys,
                Trace(is_first, by_number),
                name=name,
                pipeline_for=pipeline_for,
                compiler_options=compiler_options,
            )
        except NeedsReplicaNumber as needs:
            by_number.add(needs.run)


def _trace(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    keys: tuple[LeafKey, ...],
    trace: Trace,
    *,
    name: str,
    pipeline_for: Callable[[Target], Sequence[Pass]],
    compiler_options: Mapping[str, Any] | None,
) -> tuple[Traced, Interface]:
    paths, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    leaves = [leaf for _, leaf in paths]
    names = [leaf_name(fn, path) for path, _ in paths]
    trace.strategy = _strategy_of(leaves, keys, names)
    replicas = trace.strategy.num_replicas_in_sync
    interface = Interface(
        keys, names, trace.strategy, tuple(jax.tree_util.keystr(path) for path, _ in paths)
    )
    dynamic = [i for i, key in enumerate(keys) if not is_static(key)]
    hints = [_hint(names[i]) for i in dynamic]
    inputs = [
        Value(input_type(leaves[i], keys[i], replicas, names[i]), hint)
        for i, hint in zip(dynamic, hints, strict=True)
    ]
    avals = [_aval(leaves[i], keys[i], value) for i, value in zip(dynamic, inputs, strict=True)]

    def body(*tracers: Any) -> list[Any]:
        filled = [leaf.value if isinstance(leaf, StaticArgument) else leaf for leaf in leaves]
        for i, tracer in zip(dynamic, tracers, strict=True):
            filled[i] = traced_leaf(keys[i], tracer, replicas)
        call_args, call_kwargs = jax.tree.unflatten(structure, filled)
        return take_apart(fn(*call_args, **call_kwargs), interface)

    closed = _in_scope(trace, lambda: make_jaxpr(trace, body, avals, fn, hints))
    strategy = _settle(trace, interface)
    target = strategy.target.packing(trace.bytes_per_pack)
    graph = import_jaxpr(
        closed,
        name=_hint(name),
        num_replicas=strategy.num_replicas_in_sync,
        inputs=inputs,
        variables=trace.specs,
        returns_per_replica=interface.per_replica,
    )
    traced = Traced(
        as_stored(graph, trace.variables),
        strategy.devices,
        variables=tuple(trace.variables),
        pipeline=pipeline_for(target),
        compiler_options={**combining_options(target), **(compiler_options or {})},
        given={
            len(trace.variables) + place: given
            for place, i in enumerate(dynamic)
            if (given := _given(leaves[i], avals[place], strategy)) is not None
        },
        interface=interface,
    )
    return traced, interface


def _strategy_of(
    leaves: Sequence[Any], keys: Sequence[LeafKey], names: Sequence[str]
) -> StrategyBase:
    """Return the strategy that is current, or else the default one until the program says more."""
    entry = current_entry()
    if entry is not None:
        return entry.strategy
    for leaf in leaves:
        if isinstance(leaf, PerReplicaArray | PerReplicaSpec) and leaf.strategy is not None:
            return leaf.strategy
    for key, name in zip(keys, names, strict=True):
        if is_per_replica(key):
            raise ContextError(
                f"argument {name!r} is one value a replica, but no strategy made it and no scope "
                f"is open: how many replicas there are is not known",
                source=here(),
                hint="call the function inside strategy.scope()",
            )
    return default_strategy()


def _in_scope(trace: Trace, call: Callable[[], Result]) -> Result:
    """Call in cross-replica context of the trace's strategy, if it has one."""
    if current_entry() is not None or trace.strategy.is_default:
        return call()
    with entered(Entry(trace.strategy)):
        return call()


def _settle(trace: Trace, interface: Interface) -> StrategyBase:
    """Return the program's strategy once all of it is known; its variables must belong to it."""
    strategy: StrategyBase = trace.strategy
    interface.strategy = strategy
    for variable in trace.variables:
        if variable.strategy is not strategy and not variable.is_plain:
            raise ContextError(
                f"variable {variable.name!r} belongs to {variable.strategy}, "
                f"the function that uses it runs on {strategy}",
                source=here(),
                hint="make the variable inside the scope of the strategy that uses it",
            )
    return strategy


def _aval(leaf: Any, key: LeafKey, value: Value) -> jax.ShapeDtypeStruct:
    """Return what the trace is told of an input: of a per-replica one, what a replica holds."""
    if not is_per_replica(key):
        return input_aval(leaf, key)
    if isinstance(leaf, PerReplica) and not isinstance(leaf, PerReplicaArray):
        dtype = jax.dtypes.canonicalize_dtype(key[1][0][1])
    else:
        dtype = leaf.array.dtype if isinstance(leaf, PerReplicaArray) else leaf.dtype
    return jax.ShapeDtypeStruct(value.type.shape, dtype)


def _given(
    leaf: Any, aval: jax.ShapeDtypeStruct, strategy: StrategyBase
) -> jax.ShapeDtypeStruct | None:
    """Return what a call gives for an input, unless it is an array on the devices as any other."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | Mirrored) and aval.weak_type:
        return aval.update(sharding=strategy.devices.mirrored)
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | DistributedValues | PerReplicaSpec):
        return None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _hint(name: str) -> str:
    """Return a leaf's name as an identifier: `batch['image']` as `batch_image`."""
    kept = "".join(character if character.isalnum() else "_" for character in name)
    return "_".join(part for part in kept.split("_") if part)


def compile_program(traced: Traced, interface: Interface) -> Program:
    """Compile a traced function; raises `DeviceError` for devices that are not here."""
    if traced.devices.is_absent:
        traced.devices.refuse_to_run(f"running {traced.graph.name!r}", here())
    lowered, variables = traced.lower(), traced.variables
    stores = held(variables, interface.strategy)
    with stores:
        graph = as_stored(traced.graph, variables)
        if is_current := graph is traced.graph:
            lay_out(variables, [one.sharded_along for one in lowered.graph.variables], alone=False)
            pack_small(interface.strategy, variables, lowered.graph)
            packs, holders = packs_of(variables, lowered.graph)
            lies, layout = [variable.lies for variable in variables], stores.layout
    if not is_current:  # another thread has laid them out since it was traced
        return compile_program(replace(traced, graph=graph), interface)
    lowered = packed(lowered, packs)
    agree_on(lowered.graph, traced.devices, here())
    compiled = lowered.compile()
    wait_until_compiled(lowered.graph, traced.devices, here())
    shapes = [output.type.shape for output in traced.graph.outputs]

    def again() -> Program | int:
        """Compile anew if variables lie otherwise by now, or return their layout."""
        with stores:
            if lies == [variable.lies for variable in variables]:
                return stores.layout
            graph = as_stored(traced.graph, variables)
        return compile_program(replace(traced, graph=graph), interface)

    graph, executable = compiled.graph, compiled.executable
    return Program(interface, variables, holders, graph, shapes, executable, layout, again)


class Program:
    """A compiled program; `call` runs it on the leaves of the arguments."""

    def __init__(
        self,
        interface: Interface,
        variables: Sequence[Variable],
        holders: Sequence[Any],
        graph: Graph,
        output_shapes: Sequence[tuple[int, ...]],
        executable: Executable,
        layout: int,
        again: Callable[[], Program | int],
    ) -> None:
        """Take an executable of a graph; of that its inputs, outputs and variables count.

        `holders` hold the state of the graph's variables: they are the user's variables, or packs
        of several. `output_shapes` are those of the user's results, as they were traced. `layout`
        is that of the variables' stores for which this was compiled; `again` returns another if the
        variables lie as they did, or else a program compiled for how they lie.
        """
        self._layout, self._again = layout, again
        self._changing = RLock()
        self._interface, self._executable = interface, executable
        self._variables, self._holders = tuple(variables), tuple(holders)
        self._assigned = [
            holder for holder, spec in zip(holders, graph.variables, strict=True) if spec.assigned
        ]
        inputs = graph.inputs[len(graph.variables) :]
        dynamic = [i for i, key in enumerate(interface.keys) if not is_static(key)]
        feeds = [
            (i, _feed(interface.keys[i], interface.names[i], interface.strategy, value))
            for i, value in zip(dynamic, inputs, strict=True)
        ]
        results = graph.outputs[len(graph.assigned) :]
        self._outputs = [
            (shape, output.type.distribution or PER_REPLICA, of_each) if per_replica else None
            for shape, output, per_replica, of_each in zip(
                output_shapes, results, interface.per_replica, interface.shapes, strict=True
            )
        ]
        self._feeds = feeds
        self.call = self._dispatcher()

    def _dispatcher(self) -> Callable[[Sequence[Any]], Any]:
        return dispatcher(
            self._executable,
            *self._buffers(),
            self._feeds,
            self._taker(),
            self._failed,
            self._layout,
            self._laid_out_anew,
        )

    def _laid_out_anew(self, leaves: Sequence[Any]) -> Any:
        """Call with variables of which some lie otherwise than when this was compiled."""
        with self._changing:  # one thread compiles, others find what it compiled
            found = self._again()
            if isinstance(found, Program):
                vars(self).update(vars(found), _changing=self._changing)
            else:
                self._layout = found
            self.call = call = self._dispatcher()
        return call(leaves)

    def _buffers(self) -> tuple[Any, list[int], list[int]]:
        """Return where the variables' buffers are, and the places of all and of those assigned."""
        own, holders = self._interface.strategy, self._holders
        if all(holder.strategy is own for holder in holders):
            places = [holder.place for holder in holders]
            return own.buffers, places, [holder.place for holder in self._assigned]
        borrowed = BorrowedBuffers(
            [(holder.strategy.buffers, holder.place) for holder in holders],
            self._executable.state,
        )
        assigned = [i for i, holder in enumerate(holders) if holder in self._assigned]
        return borrowed, list(range(len(holders))), assigned

    def _taker(self) -> Callable[[list[jax.Array]], Any]:
        """Return what makes the user's result of a step's outputs."""
        interface, num_assigned = self._interface, len(self._assigned)
        if any(interface.per_replica) or any(leaf is not OUTPUT for leaf in interface.statics):
            return lambda outputs: self._put_together(outputs[num_assigned:])
        if interface.structure == jax.tree.structure(0):
            return itemgetter(num_assigned)
        return lambda outputs: interface.structure.unflatten(outputs[num_assigned:])

    def _put_together(self, outputs: list[jax.Array]) -> Any:
        interface = self._interface
        results = iter(
            [
                array
                if described is None
                else PerReplicaArray(array, interface.strategy, *described)
                for array, described in zip(outputs, self._outputs, strict=True)
            ]
        )
        leaves = [filled(leaf, results) for leaf in interface.statics]
        return jax.tree.unflatten(interface.structure, leaves)

    def _failed(self, error: BaseException) -> None:
        """Say so if a failed step took variables with it, and which line of the user's it was."""
        for variable in self._variables:
            if isinstance(variable.holder, jax.ShapeDtypeStruct):
                require_value(variable)
        if isinstance(error, GraphdistError) and error.source is None:
            error.source = here()
        holders = [one.pack or one for one in self._variables]
        lost = [
            variable.name
            for variable, holder in zip(self._variables, holders, strict=True)
            if holder in self._assigned and is_lost(holder.buffer)
        ]
        if lost and not isinstance(error, WorkerError):
            raise RuntimeFailure(
                f"the step failed after the buffers of {', '.join(map(repr, lost))} were given to "
                f"it: their values are lost",
                source=here(),
                hint="assign them anew, from a checkpoint for instance",
            ) from error


def _feed(key: LeafKey, name: str, strategy: StrategyBase, value: Value) -> Callable[[Any], Any]:
    """Return what turns a leaf of an argument into an input of the executable."""
    if is_per_replica(key):
        return lambda leaf: as_array(leaf, strategy, name)
    mirrored = strategy.devices.mirrored
    dtype = value.type.dtype

    def one_value(leaf: Any) -> Any:
        if HOLDS_BUFFERS[type(leaf)]:
            if leaf.is_deleted():
                raise buffer_gone(name)
            sharding = leaf.sharding
            if sharding is mirrored or sharding == mirrored:
                return leaf
            return jax.device_put(leaf, mirrored)
        if isinstance(leaf, Mirrored):
            return one_value(leaf.array)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise shape_without_value(leaf, name)
        # Of its own: JAX may go on showing the caller's memory while the step runs.
        return np.array(leaf, numpy_dtype(dtype))

    return one_value
