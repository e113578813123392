"""Compute values that depend only on literals and small constants.

An operation is folded if numpy computes the same bits for it as JAX does on a CPU, each operation
in its own dtype: these operations are in the table below, and none of them is transcendental. A
`constant` of rank 0 becomes a literal, and so does every result of rank 0. The broadcast of a
literal is kept, and folded into the operations that use it.

Before:  %a = jax.div(1.0, 4.0)   %b = all_reduce(%a) {reducer="sum", group_size=2}
         %c = jax.mul(%x, %b)
After:   %c = jax.mul(%x, 0.5)

The reduction of a constant over R replicas is R times the value for a sum, added as the interpreter
adds, and the value itself for mean, max and min.

Left alone: constants and results of more than 64 elements; results that are nan, whose sign JAX
and numpy choose differently; subnormal numbers, which JAX flushes to zero and numpy does not; the
larger of 0.0 and -0.0; integer division; dtypes other than bool, integers of 8 to 64 bits, f16,
bf16, f32 and f64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from graphdist.ir.arrays import Array, literal_array, reduce_arrays
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.jax_parameters import is_plain, parameter
from graphdist.ir.numerals import plain_number
from graphdist.ir.op_parameters import Holding, Reducing
from graphdist.ir.ops import ALL_REDUCE, CONSTANT, REDUCE, SCALE
from graphdist.ir.rewrite import Answer, rewrite
from graphdist.ir.types import Type, is_integer, numpy_dtype

NAME = "fold_constants"
MAX_ELEMENTS = 64

Fold: TypeAlias = Callable[[list[Array], Node], Array | None]

_INTEGERS = frozenset(["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
_FLOATS = frozenset(["f16", "bf16", "f32", "f64"])
_NUMBERS = _INTEGERS | _FLOATS
_ORDINARY = _NUMBERS | {"bool"}


def fold_constants(graph: Graph) -> Graph:
    """Return the graph with known results computed."""
    constants: dict[Operand, Array] = {}

    def rule(node: Node, operands: Operands, builder: Builder) -> Answer:
        is_constant, type = node.op is CONSTANT, node.results[0].type
        array = CONSTANT.of(node).value if is_constant else _fold(node, operands, constants)
        if array is None or not _is_small(type):
            return None
        if not type.shape:
            return (Literal.of(plain_number(array, type.dtype), type),)
        if is_constant or (isinstance(operands[0], Literal) and len(operands) == 1):
            answer = builder.keep(node, operands, ())  # its users are folded
        else:
            answer = builder.add(CONSTANT, (), Holding(array), at=node)
        constants[answer[0]] = array
        return answer

    return rewrite(graph, rule, NAME, _LOOKED_AT)


def _fold(node: Node, operands: Operands, constants: Mapping[Operand, Array]) -> Array | None:
    """Return the result of the node, or None if it is not known to the bit."""
    for operand in operands:
        if type(operand) is Value and operand not in constants:
            return None
    wanted, (dtypes, fold) = node.results[0].type, _FOLDS[node.op.name]
    types = [operand.type for operand in operands]
    if not all(map(_is_small, (wanted, *types))) or any(t.dtype not in dtypes for t in types):
        return None
    arrays = [
        literal_array(operand) if isinstance(operand, Literal) else constants[operand]
        for operand in operands
    ]
    if any(map(_is_doubtful, arrays)):
        return None
    with np.errstate(all="ignore"):
        array = fold(arrays, node)
    if array is None or _is_doubtful(array):
        return None
    # A literal of rank 0 may be combined with operands of any shape.
    return np.broadcast_to(array, wanted.shape).astype(numpy_dtype(wanted.dtype))


def _is_small(type: Type) -> bool:
    return type.dtype in _ORDINARY and type.size <= MAX_ELEMENTS


def _is_doubtful(array: Array) -> bool:
    """Return whether an element is nan or subnormal."""
    if array.dtype.kind in "biu":
        return False
    wide = np.abs(array.astype(np.float64))
    smallest = 2.0 ** _SMALLEST_EXPONENT[array.dtype.name]
    return bool((np.isnan(wide) | ((wide > 0) & (wide < smallest))).any())


_SMALLEST_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}
"""The exponent of the smallest normal value, by dtype."""


def _extreme(function: Callable[..., Array]) -> Fold:
    """Return the fold of max or min, whose result for (0.0, -0.0) may be either zero."""

    def fold(arrays: list[Array], node: Node) -> Array | None:
        left, right = np.broadcast_arrays(*arrays)
        both_zero = (left == 0) & (right == 0)
        is_doubtful = not is_integer(node.operands[0].type.dtype) and both_zero.any()
        return None if is_doubtful else np.asarray(function(left, right))

    return fold


def _product(arrays: list[Array], node: Node) -> Array | None:
    return None if node.params.get("out_dtype") else np.asarray(np.multiply(*arrays))


def _convert(arrays: list[Array], node: Node) -> Array | None:
    (array,) = arrays
    before, after = node.operands[0].type.dtype, node.results[0].type.dtype
    if not is_plain(node):
        return None
    if before in _FLOATS and after in _INTEGERS:
        # JAX clamps a float that is out of range, numpy gives whatever the CPU does.
        limits = np.iinfo(numpy_dtype(after).name)
        wide = np.trunc(array.astype(np.float64))
        if not ((wide >= float(limits.min)) & (wide < float(limits.max))).all():
            return None
        return wide.astype(numpy_dtype(after))
    if before in ("f64", "i64", "u64") and after in ("f16", "bf16"):
        return None  # XLA may round once, or twice through f32
    return array.astype(numpy_dtype(after))


def _reshape(arrays: list[Array], node: Node) -> Array | None:
    return arrays[0].reshape(node.results[0].type.shape) if is_plain(node) else None


def _broadcast(arrays: list[Array], node: Node) -> Array | None:
    if not is_plain(node):
        return None
    shape = [1] * len(node.results[0].type.shape)
    for axis, size in zip(parameter(node, "broadcast_dimensions"), arrays[0].shape, strict=True):
        shape[axis] = size
    return arrays[0].reshape(shape)


def _select(arrays: list[Array], node: Node) -> Array | None:
    predicate, *cases = arrays
    if predicate.dtype.kind != "b" or len(cases) != 2:
        return None
    return np.where(predicate, cases[1], cases[0])


def _reduce(arrays: list[Array], node: Node) -> Array | None:
    params = Reducing.of(node)
    return (
        reduce_arrays(arrays * params.group_size, "sum") if params.reducer == "sum" else arrays[0]
    )


def _scale(arrays: list[Array], node: Node) -> Array | None:
    (array,) = arrays
    return np.asarray(array * np.asarray(SCALE.of(node).factor).astype(array.dtype))


def _by(function: Callable[..., Array], dtypes: frozenset[str]) -> tuple[frozenset[str], Fold]:
    """Return the entry of an operation that numpy computes element by element on these dtypes."""
    return dtypes, lambda arrays, node: np.asarray(function(*arrays))


_BITWISE = _INTEGERS | {"bool"}

_FOLDS: dict[str, tuple[frozenset[str], Fold]] = {
    "jax.add": _by(np.add, _NUMBERS),
    "jax.add_any": _by(np.add, _NUMBERS),
    "jax.and": _by(np.bitwise_and, _BITWISE),
    "jax.broadcast_in_dim": (_ORDINARY, _broadcast),
    "jax.convert_element_type": (_ORDINARY, _convert),
    "jax.div": _by(np.true_divide, _FLOATS),
    "jax.eq": _by(np.equal, _ORDINARY),
    "jax.ge": _by(np.greater_equal, _NUMBERS),
    "jax.gt": _by(np.greater, _NUMBERS),
    "jax.le": _by(np.less_equal, _NUMBERS),
    "jax.lt": _by(np.less, _NUMBERS),
    "jax.max": (_NUMBERS, _extreme(np.maximum)),
    "jax.min": (_NUMBERS, _extreme(np.minimum)),
    "jax.mul": (_NUMBERS, _product),
    "jax.ne": _by(np.not_equal, _ORDINARY),
    "jax.neg": _by(np.negative, _NUMBERS),
    "jax.not": _by(np.invert, _BITWISE),
    "jax.or": _by(np.bitwise_or, _BITWISE),
    "jax.reshape": (_ORDINARY, _reshape),
    "jax.select_n": (_ORDINARY, _select),
    "jax.sub": _by(np.subtract, _NUMBERS),
    "jax.xor": _by(np.bitwise_xor, _BITWISE),
    ALL_REDUCE.name: (_NUMBERS, _reduce),
    REDUCE.name: (_NUMBERS, _reduce),
    SCALE.name: (_NUMBERS, _scale),
    "reshape": (_ORDINARY, _reshape),
}
"""The dtypes of operands for which an operation is folded, and its fold.

A fold returns None where numpy and JAX might disagree in a bit.
"""
_LOOKED_AT = frozenset({*_FOLDS, CONSTANT.name})
