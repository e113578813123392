"""The linear operations between a reduction and the place where its result is added up.

A chain is a list of linear operations, the last one first. With each operation goes the place of
the operand that the next operation in the list made. The passes that look for a chain say which
operations they take as linear, and which values they may follow back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import ALL_REDUCE, is_over_all

__all__ = ["Chain", "is_linear_reduction", "keeps_dtype", "linear_in", "reduction_behind"]

Chain: TypeAlias = list[tuple[Node, int]]


def is_linear_reduction(node: Node) -> bool:
    """Return whether a node is an all_reduce by sum or mean."""
    return node.op is ALL_REDUCE and is_over_all(node) and node.params["reducer"] in ("sum", "mean")


def keeps_dtype(node: Node) -> bool:
    """Return whether a node converts nothing, as a multiplication does that has an `out_dtype`."""
    return all(operand.type.dtype == node.results[0].type.dtype for operand in node.operands)


def linear_in(node: Node) -> list[int]:
    """Return the operands in each of which, the others fixed, a node is linear in their dtype.

    Products and other operations that are not cheap are left where they are.
    """
    row, (result, *others) = row_of(node), node.results or (None,)
    if row is None or not row.is_cheap or result is None or others:
        return []
    alone = [alternative[0] for alternative in row.linear_in(node) if len(alternative) == 1]
    dtype = result.type.dtype
    operands = node.operands
    return [i for i in alone if type(operands[i]) is Value and operands[i].type.dtype == dtype]


def reduction_behind(
    operand: Operand,
    made_by: Callable[[Operand], Node | None],
    linear_in: Callable[[Node], Sequence[int]],
) -> tuple[Node, Chain] | None:
    """Return the reduction that an operand is made of, and the chain in between.

    `made_by` returns the node that makes an operand, None if it is not to be followed. `linear_in`
    returns the places of the operands in each of which a node is linear. There is no recursion,
    since chains may be long.
    """
    chain: Chain = []
    pending: list[tuple[Operand, int, Chain]] = [(operand, 0, [])]
    while pending:
        operand, length, step = pending.pop()
        chain[length:] = step  # after a way that leads nowhere, go back to where it began
        node = made_by(operand)
        if node is None:
            continue
        if is_linear_reduction(node):
            return node, chain
        pending.extend(
            (node.operands[place], len(chain), [(node, place)])
            for place in reversed(linear_in(node))
        )
    return None
