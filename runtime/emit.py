"""SPMD graph -> a function of JAX arrays: the program of one device, node by node.

Every node is bound once, in order, and nothing is added but the form of what a library computes on
CPUs (`cpu_operations.py`). A collective node becomes one collective in the module, or one
collective for each of its `stages`. Collectives run over the axes of the mesh
(`graphdist.ir.mesh`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeAlias  # Any: arrays and tracers have no common public type

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from graphdist.ir import ops
from graphdist.ir.cost import steps_per_run
from graphdist.ir.errors import VerifyError
from graphdist.ir.graph import Graph, Literal, Node, Op, Operand
from graphdist.ir.loops import returned_parts, scan_parts, while_parts
from graphdist.ir.mesh import CORE, GROUP, MEMBER
from graphdist.ir.op_parameters import AlongAxisOverCores, OverCores
from graphdist.ir.types import MIRRORED, numpy_dtype
from graphdist.runtime.borders_of_cores import add_borders, exchange_borders
from graphdist.runtime.cpu_collectives import all_gather, all_to_all, reduce_scatter
from graphdist.runtime.cpu_operations import bind_for_platform, forms_of_nodes
from graphdist.runtime.extremes import extreme
from graphdist.runtime.indices_of_shards import index_on_shard, kept_rows
from graphdist.runtime.module.instructions import every_scope
from graphdist.runtime.module.line_labels import phase_and_line
from graphdist.runtime.pieces import unpack
from graphdist.runtime.random_shard import random_shard
from graphdist.tracing.user_lines import traced_at

Array: TypeAlias = Any
Rule: TypeAlias = Callable[[Node, list[Array]], Sequence[Array]]


def emit(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of the graph for these inputs, under JAX's current trace."""
    environment: dict[Operand, Array] = dict(zip(graph.inputs, inputs, strict=True))

    def array_of(operand: Operand) -> Array:
        if isinstance(operand, Literal):
            return np.asarray(operand.value, numpy_dtype(operand.type.dtype))
        return environment[operand]

    names_lines, forms = _names_lines.get(), forms_of_nodes(graph)
    for node in graph.nodes:
        apply = forms.get(node, _bind if node.op.rule is None else _own)
        with _scope(node, names_lines), traced_at(node.source):
            results = apply(node, [array_of(operand) for operand in node.operands])
        environment.update(zip(node.results, results, strict=True))
    return [array_of(output) for output in graph.outputs]


def _bind(node: Node, operands: list[Array]) -> Sequence[Array]:
    """Return the results of an operation of JAX."""
    return bind_for_platform(node, operands)


def _own(node: Node, operands: list[Array]) -> Sequence[Array]:
    """Return the results of an operation of graphdist, not of JAX."""
    rule = _RULES.get(node.op)
    if rule is None:
        raise VerifyError(
            f"{node.op.name} reached emission: a pass that lowers it is missing from the pipeline"
        )
    return rule(node, operands)


def _scope(node: Node, names_lines: bool) -> Any:  # Any: the two managers share no public type
    """Return a scope that names operations of the module after the user's line.

    The name also has the kind of a collective, or the phase of the step. XLA ends a name at its
    first @.
    """
    if not (names_lines or node.op.is_collective):
        return _NO_SCOPE
    phase, line = phase_and_line(node.source)
    kind = node.op.name if node.op.is_collective else phase
    return jax.named_scope(f"{kind}({line})") if line else _NO_SCOPE


@contextmanager
def lines_named(names_lines: bool) -> Iterator[None]:
    """Name all operations in the module after the user's lines, or only collectives.

    Names lengthen a compilation, so only programs compiled ahead of time name all operations.
    """
    before = _names_lines.set(names_lines)
    try:
        yield
    finally:
        _names_lines.reset(before)


_names_lines: ContextVar[bool] = ContextVar("_names_lines", default=False)
_NO_SCOPE = nullcontext()


def _replicas() -> str | tuple[str, ...]:
    """Return the axes of the mesh; an index along all of them is a replica id."""
    axes = jax.sharding.get_abstract_mesh().axis_names
    names = tuple(name for name in axes if name != CORE)
    return names[0] if len(names) == 1 else names


