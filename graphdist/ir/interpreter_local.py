"""The operations that each core runs on its own arrays, for the reference interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any  # Any: the parameters of an operation, of its own class

import numpy as np

from graphdist.ir import ops
from graphdist.ir.arrays import Array, join_arrays
from graphdist.ir.graph import Op
from graphdist.ir.op_parameters import (
    OrderingBlocks,
    PackingSlices,
    TakingAlong,
    UnpackingSlices,
)


def _scaled(array: Array, factor: float) -> Array:
    scale = np.asarray(factor).astype(array.real.dtype)
    if array.dtype.kind != "c":
        return np.asarray(np.multiply(array, scale))
    scaled = np.empty_like(array)  # real and imaginary part by themselves: infinity * 0j is nan
    scaled.real, scaled.imag = array.real * scale, array.imag * scale
    return scaled


def _clamped(index: Array, count: int) -> int:
    return min(max(int(index), 0), count - 1)


def _part(array: Array, index: Array, axis: int, count: int) -> Array:
    length = array.shape[axis] // count
    start = _clamped(index, count) * length
    return array[(*(slice(None),) * axis, slice(start, start + length))]


def _count_step(count: Array, every: int) -> list[Array]:
    is_last = int(count) + 1 >= every
    return [np.asarray(0 if is_last else count + 1, np.int32), np.asarray(is_last, np.int32)]


def _pieces(buffer: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    pieces, start = [], 0
    for shape in shapes:
        size = prod(shape)
        pieces.append(buffer[start : start + size].reshape(shape))
        start += size
    return pieces


def _pack_slices(arrays: list[Array], params: PackingSlices) -> Array:
    count = params.group_size
    cut = [np.split(array, count, axis) for array, axis in zip(arrays, params.axes, strict=True)]
    return join_arrays([slices[r].reshape(-1) for r in range(count) for slices in cut], 0)


def _unpack_slices(buffer: Array, params: UnpackingSlices) -> list[Array]:
    count = params.group_size
    cut = [
        (*shape[:axis], shape[axis] // count, *shape[axis + 1 :])
        for shape, axis in zip(params.shapes, params.axes, strict=True)
    ]
    parts = [_pieces(part, cut) for part in np.split(buffer, count)]
    by_piece = zip(params.axes, zip(*parts, strict=True), strict=True)
    return [join_arrays(list(slices), axis) for axis, slices in by_piece]


def _by_core(array: Array, params: OrderingBlocks) -> Array:
    blocks = np.split(array, np.cumsum(params.blocks)[:-1], params.axis)
    shards = [np.split(block, params.num_cores, params.axis) for block in blocks]
    return join_arrays([shard for own in zip(*shards, strict=True) for shard in own], params.axis)


def _by_block(array: Array, params: OrderingBlocks) -> Array:
    starts = np.cumsum([size // params.num_cores for size in params.blocks])[:-1]
    cores = np.split(array, params.num_cores, params.axis)
    shards = [np.split(core, starts, params.axis) for core in cores]
    return join_arrays([shard for own in zip(*shards, strict=True) for shard in own], params.axis)


def _taken(array: Array, indices: Array, params: TakingAlong) -> Array:
    places = indices.astype(np.int64)
    found: Array = np.take_along_axis(array, places, params.axis)
    if not params.added:
        return found
    added = places // params.shard * params.added
    return np.add(found, added.astype(array.dtype))


LOCAL: dict[Op, Callable[[list[Array], Any], list[Array]]] = {
    ops.BARRIER: lambda x, params: x,
    ops.COPY_TO: lambda x, params: x,
    ops.TO_REPLICAS: lambda x, params: x,
    ops.SPLIT_OVER_CORES: lambda x, params: x,
    ops.ORDER_BY_CORE: lambda x, params: [_by_core(x[0], params)],
    ops.ORDER_BY_BLOCK: lambda x, params: [_by_block(x[0], params)],
    ops.CONSTANT: lambda x, params: [params.value],
    ops.SCALE: lambda x, params: [_scaled(x[0], params.factor)],
    ops.PACK: lambda x, params: [join_arrays([array.reshape(-1) for array in x], 0)],
    ops.UNPACK: lambda x, params: _pieces(x[0], params.shapes),
    ops.PACK_SLICES: lambda x, params: [_pack_slices(x, params)],
    ops.UNPACK_SLICES: lambda x, params: _unpack_slices(x[0], params),
    ops.CONCATENATE: lambda x, params: [join_arrays(x, params.axis)],
    ops.RESHAPE: lambda x, params: [x[0].reshape(params.shape)],
    ops.TAKE_ALONG: lambda x, params: [_taken(x[0], x[1], params)],
    ops.TAKE_STEP: lambda x, params: [x[0][_clamped(x[1], len(x[0])), ...]],
    ops.TAKE_PART: lambda x, params: [_part(x[0], x[1], params.axis, params.count)],
    ops.JOIN_PARTS: lambda x, params: [join_arrays(list(x[0]), params.axis)],
    ops.COUNT_STEP: lambda x, params: _count_step(x[0], params.every),
}
"""Functions of one replica's operands and the parameters. They return the results."""
