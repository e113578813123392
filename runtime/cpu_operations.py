"""Operations on CPUs, in the form in which XLA and the library that it calls compute them fastest.

*Convolutions* and *pools* have modules of their own (`cpu_convolutions.py`, `cpu_pools.py`).

*Products of bfloat16.* Processors with such instructions compute them twice as fast as products of
float32, and add up in float32. XLA uses them for a product of two matrices with a float32 result,
the first with its columns contracted; other products it computes in float32. So a product is
written as one of two matrices, with a float32 result that is rounded behind it, and with exchanged
operands if fewer numbers are transposed then. Barriers keep XLA from giving the matrices another
form, since an operation whose form the library refuses after all ends in an error. Of several
matrices at once they are computed in float32 for the same reason.

*Products of several matrices.* XLA transposes the first operand if its contracted dimension is not
the last, and the second if it is, a step of attention its weights. If exchanged operands have fewer
bytes to transpose, the product is computed so, and its result transposed.

*Reductions.* XLA compares one number after the other. Here the halves of an array are compared as
arrays, until few numbers are left, which uses the processor's vectors: the largest value of each
row is found ten times as fast, with the same bits. Sums of 16-bit values, which XLA rounds after
each number, are added up likewise in float32, with a smaller error (N. Higham, The accuracy of
floating point summation, 1993). Sums of float32 are XLA's: in halves they are up to three times as
fast alone, but XLA then computes their operands again in each operation that follows, so that steps
of a transformer took 4 % longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias  # Any: primitives of JAX have no public type

import jax
import jax.numpy as jnp
from jax import lax

from graphdist.ir.arrays import Array
from graphdist.ir.graph import Graph, Node
from graphdist.ir.jax_parameters import exchanged_product, parameter
from graphdist.ir.types import numpy_dtype
from graphdist.runtime.bind_primitive import Bind, bind_jax_node
from graphdist.runtime.chains_of_bfloat16 import chains_of_bfloat16
from graphdist.runtime.cpu_convolutions import CONVOLUTION, convolution
from graphdist.runtime.cpu_pools import (
    GRADIENT_OF_POOL,
    POOLS,
    gradient_of_pool,
    gradients_of_sums,
    pool,
)

_SIZE_IN_HALVES = 2**14
"""The fewest numbers that are reduced in halves: fewer take less than 10 microseconds."""
_NUMBERS_OF_A_VECTOR = 16
"""The numbers of float32 of a processor's vector, 512 bits, at most."""

PRODUCT = "jax.dot_general"
LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
"""XLA's option of what a library computes."""

_Operands: TypeAlias = Sequence[jax.Array | Array]
_Dimensions: TypeAlias = Sequence[int]
_Matrix: TypeAlias = tuple[jax.Array, bool]
"""A matrix, and whether the dimension that a product contracts is that of its columns."""


def bind_for_platform(node: Node, operands: _Operands) -> list[jax.Array]:
    """Apply an operation of JAX; in programs for CPUs in the form that the library takes."""
    form = None if _program.get() is None else _FORMS.get(node.op.name)
    result = None if form is None else form(node, *map(jnp.asarray, operands))
    return bind_jax_node(node, operands) if result is None else [result]


def forms_of_nodes(graph: Graph) -> Mapping[Node, Bind]:
    """Return how to apply the nodes whose form depends on other nodes of the graph."""
    program = _program.get()
    if program is None:
        return {}
    return {**gradients_of_sums(graph), **({} if program.rounds else chains_of_bfloat16(graph))}


def is_for_cpus() -> bool:
    """Return whether operations are applied in a program for CPUs."""
    return _program.get() is not None


