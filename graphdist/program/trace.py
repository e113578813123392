"""Traces a function for the arguments of a call.

Arguments become tracers and distributed values of tracers, and the user's function is called with
them. The arrays of the result become outputs of the graph. Its other leaves are stored.

A function is traced again for two reasons.

* The function needs the replica id as a Python value, or the replicas' axis name throughout.
* A mean of integers stays an integer if all replicas hold the same integer. In the first trace
  every mean is a float. The function is traced again if the first graph proves of some means that
  their integers are equal on all replicas. It is also traced again if the first trace fails, since
  the float may be the cause. The second trace assumes equal integers for all means except those
  whose proof failed, because one mean that stays an integer may make others provable. The graph of
  a trace must prove what the trace assumed. Assumptions without a proof are dropped, and the
  function is traced again. If such a trace fails, or too many are needed, the result of the first
  trace is used.

On several replicas an operand is proven equal if its layout is mirrored. On one replica every
value is trivially equal, but the mean must have the same dtype as on several replicas. So on one
replica an operand counts as equal only if it depends on mirrored variables and constants alone. On
several replicas an argument, or a value that is computed from the replica id, might differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
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
from graphdist.ir.analyses import all_producers
from graphdist.ir.errors import GraphdistError
from graphdist.ir.flow import Vertex, diverges, reachable, uses
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, GATHER, READ, REDUCE, REPLICA_ID
from graphdist.ir.types import MIRRORED
from graphdist.passes.logical.infer_layouts import infer_layouts
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.argument_keys import (
    LeafKey,
    StaticArgument,
    canonical_dtype,
    input_aval,
    input_type,
    is_per_replica,
    rows_of,
    traced_leaf,
)
from graphdist.program.interface import Interface, output_arrays
from graphdist.program.leaked_values import leaks_refused
from graphdist.program.progress import phase
from graphdist.program.stages import Traced
from graphdist.program.step_functions import FunctionOptions, require_result
from graphdist.runtime.compilation import step_options
from graphdist.state.program_storage import as_stored
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.axis_name import bound
from graphdist.tracing.jaxpr_to_graph import import_jaxpr
from graphdist.tracing.marks import IntegerMeans, MeanId
from graphdist.tracing.trace_in_progress import (
    NeedsNameThroughout,
    NeedsReplicaId,
    Trace,
    make_jaxpr,
)
from graphdist.values.distributed import DistributedValues, Mirrored, PerReplica, PerReplicaArray
from graphdist.values.pytrees import argument_name, unflatten
from graphdist.values.replica_warnings import warn_of_gathered_updates, warn_of_unequal_means
from graphdist.values.specs import PerReplicaSpec

Result = TypeVar("Result")

while_tracing: list[Callable[[], AbstractContextManager[object]]] = []
"""Functions that return context managers, which every trace enters. Higher packages add some."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A function to be traced for the arguments of one call. `keys` has the key of each leaf."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    keys: tuple[LeafKey, ...]
    options: FunctionOptions


@collection_put_off()
def trace_program(request: TraceRequest, is_first: bool) -> Traced:
    """Trace a function until the result can be used, and return the result.

    If `is_first`, the first trace may create variables.
    """
    attempts = _TraceAttempts(request)
    try:
        result = attempts.trace_as_needed(is_first, None)
    except Exception:
        kept = attempts.trace_with_integers(frozenset()) if attempts.means.are_any else None
        if kept is None:
            raise
        return kept
    means = attempts.means
    return (attempts.trace_with_integers(means.unproven) if means.equal else None) or result


