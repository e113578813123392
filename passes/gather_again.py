"""Gather a value again where it is computed on again, in place of keeping it.

`jax.checkpoint` computes values again on the way back, behind a barrier that keeps XLA from merging
the two computations. A parameter that stands on both sides of the barrier in full would be in
memory all the time between. So the slices pass the barrier, and are gathered behind it: the
parameter is sent twice, and held only while it is used.

Before:  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4]
         %x1, %w1 = jax.optimization_barrier(%x, %all)
After:   %x1, %0 = jax.optimization_barrier(%x, %w)
         %w1 = all_gather(%0) {axis=0, group_size=2} : f32[8,4]
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import ALL_GATHER
from graphdist.ir.rewrite import Rewriter, rewrite

NAME = "gather_again"
_BARRIER = "jax.optimization_barrier"


def gather_again(graph: Graph) -> Graph:
    """Return the graph with gathered values gathered again behind barriers."""
    return rewrite(graph, _behind, NAME, {_BARRIER})


def _behind(
    barrier: Node, operands: tuple[Operand, ...], rewriter: Rewriter
) -> Sequence[Operand] | None:
    gathers = [rewriter.definition(operand, ALL_GATHER.name) for operand in operands]
    if not any(gathers):
        return None
    passing = [
        operand if gather is None else gather.operands[0]
        for operand, gather in zip(operands, gathers, strict=True)
    ]
    types = [operand.type for operand in passing]
    passed = rewriter.add(barrier.op, passing, barrier.params, at=barrier.source, types=types)
    return [
        value
        if gather is None
        else rewriter.add(
            ALL_GATHER, (value,), gather.params, at=gather.source, hint=gather.results[0].hint
        )[0]
        for value, gather in zip(passed, gathers, strict=True)
    ]
