"""The logical operations as JAX primitives, so that JAX's transformations know them.

The primitives have abstract evaluation, JVP, transpose and batching rules. They have no
implementation, since they exist only between tracing and import. Their rules of differentiation,
where R is the number of replicas:

| operation | result | transpose |
| --- | --- | --- |
| `to_replicas` | one value, mirrored to every replica | the sum of the replicas' cotangents |
| `reduce` | one value, reduced over the replicas | the cotangent on every replica; mean: 1/R |
| `all_reduce` | the reduced value on every replica | all_reduce of the cotangents |
| `gather` | one value, concatenated | each replica's slice of the cotangent |
| `all_gather` | the concatenated value on every replica | reduce_scatter |
| `reduce_scatter` | on each replica its slice of the reduced value | all_gather |
| `collective_permute` | the value that another replica sends, or zeros | the reverse permutation |
| `all_to_all` | slices of all replicas' values, concatenated | the reverse exchange |

`read_variable` makes the handle of a variable. `aggregate` combines, over the replicas, the values
that they assign to a variable. All shapes are those of the value that one replica holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias  # Any: tracers, avals and zeros have no common public type

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

Tracer: TypeAlias = Any
AbstractRule: TypeAlias = Callable[..., ShapedArray]
TransposeRule: TypeAlias = Callable[..., Any]


def linear_primitive(name: str, abstract: AbstractRule, transpose: TransposeRule) -> Primitive:
    """Return a primitive that is linear in its one operand.

    `transpose(cotangent, aval, **params)` returns the cotangent of an operand of type `aval`.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)

    def transposed(cotangent: Any, operand: Any, **params: Any) -> list[Any]:
        return [transpose(cotangent, operand.aval, **params)]

    ad.deflinear2(primitive, transposed)
    return primitive


def identity_without_gradient(name: str) -> Primitive:
    """Return a primitive whose result has its operand's type, and no tangent."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(same_type)
    ad.defjvp(primitive, None)
    batching.defvectorized(primitive)
    return primitive


def same_type(x: ShapedArray, **params: Any) -> ShapedArray:
    """Return the type of a result that has the operand's shape and dtype."""
    return ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)


def _gathered(x: ShapedArray, *, axis: int, group_size: int) -> ShapedArray:
    return ShapedArray((*x.shape[:axis], x.shape[axis] * group_size, *x.shape[axis + 1 :]), x.dtype)