def _members(node: Node) -> str | tuple[str, ...]:
    """Return the axes over which a node communicates within its groups."""
    return _replicas() if ops.is_over_all(node) else MEMBER


_MEMORIES = {"device": jax.memory.Space.Device, "host": jax.memory.Space.Host}
_REDUCERS: dict[str, Any] = {"sum": lax.psum, "mean": lax.pmean, "max": lax.pmax, "min": lax.pmin}


def _all_reduce(node: Node, operands: list[Array]) -> list[Array]:
    return [_reduced(operands[0], ops.ALL_REDUCE.of(node).reducer, _members(node))]


def _reduced(operand: Array, name: str, axes: str | tuple[str, ...]) -> Array:
    x, reducer = jnp.asarray(operand), _REDUCERS[name]
    if x.dtype == jnp.bool_:
        return reducer(x.astype(jnp.int32), axes).astype(jnp.bool_)
    if reducer in (lax.pmax, lax.pmin) and jnp.issubdtype(x.dtype, jnp.floating):
        return extreme(x, reducer, axes)
    return reducer(x, axes)


def _all_gather(node: Node, operands: list[Array]) -> list[Array]:
    params, gathered, axes = ops.ALL_GATHER.of(node), operands[0], _members(node)
    for groups in reversed(_groups(params.stages)):
        gathered = all_gather(gathered, axes, params.axis, groups)
    return [gathered]


def _reduce_scatter(node: Node, operands: list[Array]) -> list[Array]:
    params, total, axes = ops.REDUCE_SCATTER.of(node), operands[0], _members(node)
    for groups in _groups(params.stages):
        total = reduce_scatter(total, axes, params.axis, groups)
    if params.num_groups > 1:
        total = lax.psum(total, GROUP)
    if params.reducer == "mean":
        total = total / np.asarray(params.mesh.num_replicas, total.dtype)
    return [total]


def _collective_permute(node: Node, operands: list[Array]) -> list[Array]:
    return [lax.ppermute(operands[0], _replicas(), ops.COLLECTIVE_PERMUTE.of(node).pairs)]


