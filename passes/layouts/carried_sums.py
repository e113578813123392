"""Sums that a loop carries, such as the gradients of microbatches: their terms and their start."""

from __future__ import annotations

from graphdist.ir.analyses import has_zeros, producer_of, use_counts
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.loops import Carry
from graphdist.ir.operation_table import ADDITIONS
from graphdist.ir.ops import TO_PARTIAL
from graphdist.ir.types import MIRRORED


def addition_to(carry: Carry, body: Graph) -> Node | None:
    """Return the node that adds to a carry; None if the body does anything else with the carry."""
    value, node = carry.value, producer_of(carry.following, body)
    if node is None or node.op.name not in ADDITIONS or value not in node.operands:
        return None
    term = 1 - node.operands.index(value)
    is_subtracted = node.op.name == "jax.sub" and term == 0
    counts = use_counts(body)
    if is_subtracted or counts[value] != 1 or counts[node.results[0]] != 1:
        return None
    return node if node.operands[term].type.shape == value.type.shape else None


def mirrored_start(carry: Carry, reduction: Node, graph: Graph) -> Operand | None:
    """Return the carry's initial value after the reduction; None if that needs a collective."""
    start = carry.first
    made = producer_of(start, graph)
    if made is not None and made.op is TO_PARTIAL:
        (start,) = made.operands
    elif reduction.params["reducer"] == "sum" and not has_zeros(start, graph):
        return None
    return start if start.type.layout is MIRRORED else None
