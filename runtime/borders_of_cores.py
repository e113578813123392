"""Borders of a core's shard, which it exchanges with the cores in front of it and behind it."""

from __future__ import annotations

from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax.numpy as jnp
from jax import lax

from graphdist.ir import ops
from graphdist.ir.arrays import neutral_element
from graphdist.ir.graph import Node
from graphdist.ir.mesh import CORE
from graphdist.ir.op_parameters import ExchangingBorders

Array: TypeAlias = Any


def exchange_borders(node: Node, operands: list[Array]) -> list[Array]:
    """Return the core's shard between the borders of its neighbours."""
    params, (x,) = ops.EXCHANGE_BORDERS.of(node), operands
    axis, count, length = params.axis, params.num_cores, operands[0].shape[params.axis]
    parts = [x]
    if params.before:
        last = lax.slice_in_dim(x, length - params.before, length, axis=axis)
        parts.insert(0, _unless_core(0, _to_core_behind(last, count), params))
    if params.after:
        first = lax.slice_in_dim(x, 0, params.after, axis=axis)
        parts.append(_unless_core(count - 1, _to_core_in_front(first, count), params))
    return [lax.concatenate(parts, axis)]


def add_borders(node: Node, operands: list[Array]) -> list[Array]:
    """Return the core's shard with what its neighbours have for it added."""
    params, (x,) = ops.ADD_BORDERS.of(node), operands
    axis, count, before, after = params.axis, params.num_cores, params.before, params.after
    end = x.shape[axis] - after
    shard = lax.slice_in_dim(x, before, end, axis=axis)
    if before:
        front = _to_core_in_front(lax.slice_in_dim(x, 0, before, axis=axis), count)
        shard = lax.add(shard, _padded(front, axis, (end - 2 * before, 0)))
    if after:
        behind = _to_core_behind(lax.slice_in_dim(x, end, end + after, axis=axis), count)
        shard = lax.add(shard, _padded(behind, axis, (0, end - before - after)))
    return [shard]


def _to_core_behind(x: Array, num_cores: int) -> Array:
    return lax.ppermute(x, CORE, [(i, i + 1) for i in range(num_cores - 1)])


def _to_core_in_front(x: Array, num_cores: int) -> Array:
    return lax.ppermute(x, CORE, [(i + 1, i) for i in range(num_cores - 1)])


def _unless_core(core: int, border: Array, params: ExchangingBorders) -> Array:
    """Return the border, or at the end of the value what changes nothing in the reduction."""
    if params.reducer == "sum":  # what no core sends is zero
        return border
    neutral = neutral_element(params.reducer, border.dtype)
    return jnp.where(lax.axis_index(CORE) == core, neutral, border)


def _padded(x: Array, axis: int, widths: tuple[int, int]) -> Array:
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (*widths, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), config)
