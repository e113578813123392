"""Gathers from shards of the dimension that is indexed, and scatters into them.

An embedding whose vocabulary is sharded over cores is read row by row, and each row is on one core.
Each core reads its own rows and has zeros for the others: terms of a sum, in which one term is not
zero. A scatter writes the rows that a core has, and drops the others: each core has its shard of
the result. So neither the table nor its gradient is ever full on a core (Megatron-LM, Shoeybi et
al., 2019, section 3, has it for embeddings).

A scatter begins from zeros as a rule, which every core has. It is computed on shards if a value of
the same shape was read on shards along the same dimension, since it is then that value's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast  # Any: JAX's dimension numbers and modes

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.jax_parameters import fill_value, mode, parameter
from graphdist.ir.op_parameters import IndexingOnCore, KeepingRowsOfCore
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.types import is_inexact

GATHER = "jax.gather"
SCATTERS = ("jax.scatter-add", "jax.scatter")
_INDICES = ("i32", "u32", "i64", "u64")
"""The dtypes of indices that represent every index, and the end of every dimension."""
_CLAMPING = ("CLIP", "PROMISE_IN_BOUNDS")
"""The modes of a gather in which one device clamps an index out of range."""


def indexed_dimensions(node: Node) -> Iterator[int]:
    """Yield the dimensions of the first operand whose elements the indices choose one by one."""
    if node.op.name not in (GATHER, *SCATTERS) or isinstance(node.params["mode"], Placeholder):
        return
    numbers = parameter(node, "dimension_numbers")
    is_gather = node.op.name == GATHER
    if isinstance(numbers, Placeholder) or node.operands[1].type.dtype not in _INDICES:
        return
    # A scatter drops the rows of other cores, and would drop what it has to clamp elsewhere.
    clamps_others = mode(node) == "CLIP" and len(_index_map(node)) > 1
    if not _has_exact_fill(node) if is_gather else clamps_others:
        return
    removed = numbers.collapsed_slice_dims if is_gather else numbers.inserted_window_dims
    yield from (dimension for dimension in removed if dimension in _index_map(node))


def _has_exact_fill(node: Node) -> bool:
    """Return whether a gather is of numbers, and what it fills in is a float."""
    dtype = node.results[0].type.dtype
    if dtype == "bool" or dtype.startswith("key"):
        return False
    fill = fill_value(node)
    is_filled = mode(node) == "FILL_OR_DROP"
    return not is_filled or (not isinstance(fill, complex) and dtype not in ("i64", "u64"))


def on_part(
    node: Node, operands: Sequence[Operand], dimension: int, num_cores: int, builder: Builder
) -> tuple[Value, ...]:
    """Add a gather or a scatter on the core's shard along `dimension`, and return its results."""
    shard, indices, *updates = operands
    size = node.operands[0].type.shape[dimension]
    is_gather = node.op.name == GATHER
    modes: Any = type(node.params["mode"])
    params = IndexingOnCore(
        _index_map(node).index(dimension),
        size,
        clamps=mode(node) in (_CLAMPING if is_gather else ("CLIP",)),
        drops=not is_gather,
        num_cores=num_cores,
    )
    (own,) = builder.add(ops.INDEX_ON_CORE, (indices,), params, at=node.source)
    # Indices of other cores are neither in order nor different from each other.
    changed: dict[str, Any] = {"indices_are_sorted": False, "unique_indices": False}
    if not is_gather:
        changed["mode"] = modes.FILL_OR_DROP
    types = [value.type for value in node.results]
    if not is_gather:
        types = [type.resized(dimension, size // num_cores) for type in types]
    results = builder.again(node, (shard, own, *updates), types, **changed)
    if not is_gather:
        return results
    numbers = parameter(node, "dimension_numbers")
    keeping = KeepingRowsOfCore(
        params.component,
        size,
        clamps=params.clamps,
        offset_dims=tuple(numbers.offset_dims),
        fill=_fill(node),
        num_cores=num_cores,
    )
    return builder.add(ops.KEEP_ROWS_OF_CORE, (*results, indices), keeping, at=node)


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