def _all_to_all(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.ALL_TO_ALL.of(node)
    return [all_to_all(operands[0], _members(node), params.split_axis, params.concat_axis)]


def _groups(stages: tuple[int, ...]) -> list[Any]:
    """Return the groups of replicas in each stage; None stands for one group of all replicas."""
    if not stages:
        return [None]
    numbers = np.arange(np.prod(stages)).reshape(stages)
    moved = (np.moveaxis(numbers, stage, -1) for stage in range(len(stages)))
    return [each.reshape(-1, size).tolist() for each, size in zip(moved, stages, strict=True)]


def _all_reduce_over_cores(node: Node, operands: list[Array]) -> list[Array]:
    return [_reduced(operands[0], ops.ALL_REDUCE_OVER_CORES.of(node).reducer, CORE)]


def _all_gather_over_cores(node: Node, operands: list[Array]) -> list[Array]:
    axis = ops.ALL_GATHER_OVER_CORES.of(node).axis
    return [all_gather(operands[0], CORE, axis)]


def _reduce_scatter_over_cores(node: Node, operands: list[Array]) -> list[Array]:
    axis = ops.REDUCE_SCATTER_OVER_CORES.of(node).axis
    return [reduce_scatter(operands[0], CORE, axis)]


def _all_to_all_over_cores(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.ALL_TO_ALL_OVER_CORES.of(node)
    return [all_to_all(operands[0], CORE, params.split_axis, params.concat_axis)]


def _slice_of_core(node: Node, operands: list[Array]) -> list[Array]:
    axis, own = ops.SLICE_OF_CORE.of(node).axis, lax.axis_index(CORE)
    return [lax.dynamic_slice_in_dim(operands[0], *_start_and_length(node, axis, own), axis)]


def _order_by_core(node: Node, operands: list[Array]) -> list[Array]:
    params, (x,) = ops.ORDER_BY_CORE.of(node), operands
    blocks = lax.split(x, params.blocks, params.axis)
    return [
        _joined([lax.split(block, _equal(block, params), params.axis) for block in blocks], params)
    ]


def _order_by_block(node: Node, operands: list[Array]) -> list[Array]:
    params, (x,) = ops.ORDER_BY_BLOCK.of(node), operands
    sizes = [size // params.num_cores for size in params.blocks]
    shards = lax.split(x, _equal(x, params), params.axis)
    return [_joined([lax.split(shard, sizes, params.axis) for shard in shards], params)]


def _equal(x: Array, params: AlongAxisOverCores) -> list[int]:
    """Return the sizes of the shards of the cores."""
    return [x.shape[params.axis] // params.num_cores] * params.num_cores


def _joined(rows: Sequence[Sequence[Array]], params: AlongAxisOverCores) -> Array:
    """Return the first pieces of all rows, then the second pieces, and so on, joined."""
    return lax.concatenate(
        [each for pieces in zip(*rows, strict=True) for each in pieces], params.axis
    )


def _rotate_over_cores(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.ROTATE_OVER_CORES.of(node)
    count = params.num_cores
    return [
        lax.ppermute(operands[0], CORE, [((i + params.ahead) % count, i) for i in range(count)])
    ]


def _slice_ahead(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.SLICE_AHEAD.of(node)
    start, length = _start_and_length(node, params.axis, _core_ahead(params, params.ahead))
    return [lax.dynamic_slice_in_dim(operands[0], start, length, params.axis)]


def _join_ahead(node: Node, operands: list[Array]) -> list[Array]:
    params, type = ops.JOIN_AHEAD.of(node), node.results[0].type
    joined = lax.full(type.shape, 0, operands[0].dtype)
    for ahead, shard in enumerate(operands):
        start = _core_ahead(params, ahead) * shard.shape[params.axis]
        joined = lax.dynamic_update_slice_in_dim(joined, shard, start, params.axis)
    return [joined]


def _core_ahead(params: OverCores, ahead: int) -> Array:
    """Return the index of the core that is so many places ahead in the ring."""
    return (lax.axis_index(CORE) + ahead) % params.num_cores


def _index_on_core(node: Node, operands: list[Array]) -> list[Array]:
    return [index_on_shard(operands[0], lax.axis_index(CORE), ops.INDEX_ON_CORE.of(node))]


def _keep_rows_of_core(node: Node, operands: list[Array]) -> list[Array]:
    value, indices = operands
    return [kept_rows(value, indices, lax.axis_index(CORE), ops.KEEP_ROWS_OF_CORE.of(node))]


def _index_on_replica(node: Node, operands: list[Array]) -> list[Array]:
    params, own = ops.INDEX_ON_REPLICA.of(node), lax.axis_index(_members(node))
    return [index_on_shard(operands[0], own, params)]


def _keep_rows_of_replica(node: Node, operands: list[Array]) -> list[Array]:
    value, indices = operands
    params, own = ops.KEEP_ROWS_OF_REPLICA.of(node), lax.axis_index(_members(node))
    return [kept_rows(value, indices, own, params)]


def _own_slice(node: Node, operands: list[Array]) -> list[Array]:
    axis, own = ops.OWN_SLICE.of(node).axis, lax.axis_index(_members(node))
    return [lax.dynamic_slice_in_dim(operands[0], *_start_and_length(node, axis, own), axis)]


def _random_shard(node: Node, operands: list[Array]) -> list[Array]:
    params, own = ops.RANDOM_SHARD.of(node), lax.axis_index(_members(node))
    return [random_shard(operands[0], params, *_start_and_length(node, params.axis, own))]


def _start_and_length(node: Node, axis: int, number: Array) -> tuple[Array, int]:
    """Return the start and the length, along a dimension, of the part with this number."""
    length = node.results[0].type.shape[axis]
    return number * length, length


def _select_replica(node: Node, operands: list[Array]) -> list[Array]:
    return [_on_one_replica(operands[0], ops.SELECT_REPLICA.of(node).replica)]


def _on_one_replica(x: Array, replica: int) -> Array:
    return jnp.where(lax.axis_index(_replicas()) == replica, x, jnp.zeros_like(x))


def _to_partial(node: Node, operands: list[Array]) -> list[Array]:
    is_mirrored = node.operands[0].type.layout is MIRRORED
    if is_mirrored and ops.TO_PARTIAL.of(node).reducer == "sum":
        return [_on_one_replica(operands[0], 0)]
    return operands


def _scale(node: Node, operands: list[Array]) -> list[Array]:
    (x,) = operands
    factor = ops.SCALE.of(node).factor
    if jnp.iscomplexobj(x):  # real and imaginary parts apart: infinity times 0j is nan
        real, imag = lax.real(x), lax.imag(x)
        return [lax.complex(real * real.dtype.type(factor), imag * imag.dtype.type(factor))]
    return [lax.mul(x, lax.full_like(x, factor))]


def _pack(node: Node, operands: list[Array]) -> list[Array]:
    return [lax.concatenate([x if x.ndim == 1 else lax.reshape(x, (x.size,)) for x in operands], 0)]


def _unpack(node: Node, operands: list[Array]) -> list[Array]:
    sizes = [result.type.size for result in node.results]
    pieces = unpack(operands[0], sizes, at_run_time=ops.UNPACK.of(node).starts_at_run_time)
    shapes = [result.type.shape for result in node.results]
    return list(map(lax.reshape, pieces, shapes))


def _pack_slices(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.PACK_SLICES.of(node)
    count = params.group_size
    rows = [
        lax.reshape(jnp.moveaxis(_cut(x, axis, count), axis, 0), (count, x.size // count))
        for x, axis in zip(operands, params.axes, strict=True)
    ]
    return [lax.reshape(lax.concatenate(rows, 1), (sum(x.size for x in operands),))]


def _cut(x: Array, axis: int, count: int) -> Array:
    """Return `x` with dimension `axis` split into two: the shard, and the index in the shard."""
    length = x.shape[axis] // count
    return lax.reshape(x, (*x.shape[:axis], count, length, *x.shape[axis + 1 :]))


def _unpack_slices(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.UNPACK_SLICES.of(node)
    count = params.group_size
    sizes = [result.type.size // count for result in node.results]
    joined = lax.reshape(operands[0], (count, sum(sizes)))
    rows = unpack(joined, sizes, axis=1, at_run_time=params.starts_at_run_time)
    arrays = []
    for row, result, axis in zip(rows, node.results, params.axes, strict=True):
        shape = result.type.shape
        slices = lax.reshape(row, (count, *shape[:axis], shape[axis] // count, *shape[axis + 1 :]))
        arrays.append(lax.reshape(jnp.moveaxis(slices, 0, axis), shape))
    return arrays


def _take_step(node: Node, operands: list[Array]) -> list[Array]:
    # XLA clamps an index that is out of range.
    return [lax.dynamic_index_in_dim(*operands, keepdims=False, allow_negative_indices=False)]


def _take_along(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.TAKE_ALONG.of(node)
    x, indices = operands
    found = jnp.take_along_axis(x, indices, params.axis, mode="promise_in_bounds")
    if params.added:
        found += (indices // params.shard * params.added).astype(x.dtype)
    return [found]


def _take_part(node: Node, operands: list[Array]) -> list[Array]:
    x, number = operands
    axis = ops.TAKE_PART.of(node).axis
    start, length = _start_and_length(node, axis, number)
    return [lax.dynamic_slice_in_dim(x, start, length, axis, allow_negative_indices=False)]


def _join_parts(node: Node, operands: list[Array]) -> list[Array]:
    axis = ops.JOIN_PARTS.of(node).axis
    return [lax.reshape(jnp.moveaxis(operands[0], 0, axis), node.results[0].type.shape)]


def _count_step(node: Node, operands: list[Array]) -> list[Array]:
    count = operands[0] + 1
    is_last = count >= ops.COUNT_STEP.of(node).every
    return [jnp.where(is_last, 0, count), is_last.astype(jnp.int32)]


def _constant(node: Node, operands: list[Array]) -> list[Array]:
    value = ops.CONSTANT.of(node).value
    # JAX would pass an array without elements as an operand, on which XLA may fail.
    is_empty = isinstance(value, np.ndarray) and not value.size
    return [lax.full(value.shape, 0, value.dtype) if is_empty else value]


def _scan(node: Node, operands: list[Array]) -> list[Array]:
    params = ops.SCAN.of(node)
    constants, first, scanned = scan_parts(params, operands)
    (body,) = node.graphs

    def step(carry: list[Array], x: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        following, stacked = returned_parts(params, emit(body, [*constants, *carry, *x]))
        return list(following), list(stacked)

    first, unroll = list(map(jnp.asarray, first)), params.unroll or 1
    carry, ys = lax.scan(step, first, scanned, params.length, params.reverse, unroll)
    return [*carry, *ys]


def _while(node: Node, operands: list[Array]) -> list[Array]:
    of_condition, of_body, first = while_parts(ops.WHILE.of(node), operands)
    condition, body = node.graphs
    return lax.while_loop(
        lambda carry: emit(condition, [*of_condition, *carry])[0],
        lambda carry: emit(body, [*of_body, *carry]),
        list(map(jnp.asarray, first)),
    )


def _cond(node: Node, operands: list[Array]) -> list[Array]:
    index, *rest = operands
    branches = [lambda *inputs, branch=branch: emit(branch, inputs) for branch in node.graphs]
    every = steps_per_run(node)
    with jax.named_scope(every_scope(every)) if every > 1 else nullcontext():
        return lax.switch(index, branches, *rest)


_RULES: dict[Op, Rule] = {
    ops.ALL_REDUCE: _all_reduce,
    ops.ALL_GATHER: _all_gather,
    ops.REDUCE_SCATTER: _reduce_scatter,
    ops.COLLECTIVE_PERMUTE: _collective_permute,
    ops.ALL_TO_ALL: _all_to_all,
    ops.ALL_REDUCE_OVER_CORES: _all_reduce_over_cores,
    ops.ALL_GATHER_OVER_CORES: _all_gather_over_cores,
    ops.REDUCE_SCATTER_OVER_CORES: _reduce_scatter_over_cores,
    ops.ALL_TO_ALL_OVER_CORES: _all_to_all_over_cores,
    ops.SLICE_OF_CORE: _slice_of_core,
    ops.ORDER_BY_CORE: _order_by_core,
    ops.ORDER_BY_BLOCK: _order_by_block,
    ops.ROTATE_OVER_CORES: _rotate_over_cores,
    ops.SLICE_AHEAD: _slice_ahead,
    ops.JOIN_AHEAD: _join_ahead,
    ops.EXCHANGE_BORDERS: exchange_borders,
    ops.ADD_BORDERS: add_borders,
    ops.INDEX_ON_CORE: _index_on_core,
    ops.KEEP_ROWS_OF_CORE: _keep_rows_of_core,
    ops.INDEX_ON_REPLICA: _index_on_replica,
    ops.KEEP_ROWS_OF_REPLICA: _keep_rows_of_replica,
    ops.AS_SHARD: lambda node, xs: xs,
    ops.CORE_ID: lambda node, xs: [lax.axis_index(CORE)],
    ops.OWN_SLICE: _own_slice,
    ops.RANDOM_SHARD: _random_shard,
    ops.REPLICA_ID: lambda node, xs: [lax.axis_index(_replicas())],
    ops.SELECT_REPLICA: _select_replica,
    ops.TO_PARTIAL: _to_partial,
    ops.SCALE: _scale,
    ops.PACK: _pack,
    ops.UNPACK: _unpack,
    ops.PACK_SLICES: _pack_slices,
    ops.UNPACK_SLICES: _unpack_slices,
    ops.CONCATENATE: lambda node, xs: [lax.concatenate(xs, ops.CONCATENATE.of(node).axis)],
    ops.RESHAPE: lambda node, xs: [jnp.reshape(xs[0], node.results[0].type.shape)],
    ops.TAKE_ALONG: _take_along,
    ops.TAKE_STEP: _take_step,
    ops.TAKE_PART: _take_part,
    ops.JOIN_PARTS: _join_parts,
    ops.COUNT_STEP: _count_step,
    ops.BARRIER: lambda node, xs: list(lax.optimization_barrier(xs)),
    ops.COPY_TO: lambda node, xs: [
        jax.device_put(xs[0], _MEMORIES[ops.COPY_TO.of(node).memory], may_alias=False)
    ],
    ops.CONSTANT: _constant,
    ops.SCAN: _scan,
    ops.WHILE: _while,
    ops.COND: _cond,
}
