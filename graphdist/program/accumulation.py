"""Gradient accumulation: a batch is processed in microbatches, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar  # Any: users' functions, batches and gradients

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.options import ReduceOp
from graphdist.program.step_functions import require_function
from graphdist.tracing.marks import marked
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.distributed import type_name

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

GATHERS = ("auto", "once", "each")
"""The values of `gather`, which says where sharded variables are gathered."""


def accumulate(
    fn: Callable[Parameters, Result],
    microbatches: int,
    *,
    batch_argnums: int | Sequence[int] = -1,
    reduce_op: ReduceOp | str = ReduceOp.MEAN,
    gather: str = "auto",
) -> Callable[Parameters, Result]:
    """Return a function that calls `fn` on each microbatch in a loop, and combines the results.

    The positional arguments `batch_argnums`, by default the last, are pytrees of arrays with first
    dimensions of one length, which are split into `microbatches` equal parts. The results of `fn`,
    a pytree of arrays, are averaged or summed, in float32 at least. They keep their dtypes, except
    that a mean of integers is a float32, and a sum of booleans an int32. If `fn` reduces over the
    replicas, as in `all_reduce("MEAN", gradients)`, the compiler reduces only the total.

    `gather` says when sharded variables that `fn` reads are gathered: "once" before the loop, or in
    "each" microbatch, which takes less memory and sends more bytes. "auto" means "once", as long as
    the memory suffices (`graphdist.passes.layouts.placed_values`).

    Raises `ArgumentError` for fewer than one microbatch, a batch that cannot be split, or an
    unknown `gather`. Raises `ArgumentTypeError` if `microbatches` or a position is no integer, `fn`
    is not callable, or a result is not a number.

    >>> def loss(w, x):
    ...     return jnp.mean((x @ w) ** 2)
    >>> gradient = accumulate(jax.grad(loss), microbatches=2)
    >>> gradient(jnp.ones(2), jnp.arange(8.0).reshape(4, 2))
    Array([62., 76.], dtype=float32)
    """
    if isinstance(microbatches, bool) or not isinstance(microbatches, int):
        raise ArgumentTypeError(
            f"accumulate over {type_name(microbatches)} microbatches: it is an int"
        )
    if microbatches < 1:
        raise ArgumentError(
            f"accumulate over {microbatches} microbatches: there must be at least 1"
        )
    require_function(fn, "accumulate")
    op = ReduceOp.of(reduce_op)
    argnums = (batch_argnums,) if isinstance(batch_argnums, int) else tuple(batch_argnums)
    if not argnums or not all(isinstance(argnum, int) for argnum in argnums):
        raise ArgumentTypeError(
            f"batch_argnums is {batch_argnums!r}: it is an int, or several",
            hint="leave it out where the last positional argument is the batch",
        )

    if gather not in GATHERS:
        raise ArgumentError(f"gather is {gather!r}, not one of {', '.join(map(repr, GATHERS))}")

    def accumulated(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        positions = _positions(argnums, len(args))
        parts = {position: _split(args[position], microbatches) for position in positions}

        def call(part: dict[int, Any]) -> Any:
            return fn(*(part.get(i, argument) for i, argument in enumerate(args)), **kwargs)

        return _summed(call, parts, microbatches, op, gather)

    return accumulated


def _summed(
    call: Callable[[Any], Any], parts: Any, microbatches: int, op: ReduceOp, gather: str
) -> Any:
    """Return the sum or mean of the results of `call` on the microbatches."""
    first = jax.tree.map(lambda part: jax.ShapeDtypeStruct(part.shape[1:], part.dtype), parts)
    shapes = jax.eval_shape(lambda part: jax.tree.map(_as_part, call(part)), first)

    is_marked = gather != "auto" and current_trace() is not None

    def add(total: Any, part: Any) -> tuple[Any, None]:
        total = jax.tree.map(lambda t: marked(t, gather=gather), total) if is_marked else total
        return jax.tree.map(lambda t, x: t + jnp.asarray(x, t.dtype), total, call(part)), None

    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, _total_dtype(shape, op)), shapes)
    total, _ = jax.lax.scan(add, zeros, parts)
    scale = microbatches if op is ReduceOp.MEAN else 1

    def finish(total: jax.Array, shape: Any) -> jax.Array:
        return (total / scale if scale > 1 else total).astype(_result_dtype(shape, op))

    return jax.tree.map(finish, total, shapes)


def _as_part(result: Any) -> jax.Array:
    """Return a result of the accumulated function as an array of numbers."""
    if hasattr(result, "dtype") or isinstance(result, bool | int | float | complex):
        array = jnp.asarray(result)
        if not jnp.issubdtype(array.dtype, jax.dtypes.extended):
            return array
        what = f"an array of {array.dtype}"
    else:
        what = f"a value of type {type_name(result)}"
    raise ArgumentTypeError(
        f"an accumulated function returned {what}: the results of microbatches are summed",
        hint="return numbers",
    )


def _total_dtype(shape: Any, op: ReduceOp) -> Any:
    dtype = _result_dtype(shape, op)
    return jnp.promote_types(dtype, jnp.float32) if _is_inexact(dtype) else dtype


def _result_dtype(shape: Any, op: ReduceOp) -> Any:
    if op is ReduceOp.MEAN and not _is_inexact(shape.dtype):
        return jnp.result_type(float)
    if shape.dtype == jnp.bool_:
        return jnp.result_type(int)
    return shape.dtype


def _is_inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def _positions(argnums: Sequence[int], count: int) -> list[int]:
    for argnum in argnums:
        if not -count <= argnum < count:
            raise ArgumentError(
                f"argument {argnum} of an accumulated function is its batch, but it was called "
                f"with {count} positional arguments",
                hint="pass the batch by position, and say which it is: batch_argnums=1",
            )
    return [argnum % count for argnum in argnums]


def _split(batch: Any, microbatches: int) -> Any:
    """Return the batch with leaves of shape [microbatches, rows per microbatch, ...]."""
    rows = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(rows) != 1 or rows == {()}:
        shapes = ", ".join(str(list(jnp.shape(leaf))) for leaf in jax.tree.leaves(batch)) or "none"
        raise ArgumentError(
            f"the batch of an accumulated function has leaves of shape {shapes}: they need a first "
            f"dimension of the same length"
        )
    ((length,),) = rows
    if length % microbatches:
        divisors = (n for n in range(1, microbatches + 1) if length % n == 0)
        raise ArgumentError(
            f"a batch of {length} rows does not divide into {microbatches} microbatches",
            hint=f"use {max(divisors, default=1)} microbatches, or another batch size",
        )

    def split(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.reshape(microbatches, length // microbatches, *array.shape[1:])

    return jax.tree.map(split, batch)
