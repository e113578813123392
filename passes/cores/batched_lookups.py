"""Lookups in a batch of one row, written as those in a batch of more rows are.

JAX looks up one element of each row of a batch by indices that have the batch as a dimension. If
the batch has one row, the indices leave this dimension out, and the window that is read covers it.
Then the same indices would serve all rows, if there were more. Here the indices get the dimension
back, as the rows of all replicas need it (`rows_of_replicas.py`).

Before:  %y = jax.gather(%x, %i) : f32[1,n,1]           (%x : f32[1,n,v], %i : i32[n,1,1])
After:   %j = reshape(%i) {shape=(1, n, 1, 1)}          %y = jax.gather(%x, %j) : f32[1,n,1]

In the first gather, dimension 0 of %y is that of the window, in the second it is that of %j.
"""

from __future__ import annotations

from typing import Any  # Any: JAX's dimension numbers

from graphdist.ir.graph import Graph, Node, Operands
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.op_parameters import Reshaping
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.ops import RESHAPE
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.passes.layouts.indexed_shards import GATHER, SCATTERS


def batched_lookups(graph: Graph, origin: str) -> Graph:
    """Return the graph with batches of one row as dimensions of indices; nested graphs, too."""
    return rewrite(graph, _rule, origin, {GATHER, *SCATTERS})


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    numbers: Any = parameter(node, "dimension_numbers")
    dimension = None if isinstance(numbers, Placeholder) else _row_of_one(node, numbers)
    if dimension is None:
        return None
    is_gather = node.op.name == GATHER
    windows = numbers.offset_dims if is_gather else numbers.update_window_dims
    removed = numbers.collapsed_slice_dims if is_gather else numbers.inserted_window_dims
    beside = numbers.operand_batching_dims
    beside_indices = (
        numbers.start_indices_batching_dims if is_gather else numbers.scatter_indices_batching_dims
    )
    rank = len(node.operands[0].type.shape)
    kept = [each for each in range(rank) if each not in {*removed, *beside}]
    place = windows[kept.index(dimension)]
    # So many dimensions of the rows before that of the window are dimensions of the indices.
    at = sum(each not in windows for each in range(place))
    changed: dict[str, object] = {
        "offset_dims" if is_gather else "update_window_dims": tuple(
            each for each in windows if each != place
        ),
        "operand_batching_dims": tuple(sorted((*beside, dimension))),
    }
    moved = {each: to + (to >= at) for each, to in zip(beside, beside_indices, strict=True)}
    moved[dimension] = at
    name = "start_indices_batching_dims" if is_gather else "scatter_indices_batching_dims"
    changed[name] = tuple(moved[each] for each in sorted(moved))
    array, indices, *updates = operands
    shape = indices.type.shape
    reshaping = Reshaping((*shape[:at], 1, *shape[at:]))
    (indices,) = rewriter.add(RESHAPE, (indices,), reshaping, at=node.source)
    return rewriter.again(
        node, (array, indices, *updates), dimension_numbers=numbers._replace(**changed)
    )


def _row_of_one(node: Node, numbers: Any) -> int | None:
    """Return the first dimension of size 1 that windows cover; None if there is none."""
    is_gather = node.op.name == GATHER
    removed = numbers.collapsed_slice_dims if is_gather else numbers.inserted_window_dims
    indexed = numbers.start_index_map if is_gather else numbers.scatter_dims_to_operand_dims
    others = {*removed, *indexed, *numbers.operand_batching_dims}
    shape = node.operands[0].type.shape
    return next((i for i, size in enumerate(shape) if size == 1 and i not in others), None)
