"""`run`, `reduce`, `gather` and `experimental_local_results` inside a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any  # Any: users' pytrees

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import Entry, entered
from graphdist.errors import ArgumentError, ArgumentTypeError, GraphdistError
from graphdist.options import ReduceOp
from graphdist.program.argument_changes import call_with_copies
from graphdist.program.step_functions import name_of, require_result
from graphdist.state.variable import Variable
from graphdist.state.variable_updates import IndexedSlices
from graphdist.strategies.replica_context import (
    ReplicaContext,
    is_slices,
    reduction_of,
    refuse_slices,
)
from graphdist.strategies.replica_variants import run_by_variant
from graphdist.strategy_base import StrategyBase
from graphdist.tracing.axis_name import run_by_each_replica
from graphdist.tracing.primitives import gather_p, reduce_p, replica_id_p
from graphdist.tracing.slots import Slot
from graphdist.tracing.trace_in_progress import current_trace, fresh_trace
from graphdist.values.distributed import (
    Mirrored,
    PerReplica,
    Shapes,
    TracedParts,
    TracedPerReplica,
    is_array,
    is_distributed,
    put_together,
    type_name,
)
from graphdist.values.pytrees import map_leaves
from graphdist.values.reducible import gather_dimension, summable, without_padding
from graphdist.values.replica_warnings import warn_of_unsplit_batch


def run(
    strategy: StrategyBase, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Trace `fn` once for all replicas, or once per replica variant if the replicas differ."""
    trace = current_trace()
    assert trace is not None
    trace.claim(strategy)
    warn_of_unsplit_batch(strategy, fn, args, kwargs, trace.is_from_outside)
    run, by_replica_id = trace.next_run()
    arguments = jax.tree.leaves((args, kwargs), is_leaf=is_distributed)
    many = strategy.num_replicas_in_sync > 1
    trace.replica_id_was_used = False
    trace.current_run = run if many and not by_replica_id else None
    try:
        if many and (by_replica_id or any(map(_differs, arguments))):
            traced = partial(run_by_variant, strategy, fn, args, kwargs, by_replica_id)
        else:
            traced = partial(_run_once, strategy, fn, args, kwargs)
        with trace.means.region("run", run):
            return trace.bound(strategy.axis_name, strategy.num_replicas_in_sync, traced)
    except GraphdistError:
        raise
    except Exception:
        trace.retry_by_replica_id()  # the trace may succeed with the id as a Python value
        raise
    finally:
        trace.current_run = None


def _differs(leaf: Any) -> bool:
    """Return whether a leaf is per-replica, with different shapes or with Python values."""
    if isinstance(leaf, TracedPerReplica):
        return leaf.shapes is not None
    if isinstance(leaf, PerReplica) and any(map(is_array, leaf.values)):
        raise _closed_over()
    return isinstance(leaf, PerReplica)


