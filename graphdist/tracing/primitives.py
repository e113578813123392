"""The logical operations as JAX primitives, so that JAX's transformations know them.

They have abstract evaluation, JVP, transpose and batching rules, and no implementation: they exist
only between tracing and import. Differentiation follows from what each one means, over R replicas:

* `to_replicas`: one value to every replica. Transpose: the cotangents of all replicas are summed.
* `reduce`: a value a replica to one value. Transpose: every replica gets the cotangent (mean: 1/R
  of it).
* `all_reduce`: a value a replica to the same value on each. Transpose: all_reduce of the
  cotangents.
* `gather`: concatenation into one value. Transpose: each replica its own slice of the cotangent.
* `all_gather`: the same on every replica. Transpose: reduce_scatter, each replica its slice of the
  sum.
* `reduce_scatter`: each replica its slice of the reduction. Transpose: all_gather.
* `collective_permute`: each replica what another sends it, or zeros. Transpose: sent back.
* `all_to_all`: each replica a slice of every other's value, joined. Transpose: the slices back.

`read_variable` makes the handle of a variable, `aggregate` marks a value on its way into one,
`replica_id` is the replica's number. Values are what one replica holds, so shapes are local
throughout.
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


def _linear(name: str, abstract: AbstractRule, transpose: TransposeRule) -> Primitive:
    """Return a primitive linear in its one operand; `transpose(cotangent, aval, **params)`."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract)

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        result = primitive.bind(*primals, **params)
        (tangent,) = tangents
        if type(tangent) is ad.Zero:
            return result, ad.Zero(jax.typeof(result).to_tangent_aval())
        return result, primitive.bind(tangent, **params)

    def transposed(cotangent: Any, operand: Any, **params: Any) -> list[Any]:
        aval = operand.aval
        if type(cotangent) is ad.Zero:
            return [ad.Zero(aval)]
        return [transpose(cotangent, aval, **params)]

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed
    return primitive


def _same(x: ShapedArray, **params: Any) -> ShapedArray:
    return ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)


def _grown(x: ShapedArray, *, axis: int, group_size: int) -> ShapedArray:
    return ShapedArray((*x.shape[:axis], x.shape[axis] * group_size, *x.shape[axis + 1 :]), x.dtype)


def _shrunk(x: ShapedArray, *, axis: int, group_size: int, **params: Any) -> ShapedArray:
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


to_replicas_p = _linear("to_replicas", _same, _transpose_to_replicas)
reduce_p = _linear("reduce_replicas", _same, _transpose_reduce)
all_reduce_p = _linear("all_reduce", _same, _transpose_all_reduce)
gather_p = _linear("gather_replicas", _grown, _transpose_gather)
all_gather_p = _linear("all_gather_replicas", _grown, _transpose_all_gather)
reduce_scatter_p = _linear("reduce_scatter_replicas", _shrunk, _transpose_reduce_scatter)
permute_p = _linear("collective_permute", _same, _transpose_permute)
all_to_all_p = _linear("all_to_all_replicas", _exchanged, _transpose_all_to_all)

read_variable_p = Primitive("read_variable")
read_variable_p.def_abstract_eval(
    lambda *, variable, shape, dtype: ShapedArray(shape, dtype)  # variable: graphdist.ir's
)

aggregate_p = Primitive("aggregate")
aggregate_p.def_abstract_eval(_same)


def _aggregate_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[Any, Any]:
    """Cut the value from differentiation: JAX refuses to write a value it differentiates."""
    result = aggregate_p.bind(*primals, **params)
    return result, ad.Zero(jax.typeof(result).to_tangent_aval())


ad.primitive_jvps[aggregate_p] = _aggregate_jvp

replica_id_p = Primitive("replica_id")
replica_id_p.def_abstract_eval(lambda *, group_size: ShapedArray((), jnp.int32))


def _batch_elementwise(primitive: Primitive) -> None:
    def rule(operands: Sequence[Any], dims: Sequence[int], **params: Any) -> tuple[Any, int]:
        return primitive.bind(*operands, **params), dims[0]

    batching.primitive_batchers[primitive] = rule


def _batch_along_axis(primitive: Primitive) -> None:
    """Shift the axis if it is at or behind the batch dimension."""

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


for _primitive in (to_replicas_p, reduce_p, all_reduce_p, permute_p, aggregate_p):
    _batch_elementwise(_primitive)
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
"""The graph's operation for each primitive that becomes a node as it is."""


def to_replicas(x: jax.typing.ArrayLike, group_size: int) -> jax.Array:
    """Return one value as the value of every replica."""
    return to_replicas_p.bind(jnp.asarray(x), group_size=group_size)