def _scattered(x: ShapedArray, *, axis: int, group_size: int, **params: Any) -> ShapedArray:
    length = x.shape[axis] // group_size
    return ShapedArray((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)


def _exchanged(
    x: ShapedArray, *, split_axis: int, concat_axis: int, group_size: int
) -> ShapedArray:
    shape = list(x.shape)
    shape[split_axis] //= group_size
    shape[concat_axis] *= group_size
    return ShapedArray(tuple(shape), x.dtype)


def _transpose_reduce(ct: Tracer, x: Any, *, reducer: str, group_size: int) -> Tracer:
    spread = to_replicas_p.bind(ct, group_size=group_size)
    return spread / group_size if reducer == "mean" else spread


def _transpose_to_replicas(ct: Tracer, x: Any, *, group_size: int) -> Tracer:
    return reduce_p.bind(ct, reducer="sum", group_size=group_size)


def _transpose_all_reduce(ct: Tracer, x: Any, *, reducer: str, group_size: int) -> Tracer:
    return all_reduce_p.bind(ct, reducer=reducer, group_size=group_size)


def _transpose_gather(ct: Tracer, x: Any, *, axis: int, group_size: int) -> Tracer:
    spread = to_replicas_p.bind(ct, group_size=group_size)
    length = x.shape[axis]
    start = replica_id_p.bind(group_size=group_size) * length
    return lax.dynamic_slice_in_dim(spread, start, length, axis)


def _transpose_all_gather(ct: Tracer, x: Any, *, axis: int, group_size: int) -> Tracer:
    return reduce_scatter_p.bind(ct, reducer="sum", axis=axis, group_size=group_size)


def _transpose_reduce_scatter(
    ct: Tracer, x: Any, *, reducer: str, axis: int, group_size: int
) -> Tracer:
    gathered = all_gather_p.bind(ct, axis=axis, group_size=group_size)
    return gathered / group_size if reducer == "mean" else gathered


def _transpose_permute(
    ct: Tracer, x: Any, *, pairs: Sequence[tuple[int, int]], group_size: int
) -> Tracer:
    back = tuple((target, source) for source, target in pairs)
    return permute_p.bind(ct, pairs=back, group_size=group_size)


def _transpose_all_to_all(
    ct: Tracer, x: Any, *, split_axis: int, concat_axis: int, group_size: int
) -> Tracer:
    back = {"split_axis": concat_axis, "concat_axis": split_axis}
    return all_to_all_p.bind(ct, **back, group_size=group_size)


to_replicas_p = linear_primitive("to_replicas", same_type, _transpose_to_replicas)
reduce_p = linear_primitive("reduce_replicas", same_type, _transpose_reduce)
all_reduce_p = linear_primitive("all_reduce", same_type, _transpose_all_reduce)
gather_p = linear_primitive("gather_replicas", _gathered, _transpose_gather)
all_gather_p = linear_primitive("all_gather_replicas", _gathered, _transpose_all_gather)
reduce_scatter_p = linear_primitive(
    "reduce_scatter_replicas", _scattered, _transpose_reduce_scatter
)
permute_p = linear_primitive("collective_permute", same_type, _transpose_permute)
all_to_all_p = linear_primitive("all_to_all_replicas", _exchanged, _transpose_all_to_all)

read_variable_p = Primitive("read_variable")
read_variable_p.def_abstract_eval(
    lambda *, variable, shape, dtype: ShapedArray(shape, dtype)  # variable: a GraphVariable
)

# Without a gradient, since JAX raises an error if a differentiated value is written to a ref.
aggregate_p = identity_without_gradient("aggregate")

replica_id_p = Primitive("replica_id")
replica_id_p.def_abstract_eval(lambda *, group_size: ShapedArray((), jnp.int32))


def _batch_along_axis(primitive: Primitive) -> None:
    """Set a primitive's rule for `jax.vmap`. A batch dimension before its axis shifts the axis."""

    def rule(
        operands: Sequence[Any], dims: Sequence[int], *, axis: int, **params: Any
    ) -> tuple[Any, int]:
        (dim,) = dims
        return primitive.bind(*operands, axis=axis + (dim <= axis), **params), dim

    batching.primitive_batchers[primitive] = rule


def _batch_all_to_all(
    operands: Sequence[Any],
    dims: Sequence[int],
    *,
    split_axis: int,
    concat_axis: int,
    group_size: int,
) -> tuple[Any, int]:
    (dim,) = dims
    axes = {
        "split_axis": split_axis + (dim <= split_axis),
        "concat_axis": concat_axis + (dim <= concat_axis),
    }
    return all_to_all_p.bind(*operands, **axes, group_size=group_size), dim


for _primitive in (to_replicas_p, reduce_p, all_reduce_p, permute_p):
    batching.defvectorized(_primitive)
batching.primitive_batchers[all_to_all_p] = _batch_all_to_all
for _primitive in (gather_p, all_gather_p, reduce_scatter_p):
    _batch_along_axis(_primitive)

LOGICAL = {
    to_replicas_p: "to_replicas",
    reduce_p: "reduce",
    all_reduce_p: "all_reduce",
    gather_p: "gather",
    all_gather_p: "all_gather",
    reduce_scatter_p: "reduce_scatter",
    permute_p: "collective_permute",
    all_to_all_p: "all_to_all",
    aggregate_p: "aggregate",
    replica_id_p: "replica_id",
}
"""The graph's operation for each primitive that becomes one node."""


def to_replicas(x: jax.typing.ArrayLike, group_size: int) -> jax.Array:
    """Return one value, mirrored to every replica."""
    return to_replicas_p.bind(jnp.asarray(x), group_size=group_size)