def _run_once(
    strategy: StrategyBase, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    context, trace = ReplicaContext(strategy), current_trace()
    outside = context.mirrored
    assert trace is not None

    def enter(leaf: Any) -> Any:
        leaf = put_together(leaf)
        if isinstance(leaf, TracedPerReplica):
            return leaf.local
        if isinstance(leaf, PerReplica):  # there is 1 replica
            return leaf.values[0]
        if isinstance(leaf, Mirrored):
            leaf = leaf.array
        if not isinstance(leaf, jax.core.Tracer):
            return leaf
        inside = trace.to_replicas(leaf, strategy.num_replicas_in_sync)
        outside[id(inside)] = (inside, leaf)
        return inside

    def leave(leaf: Any) -> Any:
        if id(leaf) in outside:
            return outside[id(leaf)][1]
        if is_distributed(leaf) or not is_array(leaf):
            return leaf
        array = jnp.asarray(leaf)
        return TracedPerReplica(array) if strategy.num_replicas_in_sync > 1 else array

    entered_args, entered_kwargs = jax.tree.map(enter, (args, kwargs), is_leaf=is_distributed)
    with fresh_trace(), entered(Entry(strategy, context)):
        results = run_by_each_replica(
            lambda: call_with_copies(fn, entered_args, entered_kwargs, name_of(fn))
        )
    require_result(results, "the function given to run")
    return map_leaves(leave, results, is_distributed)


def _not_traced(value: PerReplica, what: str) -> GraphdistError:
    """Return the error for a PerReplica that is not an input of the function."""
    kinds = {type_name(part) for part in value.values if not is_array(part)}
    if not kinds:
        return _closed_over()
    return ArgumentTypeError(
        f"{what} of a PerReplica of {' and '.join(sorted(kinds))}: it takes arrays and numbers"
    )


def _closed_over() -> ArgumentError:
    return ArgumentError(
        "a PerReplica made outside the function is used in it without being an argument",
        hint="pass it to the function as an argument",
    )


def reduce(strategy: StrategyBase, op: ReduceOp, value: Any, axis: tuple[int, ...] | None) -> Any:
    """Reduce every leaf. None in a pytree is no leaf, but None alone is a leaf."""
    return jax.tree.map(
        lambda leaf: _one_value(_reduce_leaf(strategy, op, put_together(leaf), axis)),
        value,
        is_leaf=lambda leaf: is_distributed(leaf) or is_slices(leaf) or value is None,
    )


def _one_value(combined: Any) -> Any:
    trace = current_trace()
    is_array = isinstance(combined, jax.core.Tracer)
    return trace.note_one_value(combined) if trace is not None and is_array else combined


def _reduce_leaf(strategy: StrategyBase, op: ReduceOp, leaf: Any, axis: Any) -> Any:
    size = strategy.num_replicas_in_sync
    if isinstance(leaf, IndexedSlices):
        scale = size if op is ReduceOp.MEAN else 1
        values, indices = gather(strategy, leaf.values, 0), gather(strategy, leaf.indices, 0)
        shape = leaf.dense_shape
        if is_distributed(shape):
            shape = _components(strategy, shape)[0]
        return IndexedSlices(values / scale if scale > 1 else values, indices, shape)
    is_variable = isinstance(leaf, Variable)
    leaf = _array_of_numbers(_value_of_variable(leaf, has_axis=axis is not None), size)
    if not isinstance(leaf, TracedPerReplica):
        if isinstance(leaf, PerReplica):
            raise _not_traced(leaf, "reduce")
        if op is ReduceOp.SUM and size > 1 and axis is None:
            raise ArgumentError(
                f"reduce by SUM of a value that is not distributed: it is one value, not {size}",
                hint="use MEAN for a value that all replicas share, or reduce the result of run, "
                "all of a tree at once: strategy.reduce('SUM', tree, axis=None)",
            )
        if axis is None:
            value = leaf.array if isinstance(leaf, Mirrored) else leaf
            # On one replica the value may be a result of run, whose mean is a float.
            is_integer = is_array(value) and jnp.issubdtype(value.dtype, jnp.integer)
            may_be_returned = size == 1 and is_integer and not is_variable
            return reduction_of(value, op, "reduce")[0] if may_be_returned else value
        # Along an axis every replica reduces the value.
        local = leaf.array if isinstance(leaf, Mirrored) else leaf
    else:
        local = leaf.local
    if axis is None:
        local, reducer = reduction_of(local, op, "reduce")
    else:
        local, reducer = summable(local, op.reducer, "reduce"), op.reducer
    axes = () if axis is None else _dimensions(local, axis)
    shapes = _shapes(leaf, local, size)
    _check_equal(shapes, "reduce", axes)
    if axis is None:
        return reduce_p.bind(local, reducer=reducer, group_size=size)
    # The padding is zeros, which add nothing.
    total = reduce_p.bind(jnp.sum(local, axis=axes), reducer="sum", group_size=size)
    if op is ReduceOp.SUM:
        return total
    return total / sum(prod(shape[i] for i in axes) for shape in shapes)


def _value_of_variable(leaf: Any, *, has_axis: bool) -> Any:
    """Return the value of a mirrored variable, or a `PerReplica` of another variable's copies.

    If `has_axis`, a mirrored variable gives a `PerReplica` of its copies, too. Any other leaf is
    returned unchanged.
    """
    if not isinstance(leaf, Variable):
        return leaf
    local = leaf.copies()
    many = leaf.strategy.num_replicas_in_sync > 1
    return TracedPerReplica(local) if many and (has_axis or not leaf.is_mirrored) else local


def _array_of_numbers(leaf: Any, size: int) -> Any:
    """Return a `PerReplica` of Python numbers as a `PerReplica` of arrays; keep other leaves."""
    if not isinstance(leaf, PerReplica) or isinstance(leaf, TracedPerReplica):
        return leaf
    parts = leaf.parts if isinstance(leaf, TracedParts) else leaf.values
    if not all(isinstance(part, int | float | complex) for part in parts):
        return leaf
    return TracedPerReplica(jnp.asarray(parts)[replica_id_p.bind(group_size=size)])


def _shapes(leaf: Any, local: Any, size: int) -> Shapes:
    return getattr(leaf, "shapes", None) or (tuple(local.shape),) * size


def _check_equal(shapes: Shapes, what: str, but: Sequence[int]) -> None:
    """Raise `ArgumentError` if the replicas' shapes differ in a dimension that is not in `but`."""
    for replica, shape in enumerate(shapes):
        pairs = enumerate(zip(shapes[0], shape, strict=True))
        if any(size != other and i not in but for i, (size, other) in pairs):
            raise ArgumentError(
                f"{what} of values of shape {list(shapes[0])} on replica 0 and {list(shape)} on "
                f"replica {replica}",
                hint="give all replicas values of one shape, or combine them along the axis in "
                "which they differ",
            )


def reduce_axes(axis: Any) -> tuple[int, ...] | None:
    """Return the `axis` of a reduce as a tuple; raises `ArgumentTypeError` for another type."""
    if axis is None:
        return None
    axes = tuple(axis) if isinstance(axis, tuple | list) else (axis,)
    if not all(isinstance(item, int) for item in axes):
        raise ArgumentTypeError(
            f"reduce along axis {axis!r}: an axis is an int, a tuple of ints or None"
        )
    return axes


def _dimensions(local: Any, axes: tuple[int, ...]) -> tuple[int, ...]:
    rank = local.ndim
    for axis in axes:
        if not -rank <= axis < rank:
            raise ArgumentError(
                f"reduce along axis {axis}: the replicas' values have rank {rank}",
                hint=f"choose axes from {-rank} to {rank - 1}" if rank else "use axis=None",
            )
    return tuple(sorted({axis % rank for axis in axes}))


def gather(strategy: StrategyBase, value: Any, axis: int) -> Any:
    """Concatenate the replicas' values of every leaf."""
    refuse_slices(value, "gather")
    if value is None:
        return _gather_leaf(strategy, value, axis)
    return jax.tree.map(
        lambda leaf: _one_value(_gather_leaf(strategy, put_together(leaf), axis)),
        value,
        is_leaf=is_distributed,
    )


def _gather_leaf(strategy: StrategyBase, value: Any, axis: int) -> Any:
    value = _value_of_variable(value, has_axis=True)
    if not isinstance(value, TracedPerReplica):
        if isinstance(value, PerReplica):
            raise _not_traced(value, "gather")
        if not isinstance(value, jax.Array | np.ndarray | np.generic | int | float | Mirrored):
            raise ArgumentTypeError(
                f"gather of a {type(value).__name__}: it takes PerReplica values, in pytrees too",
                hint="give it the result of run, or an array",
            )
        return value.array if isinstance(value, Mirrored) else value
    size = strategy.num_replicas_in_sync
    dimension = gather_dimension(value.local, axis, "gather")
    shapes = _shapes(value, value.local, size)
    _check_equal(shapes, "gather", (dimension,))
    gathered = gather_p.bind(value.local, axis=dimension, group_size=size)
    lengths = [shape[dimension] for shape in shapes]
    return without_padding(gathered, lengths, value.local.shape[dimension], dimension)


def local_results(strategy: StrategyBase, value: Any) -> tuple[Any, ...]:
    """Return the replicas' components of a value or of a container of values."""
    structure: Any
    value = put_together(value)
    leaves, structure = jax.tree.flatten(value, is_leaf=is_distributed)
    is_container = structure != jax.tree.structure(0) and value is not None
    if not is_container and not is_distributed(value):
        return (value,)
    if isinstance(value, Variable) and current_trace() is None:
        return value.values
    count = strategy.num_replicas_in_sync
    if current_trace() is None:
        count = len(strategy.devices.local_replicas)
    components = [
        _components(strategy, leaf) if is_distributed(leaf) else (leaf,) * count for leaf in leaves
    ]
    return tuple(
        jax.tree.unflatten(structure, [of_all[replica] for of_all in components])
        for replica in range(count)
    )


def _part(part: Any, replica: int, count: int) -> Any:
    if not isinstance(part, Slot):
        return part
    stacked = gather_p.bind(part.array[None], axis=0, group_size=count)
    return Slot(stacked[replica], part.shape).value()


def _components(strategy: StrategyBase, leaf: Any) -> tuple[Any, ...]:
    count = strategy.num_replicas_in_sync
    if isinstance(leaf, TracedParts):
        return tuple(_part(part, replica, count) for replica, part in enumerate(leaf.parts))
    if not isinstance(leaf, TracedPerReplica):
        values = tuple(leaf.values)
        local = strategy.devices.local_replicas
        if len(values) == count > len(local):  # these are the values of all workers' replicas
            values = values[local.start : local.stop]
        return values * len(local) if len(values) == 1 else values  # a single value is mirrored
    stacked = gather_p.bind(jnp.asarray(leaf.local)[None], axis=0, group_size=count)
    shapes = _shapes(leaf, leaf.local, count)
    return tuple(Slot(stacked[i], shape).value() for i, shape in enumerate(shapes))