@contextmanager
def operations_for(platform: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Apply the operations of a program for a platform in a `with` block.

    The platform is a word such as "cpu", the options are XLA's.
    """
    allows = options.get("xla_allow_excess_precision", True)
    rounds = str(allows) == "False"  # XLA takes the text, too
    has_library = "CONVOLUTION" in str(options.get(LIBRARY, "CONVOLUTION"))
    before = _program.set(_CpuProgram(rounds, has_library) if platform == "cpu" else None)
    try:
        yield
    finally:
        _program.reset(before)


class _CpuProgram(NamedTuple):
    """What the options of a program for CPUs say.

    Whether each value of bfloat16 is rounded, and whether the library has convolutions.
    """

    rounds: bool
    has_library: bool


_program: ContextVar[_CpuProgram | None] = ContextVar("_program", default=None)


@cache
def has_bfloat16_instructions() -> bool:
    """Return whether this processor has instructions for products of bfloat16: x86 on Linux."""
    try:
        facts = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(facts.split())


def _is_narrow(*operands: Any) -> bool:
    """Return whether all values are of bfloat16."""
    return all(operand.dtype == jnp.bfloat16 for operand in operands)


def _product(node: Node, left: jax.Array, right: jax.Array) -> jax.Array | None:
    (of_left, of_right), (batch, _) = parameter(node, "dimension_numbers")
    if not _is_narrow(left, right):
        return _product_of_several(node, left, right) if batch else None
    shape, result = node.results[0].type.shape, numpy_dtype(node.results[0].type.dtype)
    first, second = _matrix(left, of_left), _matrix(right, of_right)
    if batch or first is None or second is None or not has_bfloat16_instructions():
        return _in_float32(node, left, right) if result == jnp.float32 else None
    of_exchanged = prod(shape) + (0 if second[1] else right.size)
    if not first[1] and left.size > of_exchanged:  # fewer numbers are transposed
        exchanged = lax.optimization_barrier(_product_of_matrices(second, first))
        product = lax.transpose(exchanged, (1, 0))
    else:
        product = _product_of_matrices(first, second)
    return lax.reshape(product, shape).astype(result)


def _product_of_matrices(first: _Matrix, second: _Matrix) -> jax.Array:
    """Return the product of two matrices of bfloat16, in float32."""
    rows, is_last = first
    if not is_last:  # the dimension of size 1 keeps the transposition out of the product
        transposed = lax.optimization_barrier(lax.transpose(rows[None], (2, 0, 1)))
        rows = lax.reshape(transposed, (rows.shape[1], rows.shape[0]))
    columns, is_last = second
    return lax.dot_general(
        lax.optimization_barrier(rows),
        lax.optimization_barrier(columns),
        (((1,), (int(is_last),)), ((), ())),
        preferred_element_type=jnp.float32,
    )


def _product_of_several(node: Node, left: jax.Array, right: jax.Array) -> jax.Array:
    """Apply a product of several matrices at once, of which XLA transposes few bytes."""
    (of_left, of_right), (batch, batch_right) = parameter(node, "dimension_numbers")

    def transposed(operand: jax.Array, contracted: _Dimensions, batch: _Dimensions) -> list[int]:
        """Return the bytes that are transposed if the operand is the first, and the second."""
        rank, num_batch, number = operand.ndim, len(batch), len(contracted)
        if [*batch] != [*range(num_batch)]:  # the operand is copied in any case
            return [0, 0]
        wanted = range(rank - number, rank), range(num_batch, num_batch + number)
        return [operand.nbytes * ({*contracted} != {*places}) for places in wanted]

    of_first = transposed(left, of_left, batch)
    of_second = transposed(right, of_right, batch_right)
    primitive: Any = node.op.primitive
    if of_first[0] + of_second[1] <= of_first[1] + of_second[0]:
        result: jax.Array = primitive.bind(left, right, **node.params)
        return result
    result = primitive.bind(right, left, **exchanged_product(node))
    number, middle = len(batch), right.ndim - len(of_right)
    order = (*range(number), *range(middle, result.ndim), *range(number, middle))
    return lax.transpose(result, order)


def _matrix(array: jax.Array, contracted: Sequence[int]) -> _Matrix | None:
    """Return an array as a matrix, and whether the contracted dimensions are its columns.

    None if this takes a transposition, or if all dimensions are contracted, or none.
    """
    free = [dimension for dimension in range(array.ndim) if dimension not in contracted]
    for rows, columns in ((free, contracted), (contracted, free)):
        if rows and columns and [*rows, *columns] == list(range(array.ndim)):
            sizes = [prod(array.shape[i] for i in dimensions) for dimensions in (rows, columns)]
            return lax.reshape(array, sizes), columns is contracted
    return None


def _in_float32(node: Node, *operands: jax.Array) -> jax.Array:
    return bind_jax_node(node, [operand.astype(jnp.float32) for operand in operands])[0]


def _reduction(node: Node, operand: jax.Array) -> jax.Array | None:
    """Apply a reduction, of a large array in halves of the reduced dimensions."""
    combine = _COMBINE[node.op.name]
    is_narrow = operand.dtype in (jnp.bfloat16, jnp.float16)
    if combine is lax.add and not is_narrow:
        return None
    values = operand.astype(jnp.float32) if is_narrow else operand
    for dimension in sorted(parameter(node, "axes")):
        fewest = _NUMBERS_OF_A_VECTOR if dimension == values.ndim - 1 else 1
        parts = [values]
        while parts[0].shape[dimension] > fewest and parts[0].size >= _SIZE_IN_HALVES:
            first, second, *rest = _halves(parts[0], dimension)
            parts = [combine(first, second), *rest, *parts[1:]]
        values = lax.concatenate(parts, dimension)
    return bind_jax_node(node, [values])[0].astype(operand.dtype)


def _halves(array: jax.Array, dimension: int) -> list[jax.Array]:
    """Return two halves of an array, and the rest if its size is odd."""
    size = array.shape[dimension]
    starts = range(0, size, size // 2)
    ends = (*starts[1:], size)
    return [
        lax.slice_in_dim(array, start, end, axis=dimension)
        for start, end in zip(starts, ends, strict=True)
    ]


def _convolution(node: Node, image: jax.Array, kernel: jax.Array) -> jax.Array:
    program = _program.get()
    return convolution(node, image, kernel, has_library=program is None or program.has_library)


_COMBINE: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "jax.reduce_max": lax.max,
    "jax.reduce_min": lax.min,
    "jax.reduce_sum": lax.add,
}

_FORMS: dict[str, Callable[..., jax.Array | None]] = {
    CONVOLUTION: _convolution,
    PRODUCT: _product,
    **dict.fromkeys(_COMBINE, _reduction),
    **dict.fromkeys(POOLS, pool),
    GRADIENT_OF_POOL: gradient_of_pool,
}
