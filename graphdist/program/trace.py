"""Traces a function for the arguments of a call.

Arguments become tracers and distributed values of tracers, and the user's function is called with
them. The arrays of its result become outputs of the graph; other leaves are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar  # Any: users' functions, arguments and results

import jax

from graphdist.context import (
    Entry,
    alike,
    current_entry,
    entered,
    missing_context,
    strategy_outside,
)
from graphdist.errors import ContextError
from graphdist.garbage import collection_put_off
from graphdist.ir.graph import Graph, Value
from graphdist.passes import Target
from graphdist.passes.manager import Pass
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.argument_keys import (
    LeafKey,
    StaticArgument,
    input_aval,
    input_type,
    is_per_replica,
    is_static,
    rows_of,
    traced_leaf,
)
from graphdist.program.interface import Interface, output_arrays
from graphdist.program.leaked_values import NamedValues
from graphdist.program.progress import phase
from graphdist.program.stages import Traced
from graphdist.program.step_functions import require_result
from graphdist.program.trace_attempts import TraceAttempts, proven_equal
from graphdist.runtime.compilation import step_options
from graphdist.state.layout import as_stored
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.axis_name import bound
from graphdist.tracing.jaxpr_to_graph import import_jaxpr
from graphdist.tracing.state import Trace, make_jaxpr
from graphdist.values.distributed import DistributedValues, Mirrored, PerReplica, PerReplicaArray
from graphdist.values.pytrees import argument_name, unflatten
from graphdist.values.replica_warnings import warn_of_gathered_updates, warn_of_unequal_means
from graphdist.values.specs import PerReplicaSpec

Result = TypeVar("Result")

while_tracing: list[Callable[[], AbstractContextManager[object]]] = []
"""Functions that make context managers for the time of a trace; higher packages add some."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A function to be traced for the arguments of one call, whose leaves have these `keys`."""

    fn: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keys: tuple[LeafKey, ...]
    pipeline_for: Callable[[Target], Sequence[Pass]]
    compiler_options: Mapping[str, Any] | None


@collection_put_off()
def trace_program(request: TraceRequest, is_first: bool) -> tuple[Traced, Interface]:
    """Trace a function; it may create variables only in its first trace."""
    return TraceAttempts(lambda trace: _trace(request, trace)).run(is_first)


def _trace(request: TraceRequest, trace: Trace) -> tuple[Traced, Interface]:
    fn, name, keys = request.fn, request.name, request.keys
    paths, structure = jax.tree_util.tree_flatten_with_path((request.args, request.kwargs))
    leaves = [leaf for _, leaf in paths]
    names = [argument_name(fn, path) for path, _ in paths]
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
        values = [leaf.value if isinstance(leaf, StaticArgument) else leaf for leaf in leaves]
        for i, tracer in zip(dynamic, tracers, strict=True):
            values[i] = traced_leaf(keys[i], tracer, replicas)
        call_args, call_kwargs = unflatten(structure, values)
        named = NamedValues(fn, (*call_args, *call_kwargs.values()))
        result = call_with_copies(fn, call_args, call_kwargs, name)
        named.refuse_leaks(name)
        require_result(result, name)
        return output_arrays(result, interface)

    with phase("tracing"), ExitStack() as contexts:
        for make in while_tracing:
            contexts.enter_context(make())
        closed = _in_scope(trace, lambda: make_jaxpr(trace, body, avals, fn, hints))
    # After the trace, since the function's variables may determine the strategy.
    strategy = _settle(trace, interface)
    target = strategy.target.packing(trace.bytes_per_pack)
    graph = _imported(closed, _hint(name), trace, interface, inputs)
    _prove_equal_means(graph, trace)
    if target.local_steps is not None:
        warn_of_gathered_updates(graph)
    arguments = [leaves[i] for i in dynamic]
    _note_unequal_rows(interface, graph, zip(arguments, (keys[i] for i in dynamic), strict=True))
    traced = Traced(
        as_stored(graph, trace.variables, strategy),
        strategy.devices,
        variables=tuple(trace.variables),
        pipeline=request.pipeline_for(target),
        compiler_options={
            **step_options(target, strategy.devices.kind),
            **(request.compiler_options or {}),
        },
        given=_host_avals(arguments, avals, strategy),
        interface=interface,
    )
    return traced, interface


def _prove_equal_means(graph: Graph, trace: Trace) -> None:
    if trace.means.operands:
        on_read = [
            spec.name
            for variable, spec in zip(trace.variables, trace.specs, strict=True)
            if not variable.is_mirrored
        ]
        trace.means.equal = proven_equal(graph, trace.means, on_read)


