"""The arrays of numpy that the replicas hold for a value, and how to compute with them.

1. A value is `Held`: a list with one array for each replica that runs the graph.
2. Random keys are arrays of JAX. They are only passed on, sliced and joined.
3. Nothing is written into an array, because replicas may share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import ml_dtypes
import numpy as np

from graphdist.ir.graph import Literal
from graphdist.ir.types import dtype_name, is_integer, numpy_dtype

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Held: TypeAlias = list[Array]
"""The arrays of one value, one for each replica that runs the graph."""
Replicas: TypeAlias = tuple[int, ...]
"""The indices of the replicas that run the graph, in order."""


def reduce_arrays(held: Sequence[Array], reducer: str) -> Array:
    """Return the sum, mean, max or min of the replicas' arrays, in their dtype.

    >>> reduce_arrays([np.float32([1, 2]), np.float32([3, 5])], "mean")
    array([2. , 3.5], dtype=float32)
    """
    dtype = held[0].dtype
    is_small_float = dtype.itemsize < 4 and dtype_name(dtype).startswith(("f", "bf"))
    wide = np.dtype(np.float32) if is_small_float else dtype
    combine = {"max": np.maximum, "min": np.minimum}.get(reducer, np.add)
    total = held[0].astype(wide)
    for array in held[1:]:
        total = np.asarray(combine(total, array.astype(wide)))
    if reducer == "mean":
        total = np.asarray(np.true_divide(total, np.float32(len(held))))
    return total.astype(dtype)


def neutral_element(reducer: str, dtype: np.dtype[Any]) -> Array:
    """Return the scalar that changes nothing in a sum, max or min of numbers.

    >>> neutral_element("max", np.dtype(np.float32)), neutral_element("min", np.dtype(np.int8))
    (array(-inf, dtype=float32), array(127, dtype=int8))
    """
    if reducer == "sum":
        return np.zeros((), dtype)
    is_max, name = reducer == "max", dtype_name(dtype)
    if name == "bool":
        return np.array(not is_max)
    limits: Any  # the two kinds of limits have no common type
    if is_integer(name):
        limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes'
        return np.array(limits.min if is_max else limits.max, dtype)
    infinity = np.array(-np.inf if is_max else np.inf).astype(dtype)
    if np.isinf(infinity):
        return infinity
    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]  # ml_dtypes'
    return np.array(limits.min if is_max else limits.max, dtype)


def literal_array(literal: Literal) -> Array:
    """Return a literal as an array of rank 0.

    >>> from graphdist.ir.types import Type
    >>> literal_array(Literal.of(1, Type("bf16", ())))
    array(1, dtype=bfloat16)
    """
    return np.asarray(literal.value, numpy_dtype(literal.type.dtype))


def on_each(
    operands: Sequence[Held], replicas: Replicas, compute: Callable[[list[Array]], list[Array]]
) -> list[Held]:
    """Return the results of `compute` for each replica's operands.

    `compute` is called once for all replicas whose operands are the same array objects.
    """
    done: dict[tuple[int, ...], list[Array]] = {}
    results = []
    for position in range(len(replicas)):
        arrays = [held[position] for held in operands]
        key = tuple(map(id, arrays))
        if key not in done:
            done[key] = compute(arrays)
        results.append(done[key])
    return [list(held) for held in zip(*results, strict=True)]


def join_arrays(arrays: Sequence[Array], axis: int) -> Array:
    """Return the arrays joined along an existing axis."""
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays, axis)
    return _join_keys(arrays, axis)


def stack_arrays(arrays: Sequence[Array]) -> Array:
    """Return the arrays joined along a new first axis."""
    return join_arrays([array[None, ...] for array in arrays], 0)


def _join_keys(keys: Sequence[Any], axis: int) -> Array:  # Any: random keys of JAX, not imported
    before = (slice(None),) * axis
    ends = np.cumsum([key.shape[axis] for key in keys])
    joined = keys[0][(*before, np.zeros(ends[-1], np.int32))]  # of the right shape; filled below
    for key, end in zip(keys, ends, strict=True):
        joined = joined.at[(*before, slice(end - key.shape[axis], end))].set(key)
    return cast(Array, joined)