def _trace(request: TraceRequest, trace: Trace) -> Traced:
    fn, keys, options = request.fn, request.keys, request.options
    name = str(options.name)
    paths, structure = jax.tree_util.tree_flatten_with_path((request.args, request.kwargs))
    leaves = [leaf for _, leaf in paths]
    names = [argument_name(fn, path) for path, _ in paths]
    trace.strategy = _strategy_of(leaves, keys, names)
    replicas = trace.strategy.num_replicas_in_sync
    interface = Interface(
        keys, names, trace.strategy, tuple(jax.tree_util.keystr(path) for path, _ in paths)
    )
    dynamic = interface.dynamic

    inputs = [
        Value(input_type(leaves[i], keys[i], replicas, names[i]), _hint(names[i])) for i in dynamic
    ]
    avals = [_aval(leaves[i], keys[i], value) for i, value in zip(dynamic, inputs, strict=True)]

    def body(*tracers: Any) -> list[Any]:
        values = [leaf.value if isinstance(leaf, StaticArgument) else leaf for leaf in leaves]
        for i, tracer in zip(dynamic, tracers, strict=True):
            values[i] = traced_leaf(keys[i], tracer, replicas)
        call_args, call_kwargs = unflatten(structure, values)
        with leaks_refused(fn, (*call_args, *call_kwargs.values()), name):
            result = call_with_copies(fn, call_args, call_kwargs, name)
        require_result(result, name)
        return output_arrays(result, interface)

    with phase("tracing"), ExitStack() as contexts:
        for make in while_tracing:
            contexts.enter_context(make())
        hints = [value.hint for value in inputs]
        closed = _in_scope(trace, lambda: make_jaxpr(trace, body, avals, fn, hints))
    # After the trace, since the function's variables may determine the strategy.
    strategy = interface.strategy = trace.strategy
    _require_own_variables(trace)
    target = replace(strategy.target.packing(trace.bytes_per_pack), plan=options.plan)
    graph = _imported(closed, _hint(name), trace, interface, inputs)
    trace.means.equal = _proven_equal(graph, trace)
    if target.local_steps is not None:
        warn_of_gathered_updates(graph)
    _note_unequal_rows(interface, graph, [rows_of(leaves[i], keys[i]) for i in dynamic])
    passed = [_host_aval(leaves[i], aval, strategy) for i, aval in zip(dynamic, avals, strict=True)]
    return Traced(
        as_stored(graph, trace.variables, strategy),
        strategy.devices,
        variables=tuple(trace.variables),
        pipeline=options.pipeline_for(target),
        plan=options.plan,
        pipeline_for=lambda plan: options.pipeline_for(replace(target, plan=plan)),
        compiler_options={
            **step_options(target, strategy.devices.kind),
            **(options.compiler_options or {}),
        },
        given={index: aval for index, aval in enumerate(passed) if aval is not None},
        interface=interface,
    )


def _imported(
    closed: Any, name: str, trace: Trace, interface: Interface, inputs: Sequence[Value]
) -> Graph:
    """Return the logical graph of a jaxpr.

    The replicas' axis name is bound during the import, which may trace loops again.
    """
    size = interface.strategy.num_replicas_in_sync
    return bound(
        interface.strategy.axis_name,
        size,
        lambda: import_jaxpr(
            closed,
            name=name,
            num_replicas=size,
            num_groups=interface.strategy.devices.num_groups,
            num_cores=interface.strategy.devices.num_cores,
            inputs=inputs,
            variables=trace.specs,
            returns_per_replica=interface.per_replica,
            means=trace.means,
        ),
    )


def _note_unequal_rows(
    interface: Interface, graph: Graph, rows_of_inputs: Sequence[tuple[int, ...] | None]
) -> None:
    """Warn of means over replicas with unequal numbers of rows.

    Store the numbers of rows in `interface` for the outputs computed from such rows.
    """
    pairs = zip(graph.inputs, rows_of_inputs, strict=True)
    inputs = [(value, rows) for value, rows in pairs if rows is not None]
    for values, rows in warn_of_unequal_means(graph, inputs):
        for index, output in enumerate(graph.outputs):
            if interface.per_replica[index] and output in values:
                interface.rows[index] = rows


def _strategy_of(
    leaves: Sequence[Any], keys: Sequence[LeafKey], names: Sequence[str]
) -> StrategyBase:
    """Return the current strategy, else the strategy of an argument, else the default strategy."""
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
    """Call a function in cross-replica context of the trace's strategy.

    The context does not change if a strategy is current, or if the trace's strategy is the default.
    """
    is_there = current_entry() is not None or trace.strategy.is_default
    try:
        with nullcontext() if is_there else entered(Entry(trace.strategy)):
            return call()
    except AttributeError as error:
        missing = missing_context(error)
        if missing is None:
            raise
        raise missing from error


def _require_own_variables(trace: Trace) -> None:
    """Raise `ContextError` for a variable of another strategy."""
    strategy: StrategyBase = trace.strategy
    for variable in trace.variables:
        if variable.strategy is not strategy and not variable.is_plain:
            raise ContextError(
                f"variable {variable.name!r} belongs to {variable.strategy}, "
                f"the function that uses it runs on {strategy.beside(variable.strategy)}",
                other=variable.made_at,
                hint=alike(strategy, variable.strategy)
                or "make the variable inside the scope of the strategy that uses it",
            )


