"""What loops take apart step by step along dimension 0, and what they stack up."""

from __future__ import annotations

from typing import cast

from graphdist.ir.analyses import use_counts, users
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.ops import SCAN


def num_carry_of(scan: Node) -> int:
    """Return how many values a scan carries from step to step; its stacked results follow these."""
    return cast(int, scan.params["num_carry"])


def first_stack(scan: Node) -> int:
    """Return the place of the first operand that a scan takes apart."""
    return cast(int, scan.params["num_consts"]) + num_carry_of(scan)


def is_taken_apart_only(value: Value, graph: Graph) -> bool:
    """Return whether nothing but loops uses a value, and these take it apart."""
    loops = [node for node in users(graph).get(value, ()) if node.op is SCAN]
    taken = sum(node.operands[first_stack(node) :].count(value) for node in loops)
    return 0 < taken == use_counts(graph)[value]
