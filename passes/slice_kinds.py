"""In what way an operation deals with slices, and along which dimension a value is cut.

That dimension depends on the shape alone, so that all that meet in an update are cut alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from graphdist.ir.analyses import producers
from graphdist.ir.elementwise import ELEMENTWISE
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, COND, OWN_SLICE
from graphdist.ir.types import MIRRORED

REDUCERS = {
    "jax.reduce_sum": "sum",
    "jax.dot_general": "sum",
    "jax.reduce_max": "max",
    "jax.reduce_or": "max",
    "jax.reduce_min": "min",
    "jax.reduce_and": "min",
}
"""What reduces slices first and then over the replicas, and how."""


@lru_cache(maxsize=4096)
def cut_of(shape: tuple[int, ...], num_replicas: int) -> int | None:
    """Return the dimension along which values of a shape are cut; None if none divides.

    The first one if it divides, since slices of rows need no copy; else the longest that does, and
    the last only if no other does: accelerators pad a short last dimension to 128.

    >>> cut_of((8, 3), 4), cut_of((6, 8, 16), 4), cut_of((6, 16), 4), cut_of((6,), 4)
    (0, 1, 1, None)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    if not divides or divides[0] == 0:
        return 0 if divides else None
    inner = [i for i in divides if i < len(shape) - 1]
    return max(inner or divides, key=lambda i: shape[i])


def is_cuttable(operand: Operand, num_replicas: int) -> bool:
    """Return whether a replica can take a slice of what all of them hold."""
    type = operand.type
    return type.distribution is MIRRORED and cut_of(type.shape, num_replicas) is not None


def kind_of(node: Node, num_replicas: int) -> str:
    """Return in what way a node deals with slices; "" for one that needs wholes."""
    name = node.op.name
    if name in ELEMENTWISE:
        return "elementwise" if _keeps_slices(node, num_replicas) else ""
    if name == "jax.broadcast_in_dim":
        is_scalar = len(node.operands) == 1 and not node.operands[0].type.shape
        return "broadcast" if is_scalar else ""
    if name in REDUCERS:
        return "reduction" if _reduces_all(node) else ""
    if node.op is ALL_REDUCE:
        return "all_reduce" if node.params["reducer"] in ("sum", "mean") else ""
    if node.op is ALL_GATHER:
        return "gathered" if _is_own_cut(node, node.results[0], num_replicas) else ""
    if node.op is OWN_SLICE:
        return "sliced" if _is_own_cut(node, node.operands[0], num_replicas) else ""
    if node.op is COND:
        return "branches" if node.operands[0].type.distribution is MIRRORED else ""
    return ""


def is_shared(operand: Operand, result: Value, num_replicas: int) -> bool:
    """Return whether every slice of a result takes all of an operand: it has one element there."""
    if not operand.type.shape:
        return True
    cut = cut_of(result.type.shape, num_replicas)
    return cut is not None and operand.type.shape[cut] == 1


def is_exact(node: Node) -> bool:
    """Return whether a reduction gives the same, to the bit, in whatever order it is done."""
    return REDUCERS[node.op.name] != "sum"


def reduced_by(node: Node, graph: Graph, num_replicas: int) -> tuple[Operand, ...]:
    """Return what a reduction reduces: its operands, or what these are the flattened forms of.

    `jnp.vdot` flattens both factors, which may be cut along another dimension than what they are
    made of; a sum of products takes them as they were.
    """
    operands = node.operands
    if len(operands) == 1 or len(operands[0].type.shape) > 1:
        return operands
    makers = [producers(graph).get(cast(Value, operand)) for operand in operands]
    flattened = [
        maker.operands[0]
        for maker in makers
        if maker is not None
        and maker.op.name == "jax.reshape"
        and maker.params.get("dimensions") is None
        and is_cuttable(maker.operands[0], num_replicas)
    ]
    shapes = {operand.type.shape for operand in flattened}
    return tuple(flattened) if len(flattened) == len(operands) and len(shapes) == 1 else operands


def params_of_reduction(node: Node, operands: Sequence[Operand]) -> dict[str, object]:
    """Return the parameters with which a reduction takes `operands`, flattened or as they were."""
    params = dict(node.params)
    if len(operands) > 1:
        dimensions = tuple(range(len(operands[0].type.shape)))
        params["dimension_numbers"] = ((dimensions, dimensions), ((), ()))
    return params


def _reduces_all(node: Node) -> bool:
    """Return whether a node reduces all there is of its operands to one number."""
    if node.results[0].type.shape:
        return False
    first = node.operands[0].type
    if node.op.name in ("jax.reduce_and", "jax.reduce_or"):
        return first.dtype == "bool"  # of integers they are of each bit
    if node.op.name == "jax.dot_general":
        (left, right), _ = cast(
            "tuple[tuple[tuple[int, ...], ...], object]", node.params["dimension_numbers"]
        )
        shapes = {operand.type.shape for operand in node.operands}
        return len(shapes) == 1 and tuple(left) == tuple(right) and bool(first.shape)
    return True


def _is_own_cut(node: Node, whole: Operand, num_replicas: int) -> bool:
    axis = node.params["axis"]
    slice = node.operands[0] if node.op is ALL_GATHER else node.results[0]
    distribution = slice.type.distribution
    is_slice = distribution is not None and distribution.dimension == axis
    return is_slice and cut_of(whole.type.shape, num_replicas) == axis


def _keeps_slices(node: Node, num_replicas: int) -> bool:
    """Return whether a slice of the result takes slices, cut alike, and what all slices share."""
    result = node.results[0]
    shape, cut = result.type.shape, cut_of(result.type.shape, num_replicas)
    return bool(shape) and all(
        operand.type.shape == shape
        or is_shared(operand, result, num_replicas)
        or (cut is not None and cut_of(operand.type.shape, num_replicas) == cut)
        for operand in node.operands
    )
