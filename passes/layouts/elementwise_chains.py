"""Chains of operations, each of which has one operand that is no literal.

Passes move such a chain to a part of the value on which it computes, or to a slice of this value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.types import Type


def only_operand(node: Node) -> int | None:
    """Return the index of the only operand that is no literal.

    Return None if there is no such operand, if a literal is no scalar, or if the node has not one
    result of as many elements as this operand.
    """
    found, operands = None, node.operands
    for index, operand in enumerate(operands):
        if type(operand) is Value:
            if found is not None:
                return None
            found = index
        elif operand.type.shape:
            return None
    if found is None or len(node.results) != 1:
        return None
    return found if operands[found].type.size == node.results[0].type.size else None


def elementwise_operand(node: Node | None) -> Operand | None:
    """Return the operand of an elementwise node on one value and scalars; None for other nodes."""
    if node is None or node.op.name not in ELEMENTWISE:
        return None
    index = only_operand(node)
    return None if index is None else node.operands[index]


def apply_chain(chain: Iterable[Node], value: Operand, builder: Builder) -> Operand:
    """Add the nodes of a chain, the first of them applied to `value`; return the last result."""
    for node in chain:
        operands = [value if type(each) is Value else each for each in node.operands]
        type_ = value.type._replace(dtype=node.results[0].type.dtype)
        value = add_resized(node, operands, type_, builder)
    return value


def add_resized(node: Node, operands: Sequence[Operand], type: Type, builder: Builder) -> Operand:
    """Add a node's operation on operands of another shape; return the result, of type `type`.

    A sharding that the node states is left out, since it fits the old shape alone.
    """
    stated = {} if node.params.get("sharding") is None else {"sharding": None}
    return builder.again(node, operands, [type], **stated)[0]