def _imported(
    closed: Any, name: str, trace: Trace, interface: Interface, inputs: Sequence[Value]
) -> Graph:
    """Return the logical graph; the axis is bound, since the import may trace loops again."""
    size = interface.strategy.num_replicas_in_sync
    return bound(
        interface.strategy.axis_name,
        size,
        lambda: import_jaxpr(
            closed,
            name=name,
            num_replicas=size,
            inputs=inputs,
            variables=trace.specs,
            returns_per_replica=interface.per_replica,
            means=trace.means,
        ),
    )


def _note_unequal_rows(
    interface: Interface, graph: Graph, arguments: Iterable[tuple[Any, LeafKey]]
) -> None:
    """Warn of means over unequal counts of rows; note these counts for outputs."""
    counts = [rows_of(leaf, key) for leaf, key in arguments]
    inputs = [
        (value, rows) for value, rows in zip(graph.inputs, counts, strict=True) if rows is not None
    ]
    for values, rows in warn_of_unequal_means(graph, inputs):
        for index, output in enumerate(graph.outputs):
            if interface.per_replica[index] and output in values:
                interface.rows[index] = rows


def _strategy_of(
    leaves: Sequence[Any], keys: Sequence[LeafKey], names: Sequence[str]
) -> StrategyBase:
    """Return the current strategy, or that of an argument, or else the default strategy."""
    entry = current_entry()
    if entry is not None:
        return entry.strategy
    for leaf in leaves:
        if isinstance(leaf, PerReplicaArray | PerReplicaSpec) and leaf.strategy is not None:
            return leaf.strategy
    for key, name in zip(keys, names, strict=True):
        if is_per_replica(key):
            raise ContextError(
                f"argument {name!r} has a value per replica, but no strategy made it and no scope "
                f"is open: the number of replicas is not known",
                hint="call the function inside strategy.scope()",
            )
    return strategy_outside()


def _in_scope(trace: Trace, call: Callable[[], Result]) -> Result:
    """Call a function in cross-replica context of the trace's strategy, if it has one."""
    is_there = current_entry() is not None or trace.strategy.is_default
    try:
        with nullcontext() if is_there else entered(Entry(trace.strategy)):
            return call()
    except AttributeError as error:
        missing = missing_context(error)
        if missing is None:
            raise
        raise missing from error


def _settle(trace: Trace, interface: Interface) -> StrategyBase:
    """Return the program's strategy after the trace; its variables must belong to it."""
    strategy: StrategyBase = trace.strategy
    interface.strategy = strategy
    for variable in trace.variables:
        if variable.strategy is not strategy and not variable.is_plain:
            raise ContextError(
                f"variable {variable.name!r} belongs to {variable.strategy}, "
                f"the function that uses it runs on {strategy.beside(variable.strategy)}",
                other=variable.made_at,
                hint=alike(strategy, variable.strategy)
                or "make the variable inside the scope of the strategy that uses it",
            )
    return strategy


def _aval(leaf: Any, key: LeafKey, value: Value) -> jax.ShapeDtypeStruct:
    """Return the type of an input in the trace, or of one component of a per-replica input."""
    if not is_per_replica(key):
        return input_aval(leaf, key)
    if isinstance(leaf, PerReplica) and not isinstance(leaf, PerReplicaArray):
        dtype = key[1][0][1]
    else:
        dtype = leaf.array.dtype if isinstance(leaf, PerReplicaArray) else leaf.dtype
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(value.type.shape, dtype)


def _host_avals(
    leaves: Sequence[Any],
    avals: Sequence[jax.ShapeDtypeStruct],
    strategy: StrategyBase,
) -> dict[int, jax.ShapeDtypeStruct]:
    """Return the types of inputs that calls do not pass as arrays on the devices, by index."""
    passed = [_host_aval(leaf, aval, strategy) for leaf, aval in zip(leaves, avals, strict=True)]
    return {index: aval for index, aval in enumerate(passed) if aval is not None}


def _host_aval(
    leaf: Any, aval: jax.ShapeDtypeStruct, strategy: StrategyBase
) -> jax.ShapeDtypeStruct | None:
    """Return the type that a call passes for an input; None for an ordinary array on the devices.

    JAX compiles separately for an array on the devices, a weakly typed array, and an array on the
    host. The program must be lowered for the types that its calls pass.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | Mirrored) and aval.weak_type:
        return aval.update(sharding=strategy.devices.mirrored)
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct | DistributedValues | PerReplicaSpec):
        return None
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _hint(name: str) -> str:
    """Return a leaf's name as an identifier: `batch['image']` as `batch_image`."""
    kept = "".join(character if character.isalnum() else "_" for character in name)
    return "_".join(part for part in kept.split("_") if part)
