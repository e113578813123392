"""Unequal replicas: a replica function is traced once for each replica variant.

A variant is a set of replicas whose arguments have the same shapes. If the function needs the
replica id as a Python value, or gets different Python values, every replica is a variant. The
traces are merged into one trace (`tracing/merge_variants.py`), and the results of the variants are
combined leaf by leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any  # Any: users' pytrees

import jax
import jax.numpy as jnp

from graphdist.context import Entry, entered
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.argument_keys import StaticValue
from graphdist.program.step_functions import name_of, require_result
from graphdist.strategies.peers import (
    Assumptions,
    NotKnownYet,
    Peers,
    ReplicaVariant,
    is_leaf_of_result,
)
from graphdist.strategies.replica_context import ReplicaContext
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.axis_name import run_by_each_replica
from graphdist.tracing.merge_variants import merge_variants
from graphdist.tracing.primitives import replica_id_p
from graphdist.tracing.slots import Slot
from graphdist.tracing.trace_in_progress import current_trace, fresh_trace
from graphdist.values.distributed import (
    Mirrored,
    PerReplica,
    TracedParts,
    TracedPerReplica,
    is_array,
    is_distributed,
    require_one_structure,
    unequal,
)
from graphdist.values.pytrees import unflatten

_OUTPUT = object()


@dataclass(frozen=True)
class _UnchangedArgument:
    """A leaf of the result that is an unchanged argument, with one value for all replicas.

    If all variants return the same argument at this leaf, the argument becomes the result, and the
    outputs of the jaxprs are not used.
    """

    value: Any


def run_by_variant(
    strategy: StrategyBase,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    by_replica_id: bool,
) -> Any:
    """Trace `fn` once for each replica variant. If `by_replica_id`, each replica is a variant."""
    leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=is_distributed)
    by_replica_id = by_replica_id or any(_is_static(leaf) for leaf in leaves)
    variants = _variants(leaves, strategy.num_replicas_in_sync, by_replica_id)
    outside = [_mirrored(leaf, strategy) for leaf in leaves]
    traced_leaves = [leaf for leaf in leaves if isinstance(leaf, TracedPerReplica)]
    shapes = [leaf.shapes for leaf in traced_leaves if leaf.shapes]
    assumptions = Assumptions(strategy, variants, shapes)
    while True:
        assumptions.start()
        traced = []
        for variant in variants:
            with suppress(NotKnownYet):
                traced.append(
                    _trace(strategy, fn, structure, leaves, outside, variant, assumptions)
                )
        if assumptions.are_settled():
            return _combined(strategy, variants, leaves, traced)


def _is_static(leaf: Any) -> bool:
    """Return whether a leaf is a Python value per replica."""
    return isinstance(leaf, PerReplica) and not isinstance(leaf, TracedPerReplica)


def _variants(leaves: Sequence[Any], count: int, by_replica_id: bool) -> list[ReplicaVariant]:
    members: dict[Any, list[int]] = {}
    for replica in range(count):
        shapes = tuple(
            leaf.shape_on(replica) for leaf in leaves if isinstance(leaf, TracedPerReplica)
        )
        members.setdefault(replica if by_replica_id else shapes, []).append(replica)
    return [
        ReplicaVariant(index, tuple(replicas), by_replica_id)
        for index, replicas in enumerate(members.values())
    ]


def _mirrored(leaf: Any, strategy: StrategyBase) -> Any:
    """Return the value that every replica gets for a leaf that is not per-replica."""
    value = leaf.array if isinstance(leaf, Mirrored) else leaf
    trace = current_trace()
    if isinstance(value, jax.core.Tracer) and trace is not None:
        return trace.to_replicas(value, strategy.num_replicas_in_sync)
    return value


@dataclass
class _Traced:
    """The trace of a variant: a jaxpr, and the leaves of the result.

    A leaf is a Python value, or an `_OUTPUT` or `_UnchangedArgument` in place of an output of the
    jaxpr.
    """

    jaxpr: Any  # a ClosedJaxpr, which only `tracing` may name
    structure: Any
    leaves: list[Any]


def _trace(
    strategy: StrategyBase,
    fn: Callable[..., Any],
    structure: Any,
    leaves: Sequence[Any],
    outside: Sequence[Any],
    variant: ReplicaVariant,
    assumptions: Assumptions,
) -> _Traced:
    """Trace the function with a variant's arguments."""
    dynamic = [i for i, leaf in enumerate(leaves) if isinstance(leaf, TracedPerReplica)]
    result: list[Any] = []

    trace = current_trace()
    assert trace is not None

    def body(*locals: Any) -> list[Any]:
        values = [
            leaf.values[variant.replica] if _is_static(leaf) else value
            for leaf, value in zip(leaves, outside, strict=True)
        ]
        for i, local in zip(dynamic, locals, strict=True):
            values[i] = local
        args, kwargs = jax.tree.unflatten(structure, values)
        context = ReplicaContext(
            strategy,
            variant.replica if variant.knows_replica_id else None,
            Peers(variant, assumptions),
        )
        with trace.means.region("variant"), entered(Entry(strategy, context)):
            returned = run_by_each_replica(lambda: call_with_copies(fn, args, kwargs, name_of(fn)))
        require_result(returned, "the function given to run")
        outputs, shape = jax.tree.flatten(returned, is_leaf=is_leaf_of_result)
        result[:] = [shape, *(_described(leaf, outside) for leaf in outputs)]
        return [jnp.asarray(leaf) for leaf in outputs if _is_output(leaf)]

    avals = [
        jax.ShapeDtypeStruct(leaves[i].shape_on(variant.replica), leaves[i].local.dtype)
        for i in dynamic
    ]
    with fresh_trace():
        jaxpr = jax.make_jaxpr(body)(*avals)
    return _Traced(jaxpr, result[0], result[1:])