def _aval(leaf: Any, key: LeafKey, value: Value) -> jax.ShapeDtypeStruct:
    """Return the type of an input in the trace, or of one component of a per-replica input."""
    if not is_per_replica(key):
        return input_aval(leaf, key)
    if isinstance(leaf, PerReplica) and not isinstance(leaf, PerReplicaArray):
        dtype = key[1][0][1]
    else:
        dtype = leaf.array.dtype if isinstance(leaf, PerReplicaArray) else leaf.dtype
    return jax.ShapeDtypeStruct(value.type.shape, canonical_dtype(dtype))


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


_MAX_TRACES = 4
"""The largest number of traces of one program that try to keep means of integers integers."""


class _TraceAttempts:
    """The traces of one function for the arguments of one call."""

    def __init__(self, request: TraceRequest) -> None:
        self._request = request
        self._by_replica_id: set[int] = set()
        self._axis: tuple[str, int] | None = None
        self.means = IntegerMeans()
        """The means over replicas of the latest trace."""

    def trace_as_needed(self, is_first: bool, unequal: Collection[MeanId] | None) -> Traced:
        """Trace again until no replica id and no axis name is missing; return the result.

        `unequal` has the means of integers that become floats; None means all.
        """
        while True:
            self.means = IntegerMeans(unequal)
            trace = Trace(is_first, self._by_replica_id, self._axis, self.means)
            try:
                return _trace(self._request, trace)
            except NeedsReplicaId as needs:
                self._by_replica_id.update(needs.args)
            except NeedsNameThroughout as needs:
                self._axis = needs.args

    def trace_with_integers(self, unequal: frozenset[MeanId]) -> Traced | None:
        """Return the result of a trace in which means of equal integers stay integers.

        `unequal` has the means that are not assumed to have equal integers. Returns None if a trace
        fails, or if too many are needed.
        """
        for _ in range(_MAX_TRACES):
            try:
                result = self.trace_as_needed(False, unequal)
            except Exception:  # the program may need the mean to be a float
                return None
            if self.means.unproven <= unequal:
                return result
            unequal |= self.means.unproven
        return None


_MIRRORED_RESULTS = (REDUCE, ALL_REDUCE, GATHER, ALL_GATHER)


def _proven_equal(graph: Graph, trace: Trace) -> frozenset[MeanId]:
    """Return the means in a logical graph whose integers are equal on all replicas."""
    means, has_replicas = trace.means, graph.num_replicas > 1
    if not means.operands or (means.uses_replica_id and not has_replicas):
        return frozenset()
    known = _mirrored(graph) if has_replicas else _dependent(graph, trace)

    def is_equal(operand: Operand | None) -> bool:
        if isinstance(operand, Value):
            return (operand in known) is has_replicas
        return operand is not None

    return frozenset(i for i, operands in means.operands.items() if all(map(is_equal, operands)))


def _mirrored(graph: Graph) -> set[Vertex]:
    """Return the mirrored values of a graph, but none in loops and branches that diverge."""
    mirrored: set[Vertex] = set()
    try:
        pending = [(graph, infer_layouts(graph))]
    except GraphdistError:  # it is raised again when the program is compiled
        return mirrored
    while pending:
        traced, inferred = pending.pop()
        pairs = list(zip(traced.inputs, inferred.inputs, strict=True))
        for node, known in zip(traced.nodes, inferred.nodes, strict=True):
            pairs += zip(node.results, known.results, strict=True)
            if not diverges(known):
                pending += zip(node.graphs, known.graphs, strict=True)
        mirrored.update(value for value, known in pairs if known.type.layout is MIRRORED)
    return mirrored


def _dependent(graph: Graph, trace: Trace) -> set[Vertex]:
    """Return the values that depend on a value which may differ between replicas."""
    pairs = zip(trace.variables, trace.specs, strict=True)
    on_read = {spec.name for variable, spec in pairs if not variable.is_mirrored}
    made_by = all_producers(graph)
    different = [value for value, node in made_by.items() if _may_differ(node, on_read)]
    same = [value for value, node in made_by.items() if node.op in (READ, *_MIRRORED_RESULTS)]
    return reachable(uses(graph), [*graph.inputs, *different], without=set(same))


def _may_differ(node: Node, on_read: set[str]) -> bool:
    """Return whether the result of a node could differ between several replicas.

    `on_read` has the names of variables with a value per replica.
    """
    if node.op is READ:
        variable = READ.of(node).variable
        return variable.is_local or variable.name in on_read
    exchanges = node.op.is_collective and node.op not in _MIRRORED_RESULTS
    return exchanges or node.op.varies or node.op is REPLICA_ID
