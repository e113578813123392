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


def linear_primitive(
    name: str, abstract: AbstractRule, transpose: TransposeRule, *axes: str
) -> Primitive:
    """Return a primitive that is linear in its one operand.

    `transpose(cotangent, aval, **params)` returns the cotangent of an operand of type `aval`.
    `axes` are the names of the parameters that number a dimension of the operand.
    """
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)

    def transposed(cotangent: Any, operand: Any, **params: Any) -> list[Any]:
        return [transpose(cotangent, operand.aval, **params)]

    def batched(operands: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
        (dim,) = dims
        for axis in axes:  # a batch dimension before the axis shifts the axis
            if params[axis] is not None:
                params[axis] += dim <= params[axis]
        return primitive.bind(*operands, **params), dim

    ad.deflinear2(primitive, transposed)
    batching.primitive_batchers[primitive] = batched
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


def _resized(x: ShapedArray, axis: int, length: int) -> ShapedArray:
    return ShapedArray((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)


def _gathered(x: ShapedArray, *, axis: int, group_size: int) -> ShapedArray:
    return _resized(x, axis, x.shape[axis] * group_size)


def _scattered(x: ShapedArray, *, axis: int, group_size: int, **params: Any) -> ShapedArray:
    return _resized(x, axis, x.shape[axis] // group_size)


def _exchanged(
    x: ShapedArray, *, split_axis: int, concat_axis: int, group_size: int
) -> ShapedArray:
    split = _scattered(x, axis=split_axis, group_size=group_size)
    return _gathered(split, axis=concat_axis, group_size=group_size)


def _transpose_to_replicas(ct: Tracer, x: Any, *, group_size: int) -> Tracer:
    return reduce_p.bind(ct, reducer="sum", group_size=group_size)


def _transpose_reduce(ct: Tracer, x: Any, *, reducer: str, group_size: int) -> Tracer:
    spread = to_replicas_p.bind(ct, group_size=group_size)
    return spread / group_size if reducer == "mean" else spread


def _transpose_all_reduce(ct: Tracer, x: Any, **params: Any) -> Tracer:
    return all_reduce_p.bind(ct, **params)


def _transpose_gather(ct: Tracer, x: Any, *, axis: int, group_size: int) -> Tracer:
    spread = to_replicas_p.bind(ct, group_size=group_size)
    start = replica_id_p.bind(group_size=group_size) * x.shape[axis]
    return lax.dynamic_slice_in_dim(spread, start, x.shape[axis], axis)


def _transpose_all_gather(ct: Tracer, x: Any, **params: Any) -> Tracer:
    return reduce_scatter_p.bind(ct, reducer="sum", **params)


def _transpose_reduce_scatter(ct: Tracer, x: Any, *, reducer: str, **params: Any) -> Tracer:
    gathered = all_gather_p.bind(ct, **params)
    return gathered / params["group_size"] if reducer == "mean" else gathered


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
permute_p = linear_primitive("collective_permute", same_type, _transpose_permute)
gather_p = linear_primitive("gather_replicas", _gathered, _transpose_gather, "axis")
all_gather_p = linear_primitive("all_gather_replicas", _gathered, _transpose_all_gather, "axis")
reduce_scatter_p = linear_primitive(
    "reduce_scatter_replicas", _scattered, _transpose_reduce_scatter, "axis"
)
all_to_all_p = linear_primitive(
    "all_to_all_replicas", _exchanged, _transpose_all_to_all, "split_axis", "concat_axis"
)


def _transpose_split(ct: Tracer, x: Any, *, axis: int | None, num_cores: int) -> Tracer:
    return split_over_cores_p.bind(ct, axis=axis, num_cores=num_cores)


split_over_cores_p = linear_primitive("split_over_cores", same_type, _transpose_split, "axis")

read_variable_p = Primitive("read_variable")
read_variable_p.def_abstract_eval(
    lambda *, variable, shape, dtype: ShapedArray(shape, dtype)  # variable: a GraphVariable
)

# Without a gradient, since JAX raises an error if a differentiated value is written to a ref.
aggregate_p = identity_without_gradient("aggregate")

replica_id_p = Primitive("replica_id")
replica_id_p.def_abstract_eval(lambda *, group_size: ShapedArray((), jnp.int32))

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
    split_over_cores_p: "split_over_cores",
}
"""The graph's operation for each primitive that becomes one node."""


def to_replicas(x: jax.typing.ArrayLike, group_size: int) -> jax.Array:
    """Return one value, mirrored to every replica."""
    return to_replicas_p.bind(jnp.asarray(x), group_size=group_size)