def _is_output(leaf: Any) -> bool:
    return is_array(leaf) and not is_distributed(leaf)


def _described(leaf: Any, outside: Sequence[Any]) -> Any:
    """Return the entry of `_Traced.leaves` for a leaf; the leaf itself if it is no array."""
    if not _is_output(leaf):
        return leaf
    return _UnchangedArgument(leaf) if any(leaf is value for value in outside) else _OUTPUT


def _combined(
    strategy: StrategyBase,
    variants: list[ReplicaVariant],
    leaves: Sequence[Any],
    traced: list[_Traced],
) -> Any:
    dynamic = [leaf for leaf in leaves if isinstance(leaf, TracedPerReplica)]
    arguments = [
        [Slot(leaf.local, leaf.shape_on(variant.replica)) for leaf in dynamic]
        for variant in variants
    ]
    structures = [trace.structure for trace in traced]
    is_one_structure = all(structure == structures[0] for structure in structures)
    # If the structures differ, an error about different collectives comes first.
    positions = _positions(traced) if is_one_structure else [[] for _ in traced]
    count = strategy.num_replicas_in_sync
    index_of = {replica: v.index for v in variants for replica in v.replicas}
    indices = [index_of[replica] for replica in range(count)]
    index: Any = replica_id_p.bind(group_size=count)
    if indices != list(range(count)):  # the index of the replica's variant
        index = jnp.asarray(indices, jnp.int32)[index]
    slots = merge_variants(index, [trace.jaxpr for trace in traced], arguments, positions)
    first_replicas = [variant.replica for variant in variants]
    require_one_structure("the replica function returned", structures, first_replicas)
    results = []
    for position in range(len(traced[0].leaves)):
        row = [slots[index][position] for index in indices]
        statics = [_static(traced[index].leaves[position]) for index in indices]
        results.append(_leaf(row, statics))
    return unflatten(traced[0].structure, results)


def _positions(traced: Sequence[_Traced]) -> list[list[int | None]]:
    """Return, for each variant and each leaf of the result, the index of the jaxpr's output.

    The index is None if the leaf is a Python value, or an argument that all variants return
    unchanged.
    """
    rows: list[list[int | None]] = []
    for trace in traced:
        outputs = iter(range(len(trace.leaves)))
        rows.append([next(outputs) if _is_from_jaxpr(leaf) else None for leaf in trace.leaves])
    for position, leaves in enumerate(zip(*(trace.leaves for trace in traced), strict=True)):
        if all(isinstance(leaf, _UnchangedArgument) for leaf in leaves) and all(
            leaf.value is leaves[0].value for leaf in leaves
        ):
            for row in rows:
                row[position] = None
    return rows


def _is_from_jaxpr(leaf: Any) -> bool:
    return leaf is _OUTPUT or isinstance(leaf, _UnchangedArgument)


def _static(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _UnchangedArgument) else leaf


def _leaf(slots: Sequence[Slot | None], statics: Sequence[Any]) -> Any:
    """Return one leaf of the result, combined from the replicas' leaves.

    `slots` and `statics` have an item for each replica. A replica's leaf is its slot, which is an
    array of the trace, or its value in `statics` if its slot is None.
    """
    first = slots[0]
    if first is not None and all(slot is not None and slot.array is first.array for slot in slots):
        if first.mirrored is not None:
            return first.mirrored
        shapes = unequal([slot.shape for slot in slots if slot is not None])
        return TracedPerReplica(first.array if shapes else first.value(), shapes)
    if first is None and all(_are_same(statics[0], static) for static in statics):
        return statics[0]
    return TracedParts(
        [static if slot is None else slot for slot, static in zip(slots, statics, strict=True)]
    )


def _are_same(value: Any, other: Any) -> bool:
    if value is other:
        return True
    is_plain = isinstance(value, int | float | complex | str | bytes)
    return is_plain and StaticValue(value) == StaticValue(other)
