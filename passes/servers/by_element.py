"""Operations that change a variable element by element: the part of a step that servers compute.

An element of the result is computed from one element of the variable, and from other values. The
operations are elementwise operations (`ir/operation_table.py`), operations that only rearrange
elements, scatters into the variable, which leave its other elements unchanged, and branches that
consist of these operations.
"""

from __future__ import annotations

from collections.abc import Collection

from graphdist.ir.analyses import has_effect
from graphdist.ir.graph import Node, Operand
from graphdist.ir.operation_table import ELEMENTWISE, TABLE, row_of
from graphdist.ir.ops import COND

MOVABLE = frozenset(
    {name for name, row in TABLE.items() if row.is_elementwise or row.only_moves}
    | {"constant", "jax.iota", "jax.scatter-add"}
)
"""The operations that a server may compute itself if their results are larger than their operands.
Matrix products are not among them, since one server works for many workers."""


def is_scatter(node: Node) -> bool:
    """Return whether a node changes some elements of its first operand, and keeps the rest."""
    return node.op.name.startswith(("jax.scatter", "jax.dynamic_update_slice"))


def is_rearranged(node: Node) -> bool:
    """Return whether a node only moves the elements of its operand."""
    row = row_of(node)
    if row is None or not row.only_moves or len(node.operands) != 1:
        return False
    return node.operands[0].type.size == node.results[0].type.size


def is_by_element(node: Node, of: Collection[Operand], sizes: Collection[int]) -> bool:
    """Return whether a node changes the values `of` element by element.

    These values are computed from variables whose numbers of elements are `sizes`.
    """
    if any(result.type.size not in sizes for result in node.results):
        return False
    if node.op is COND:
        return is_movable(node)
    if is_scatter(node):
        return node.operands[0] in of
    return node.op.name in ELEMENTWISE or is_rearranged(node)


def is_movable(node: Node) -> bool:
    """Return whether a server may compute a node, including all nodes of its branches."""
    if has_effect(node):
        return False
    if node.op is COND:
        return all(is_movable(inner) for branch in node.graphs for inner in branch.nodes)
    return node.op.name in MOVABLE or is_scatter(node)
