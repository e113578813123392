"""Gathers from shards of the dimension that is indexed, and scatters into them.

An embedding whose vocabulary is sharded over cores or over replicas is read row by row, and each
row is in one shard. Each device reads the rows of its own shard and has zeros for the others: terms
of a sum, in which one term is not zero. A scatter writes the rows of the own shard, and drops the
others: each device has its shard of the result. So neither the table nor its gradient is ever full
on a device (Megatron-LM, Shoeybi et al., 2019, section 3, has it for embeddings).

Over cores, a scatter into zeros, which every core has, is computed on shards if a value of the same
shape was read on shards along the same dimension, since it is then that value's gradient. Over
replicas, `lookups_on_shards` finds the gradients by their reductions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast  # Any: JAX's dimension numbers and modes

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Op, Operand, Value
from graphdist.ir.jax_parameters import fill_value, integers, mode, parameter
from graphdist.ir.mesh import MeshShape
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.types import Type, is_inexact

GATHER = "jax.gather"
SCATTERS = ("jax.scatter-add", "jax.scatter")
_INDICES = ("i32", "u32", "i64", "u64")
"""The dtypes of indices that represent every index, and the end of every dimension."""
_CLAMPING = ("CLIP", "PROMISE_IN_BOUNDS")
"""The modes of a gather in which one device clamps an index out of range."""


class IndexedShards(NamedTuple):
    """What holds the shards of a value: `indexing_over_cores` or `indexing_over_replicas`."""

    indexing: Op
    keep_rows: Op
    over: dict[str, object]
    """The parameters that say over what a value is sharded."""
    num_shards: int


def indexing_over_cores(num_cores: int) -> IndexedShards:
    """Return the shards that the cores of each replica hold."""
    over: dict[str, object] = {"num_cores": num_cores}
    return IndexedShards(ops.INDEX_ON_CORE, ops.KEEP_ROWS_OF_CORE, over, num_cores)


def indexing_over_replicas(mesh: MeshShape) -> IndexedShards:
    """Return the shards that the replicas of each group hold."""
    over = ops.of_groups(mesh)
    return IndexedShards(ops.INDEX_ON_REPLICA, ops.KEEP_ROWS_OF_REPLICA, over, mesh.group_size)


def indexed_dimensions(node: Node) -> Iterator[int]:
    """Yield the dimensions of the first operand whose elements the indices choose one by one."""
    if node.op.name not in (GATHER, *SCATTERS) or isinstance(node.params["mode"], Placeholder):
        return
    numbers = parameter(node, "dimension_numbers")
    is_gather = node.op.name == GATHER
    if isinstance(numbers, Placeholder) or node.operands[1].type.dtype not in _INDICES:
        return
    if is_gather and not _has_exact_fill(node):
        return
    sizes = _window_sizes(node)
    for dimension in _index_map(node):
        # A scatter drops the rows of other shards, and would drop what it has to clamp elsewhere.
        may_drop = is_gather or mode(node) != "CLIP" or _covers_others(node, dimension)
        if sizes[dimension] == 1 and may_drop:
            yield dimension


def _window_sizes(node: Node) -> Sequence[int]:
    """Return how many elements of each dimension of the first operand a row of indices means."""
    if node.op.name == GATHER:
        return integers(node, "slice_sizes")
    numbers, updates = parameter(node, "dimension_numbers"), node.operands[2].type
    alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = iter(numbers.update_window_dims)
    return [
        1 if dimension in alone else updates.shape[next(windows)]
        for dimension in range(len(node.operands[0].type.shape))
    ]


def _covers_others(node: Node, dimension: int) -> bool:
    """Return whether windows cover all other indexed dimensions, so that they begin at 0."""
    sizes, shape = _window_sizes(node), node.operands[0].type.shape
    return all(sizes[other] == shape[other] for other in _index_map(node) if other != dimension)


def _has_exact_fill(node: Node) -> bool:
    """Return whether a gather is of numbers, and what it fills in is a float."""
    dtype = node.results[0].type.dtype
    if dtype == "bool" or dtype.startswith("key"):
        return False
    fill = fill_value(node)
    is_filled = mode(node) == "FILL_OR_DROP"
    return not is_filled or (not isinstance(fill, complex) and dtype not in ("i64", "u64"))


def on_own_shard(
    node: Node,
    operands: Sequence[Operand],
    dimension: int,
    shards: IndexedShards,
    builder: Builder,
    type: Type | None = None,
) -> tuple[Value, ...]:
    """Add a gather or a scatter on the own shard along `dimension`, and return its result.

    `type` is the type of the result if it is not that of the node.
    """
    shard, indices, *updates = operands
    size = node.operands[0].type.shape[dimension]
    is_gather, found = node.op.name == GATHER, type or node.results[0].type
    into: dict[str, object] = {
        "component": _index_map(node).index(dimension),
        "size": size,
        "clamps": mode(node) in (_CLAMPING if is_gather else ("CLIP",)),
        **shards.over,
    }
    drops = {
        **into,
        "drops": not is_gather,
        "begins_others": not is_gather and mode(node) == "CLIP" and len(_index_map(node)) > 1,
    }
    (own,) = builder.add(shards.indexing, (indices,), drops, at=node.source)
    if not is_gather:
        found = found.resized(dimension, size // shards.num_shards)
    changed = _unordered(node, drops=not is_gather)
    results = builder.again(node, (shard, own, *updates), [found], **changed)
    if not is_gather:
        return results
    numbers = parameter(node, "dimension_numbers")
    keeping = {**into, "offset_dims": tuple(numbers.offset_dims), "fill": _fill(node)}
    return builder.add(shards.keep_rows, (*results, indices), keeping, at=node)


def _unordered(node: Node, *, drops: bool) -> dict[str, object]:
    """Return the parameters that change where indices become those into an own shard.

    The indices of other shards are neither in order nor different from each other.
    """
    changed: dict[str, object] = {"indices_are_sorted": False, "unique_indices": False}
    modes: Any = type(node.params["mode"])
    return {**changed, "mode": modes.FILL_OR_DROP} if drops else changed


def _index_map(node: Node) -> tuple[int, ...]:
    numbers = parameter(node, "dimension_numbers")
    is_gather = node.op.name == GATHER
    found = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
    return tuple(cast("Sequence[int]", found))


def _fill(node: Node) -> float | None:
    """Return what a gather returns for an index out of range; None if it takes no such index."""
    if mode(node) != "FILL_OR_DROP":
        return None
    fill = fill_value(node)
    if fill is not None:
        return float(fill)
    dtype = node.results[0].type.dtype
    if is_inexact(dtype):
        return float("nan")
    bits = int(dtype[1:])  # as JAX: the smallest integer, or the largest without a sign
    return -(2.0 ** (bits - 1)) if dtype[0] == "i" else 2.0**bits - 1
