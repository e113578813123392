"""Operations of JAX evaluated by NumPy, for the interpreter of many small programs.

JAX compiles an operation for each shape that it meets, which takes a hundred times as long as these
numbers. An operation, a dtype or a parameter that is not here is evaluated by JAX. Sums are taken
in wider numbers and rounded once. The meaning of indices is that of XLA's gather and scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias  # Any: JAX's parameters

import numpy as np

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Node
from graphdist.ir.types import numpy_dtype
from graphdist.runtime.bind_primitive import evaluate_jax_node

Params: TypeAlias = Mapping[str, Any]
Evaluation: TypeAlias = Callable[..., Array | list[Array]]


def evaluate(node: Node, operands: Sequence[Array]) -> list[Array]:
    """Return the results of an operation."""
    function = _FUNCTIONS.get(node.op.name)
    are_numbers = all(isinstance(array, np.ndarray) for array in operands)
    if function is None or not are_numbers or node.params.get("out_dtype") is not None:
        return evaluate_jax_node(node, operands)
    found = function(node.params, *operands)
    results = found if isinstance(found, list) else [found]
    return [
        np.asarray(result).astype(numpy_dtype(value.type.dtype), copy=False)
        for result, value in zip(results, node.results, strict=True)
    ]


def _wide(x: Array) -> np.ndarray[Any, Any]:
    """Return numbers in a dtype in which sums and products are not rounded."""
    return x.astype(np.float64 if x.dtype.kind not in "iub" else np.int64)


def _broadcast(params: Params, x: Array) -> Array:
    shape = [1] * len(params["shape"])
    for size, dimension in zip(x.shape, params["broadcast_dimensions"], strict=True):
        shape[dimension] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _select(params: Params, which: Array, *cases: Array) -> Array:
    return np.choose(np.broadcast_to(which.astype(np.int32), cases[0].shape), cases)


def _slice(params: Params, x: Array) -> Array:
    strides = params["strides"] or [1] * x.ndim
    each = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*bounds) for bounds in each)]


def _pad(params: Params, x: Array, value: Array) -> Array:
    for axis, (before, after, between) in enumerate(params["padding_config"]):
        size = x.shape[axis]
        shape = [*x.shape]
        shape[axis] = size + max(size - 1, 0) * between
        spread = np.full(shape, value, x.dtype)
        spread[(*[slice(None)] * axis, slice(None, None, between + 1))] = x
        ends = [(0, 0)] * x.ndim
        ends[axis] = (max(before, 0), max(after, 0))
        padded = np.pad(spread, ends, constant_values=value)
        length = padded.shape[axis]
        kept = slice(max(-before, 0), length - max(-after, 0))
        x = padded[(*[slice(None)] * axis, kept)]
    return x


def _dot(params: Params, x: Array, y: Array) -> Array:
    (left, right), (left_batch, right_batch) = params["dimension_numbers"]
    of_x, of_y = list(range(x.ndim)), [x.ndim + i for i in range(y.ndim)]
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        of_y[j] = of_x[i]
    batch = [of_x[i] for i in left_batch]
    free = [i for i in (*of_x, *of_y) if (i in of_x) != (i in of_y)]
    einsum: Any = np.einsum  # its types know subscripts in strings alone
    return np.asarray(einsum(_wide(x), of_x, _wide(y), of_y, [*batch, *free]))


def _reduce(function: Any) -> Evaluation:
    return lambda params, x: function(_wide(x), axis=tuple(params["axes"]))


def _argument(function: Any) -> Evaluation:
    return lambda params, x: function(_wide(x), axis=params["axes"][0])


def _cumulate(function: Any) -> Evaluation:
    def call(params: Params, x: Array) -> Array:
        axis = params["axis"]
        wide = np.flip(_wide(x), axis) if params["reverse"] else _wide(x)
        found = function(wide, axis=axis)
        return np.flip(found, axis) if params["reverse"] else found

    return call


def _sort(params: Params, *arrays: Array) -> list[Array] | Array:
    axis = params["dimension"]
    assert params["num_keys"] == 1
    order = np.argsort(_wide(arrays[0]), axis=axis, kind="stable")
    found = [np.take_along_axis(array, order, axis) for array in arrays]
    return found if len(found) > 1 else found[0]


def _starts(x: Array, starts: Sequence[Array], sizes: Sequence[int]) -> list[slice]:
    clipped = [
        min(max(int(start), 0), full - size)
        for start, full, size in zip(starts, x.shape, sizes, strict=True)
    ]
    return [slice(start, start + size) for start, size in zip(clipped, sizes, strict=True)]


def _dynamic_slice(params: Params, x: Array, *starts: Array) -> Array:
    return x[tuple(_starts(x, starts, params["slice_sizes"]))]


def _dynamic_update_slice(params: Params, x: Array, update: Array, *starts: Array) -> Array:
    found = x.copy()
    found[tuple(_starts(x, starts, update.shape))] = update
    return found


def _window(
    at: tuple[int, ...],
    indices: Array,
    shape: Sequence[int],
    sizes: Sequence[int],
    index_map: Sequence[int],
    batching: Sequence[tuple[int, int]],
    mode: str,
) -> tuple[slice, ...] | None:
    """Return the part of the operand that a row of indices names; None if it is out of range."""
    starts = [0] * len(shape)
    for component, dimension in enumerate(index_map):
        starts[dimension] = int(indices[(*at, component)])
    for dimension, of_indices in batching:
        starts[dimension] = at[of_indices]
    last = [full - size for full, size in zip(shape, sizes, strict=True)]
    if mode == "CLIP":
        starts = [min(max(start, 0), end) for start, end in zip(starts, last, strict=True)]
    elif any(not 0 <= start <= end for start, end in zip(starts, last, strict=True)):
        return None
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def _mode(params: Params) -> str:
    return str(params["mode"]).rpartition(".")[2].upper()


def _gather(params: Params, x: Array, indices: Array) -> Array:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    removed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batching = [
        *zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    ]
    kept = tuple(size for i, size in enumerate(sizes) if i not in removed)
    fill = params["fill_value"]
    if fill is None:
        fill = -(2 ** (8 * x.dtype.itemsize - 1)) if x.dtype.kind == "i" else np.nan
        fill = fill if x.dtype.kind != "b" else True
    found = np.full((*indices.shape[:-1], *kept), fill, x.dtype)
    for at in np.ndindex(*indices.shape[:-1]):
        part = _window(
            at, indices, x.shape, sizes, numbers.start_index_map, batching, _mode(params)
        )
        if part is not None:
            found[at] = x[part].reshape(kept)
    rank = found.ndim
    batch = [i for i in range(rank) if i not in numbers.offset_dims]
    return np.moveaxis(found, range(rank), (*batch, *numbers.offset_dims))


def _scatter(combine: Any) -> Evaluation:
    def call(params: Params, x: Array, indices: Array, updates: Array) -> Array:
        numbers, found = params["dimension_numbers"], _wide(x)
        removed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        batching = [
            *zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        ]
        window = iter(updates.shape[i] for i in numbers.update_window_dims)
        sizes = [1 if i in removed else next(window) for i in range(x.ndim)]
        batch = [i for i in range(updates.ndim) if i not in numbers.update_window_dims]
        moved = np.moveaxis(
            _wide(updates), (*batch, *numbers.update_window_dims), range(updates.ndim)
        )
        for at in np.ndindex(*indices.shape[:-1]):
            part = _window(
                at,
                indices,
                x.shape,
                sizes,
                numbers.scatter_dims_to_operand_dims,
                batching,
                _mode(params),
            )
            if part is not None:
                found[part] = combine(found[part], moved[at].reshape(sizes))
        return found

    return call


def _iota(params: Params) -> Array:
    shape, axis = params["shape"], params["dimension"]
    counted = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return np.broadcast_to(counted, shape)


def _elementwise(function: Any) -> Evaluation:
    return lambda params, *operands: function(*operands)


def _exact(function: Any) -> Evaluation:
    """Return a function of numbers that are widened first."""
    return lambda params, *operands: function(*map(_wide, operands))


def _divide(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Array:
    return np.trunc(x / y) if x.dtype.kind == "i" else x / y


_FUNCTIONS: dict[str, Evaluation] = {
    **{
        f"jax.{name}": _elementwise(function)
        for name, function in {
            "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
            "eq": np.equal, "ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor, "not": np.invert, "max": np.maximum, "min": np.minimum,
            "neg": np.negative, "abs": np.abs, "sign": np.sign, "floor": np.floor, "copy": np.copy,
        }.items()
    },
    **{
        f"jax.{name}": _exact(function)
        for name, function in {
            "add": np.add, "add_any": np.add, "sub": np.subtract, "mul": np.multiply,
            "square": np.square, "sin": np.sin, "cos": np.cos, "rem": np.fmod, "div": _divide,
        }.items()
    },
    **{
        f"jax.reduce_{name}": _reduce(function)
        for name, function in {
            "sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "and": np.min,
            "or": np.max,
        }.items()
    },
    "jax.argmax": _argument(np.argmax),
    "jax.argmin": _argument(np.argmin),
    "jax.cumsum": _cumulate(np.cumsum),
    "jax.cummax": _cumulate(np.maximum.accumulate),
    "jax.cummin": _cumulate(np.minimum.accumulate),
    "jax.clamp": lambda params, low, x, high: np.minimum(np.maximum(x, low), high),
    "jax.select_n": _select,
    "jax.convert_element_type": lambda params, x: x,
    "jax.round": lambda params, x: np.rint(x),
    "jax.broadcast_in_dim": _broadcast,
    "jax.reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "jax.iota": _iota,
    "jax.tile": lambda params, x: np.tile(x, params["reps"]),
    "jax.squeeze": lambda params, x: np.squeeze(x, tuple(params["dimensions"])),
    "jax.expand_dims": lambda params, x: np.expand_dims(x, tuple(params["dimensions"])),
    "jax.transpose": lambda params, x: x.transpose(params["permutation"]),
    "jax.rev": lambda params, x: np.flip(x, tuple(params["dimensions"])),
    "jax.slice": _slice,
    "jax.pad": _pad,
    "jax.concatenate": lambda params, *parts: np.concatenate(parts, params["dimension"]),
    "jax.dot_general": _dot,
    "jax.sort": _sort,
    "jax.dynamic_slice": _dynamic_slice,
    "jax.dynamic_update_slice": _dynamic_update_slice,
    "jax.gather": _gather,
    "jax.scatter": _scatter(lambda old, new: new),
    "jax.scatter-add": _scatter(np.add),
    "jax.scatter-max": _scatter(np.maximum),
    "jax.scatter-min": _scatter(np.minimum),
}  # fmt: skip
"""By name, the function of an operation's parameters and operands; its dtype is the result's."""
