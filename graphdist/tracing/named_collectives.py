"""JAX's collectives over the replicas' axis name, as graphdist's operations.

`lowered_collective` returns the equations that replace one of JAX's collectives. The importer and
the traces of replica variants use these equations, so that passes and merges know only graphdist's
operations. Over one replica a collective becomes nothing but its change of shape.

If an equation still has an axis name, the name is that of the replicas' axis, since `jax.vmap` has
replaced its own names by dimensions. An equation without a name is an ordinary operation of JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any  # Any: equations, parameters and tracers of JAX are untyped

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex

from graphdist.tracing.primitives import (
    all_gather_p,
    all_reduce_p,
    all_to_all_p,
    permute_p,
    reduce_scatter_p,
    replica_id_p,
)
from graphdist.tracing.trace_in_progress import TraceError
from graphdist.tracing.user_lines import source_of_equation


def _exchanged(primitive: jex.Primitive, x: Any, size: int, **params: Any) -> Any:
    """Return the result of a collective over `size` replicas: the operand itself over one."""
    return x if size == 1 else primitive.bind(x, group_size=size, **params)


def _reduction(reducer: str, locally: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(x: Any, size: int, *, axes: Sequence[Any]) -> Any:
        dimensions = [axis for axis in axes if isinstance(axis, int)]
        x = locally(x, dimensions) if dimensions else x
        return _exchanged(all_reduce_p, x, size, reducer=reducer)

    return reduced


def _all_gather(x: Any, size: int, *, all_gather_dimension: int, tiled: bool) -> Any:
    part = x if tiled else lax.expand_dims(x, (all_gather_dimension,))
    return _exchanged(all_gather_p, part, size, axis=all_gather_dimension)


def _reduce_scatter(x: Any, size: int, *, scatter_dimension: int, tiled: bool) -> Any:
    part = _exchanged(reduce_scatter_p, x, size, reducer="sum", axis=scatter_dimension)
    return part if tiled else lax.squeeze(part, (scatter_dimension,))


def _axis_index(size: int) -> Any:
    return jnp.int32(0) if size == 1 else replica_id_p.bind(group_size=size)


def _permute(x: Any, size: int, *, perm: Sequence[tuple[int, int]]) -> Any:
    if size == 1:
        return x if perm else lax.full_like(x, 0)
    pairs = tuple((int(source), int(target)) for source, target in perm)
    return permute_p.bind(x, pairs=pairs, group_size=size)


def _all_to_all(x: Any, size: int, *, split_axis: int, concat_axis: int) -> Any:
    return _exchanged(all_to_all_p, x, size, split_axis=split_axis, concat_axis=concat_axis)


def _broadcast(x: Any, size: int, *, source: int) -> Any:
    if size == 1:
        return x
    is_source = lax.full_like(x, replica_id_p.bind(group_size=size) == source, dtype=jnp.bool_)
    own = lax.select(is_source, x, lax.full_like(x, 0))
    reducer = "max" if x.dtype == jnp.bool_ else "sum"
    return all_reduce_p.bind(own, reducer=reducer, group_size=size)


_LOWERINGS: dict[str, Callable[..., Any]] = {
    "psum": _reduction("sum", lax.reduce_sum),
    "pmax": _reduction("max", lax.reduce_max),
    "pmin": _reduction("min", lax.reduce_min),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "axis_index": _axis_index,
    "ppermute": _permute,
    "all_to_all": _all_to_all,
    "pbroadcast": _broadcast,
}
"""Functions of the operands and the number of replicas, which do the same as JAX's primitives."""

_REFUSED = (
    "ragged_all_to_all",
    "psend",
    "precv",
    *(f"{name}_start" for name in ("psum", "all_gather", "reduce_scatter", "all_to_all")),
    *(f"{name}_start" for name in ("ppermute", "pbroadcast")),
)

_WITH_MIRRORED_RESULT = ("psum", "pmax", "pmin", "all_gather", "pbroadcast")

NAMED = (*_LOWERINGS, *_REFUSED)
"""The primitives of JAX that may have names of axes among their parameters."""

_AXIS_PARAMETERS = {"axis_size", "axis_index_groups", "axis_name"}


def is_over_replicas(equation: Any) -> bool:
    """Return whether an equation is one of JAX's collectives over the replicas, or `axis_index`."""
    return equation.primitive.name in NAMED and bool(names_of_axes(equation))


def is_named_collective(equation: Any) -> bool:
    """Return whether an equation is one of JAX's collectives, which all replicas must execute."""
    return is_over_replicas(equation) and equation.primitive.name != "axis_index"


def has_mirrored_result(equation: Any) -> bool:
    """Return whether a collective gives every replica the same value."""
    return equation.primitive.name in _WITH_MIRRORED_RESULT


def names_of_axes(equation: Any) -> list[Any]:
    """Return the axis names in an equation; integers among its axes are dimensions."""
    params = equation.params
    axes = params.get("axes", params.get("axis_name", ()))
    axes = axes if isinstance(axes, tuple | list) else (axes,)
    return [name for name in axes if not isinstance(name, int)]


def size_in_scope(equation: Any) -> int:
    """Return the size of an equation's axis, which must be bound."""
    return lax.axis_size(names_of_axes(equation)[0])


def lowered_collective(equation: Any, size: int) -> jex.ClosedJaxpr:
    """Return the equations that replace a collective over `size` replicas; they have its source.

    Raises `TraceError` for a collective that is not supported.
    """
    name, params = equation.primitive.name, dict(equation.params)
    source = source_of_equation(equation)
    if name in _REFUSED:
        raise TraceError(
            f"lax.{name} over the replicas is not supported",
            source=source,
            hint="use psum, all_gather, psum_scatter, ppermute or all_to_all",
        )
    if params.get("axis_index_groups") is not None:
        raise TraceError(
            f"a collective over groups of replicas, axis_index_groups="
            f"{[list(group) for group in params['axis_index_groups']]}: "
            f"a collective is over all replicas",
            source=source,
            hint="leave axis_index_groups out, or gather and take the rows of the group",
        )
    if len(names_of_axes(equation)) > 1:
        raise TraceError(
            f"a collective names the axis of the replicas {len(names_of_axes(equation))} times",
            source=source,
            hint="name it once",
        )
    others = {key: value for key, value in params.items() if key not in _AXIS_PARAMETERS}
    if name == "all_to_all":
        others.pop("tiled")  # JAX's function has applied `tiled` to the operand
    rule = _LOWERINGS[name]
    closed = jax.make_jaxpr(lambda *x: rule(*x, size, **others))(*(v.aval for v in equation.invars))
    own = [e.replace(source_info=equation.source_info) for e in closed.jaxpr.eqns]
    return jex.ClosedJaxpr(closed.jaxpr.replace(eqns=own), closed.consts)
