"""Gather a value again where it is computed on again, in place of keeping it.

`jax.checkpoint` computes values again on the way back, behind a barrier that keeps XLA from merging
the two computations. A parameter that stands on both sides of the barrier in full would be in
memory all the time between. So the slices pass the barrier, and are gathered behind it: the
parameter is sent twice, and held only while it is used.

Before:  %all = all_gather(%w) {axis=0, group_size=2} : f32[8,4]
         %x1, %w1 = jax.optimization_barrier(%x, %all)
After:   %x1, %0 = jax.optimization_barrier(%x, %w)
         %w1 = all_gather(%0) {axis=0, group_size=2} : f32[8,4]

A gathered value that nothing else uses, as in the body of a loop on the way back, needs no barrier:
there is nothing to merge it with, and its gather may start before the other operands are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    passing: list[Operand] = []
    for operand, gather in zip(operands, gathers, strict=True):
        if gather is None:
            passing.append(operand)
        elif rewriter.uses(operand) > 1:
            passing.append(gather.operands[0])
    passed: Sequence[Operand] = ()
    if passing:
        types = [operand.type for operand in passing]
        passed = rewriter.add(barrier.op, passing, barrier.params, at=barrier.source, types=types)
    values = iter(passed)
    return [
        _result(operand, gather, values, rewriter)
        for operand, gather in zip(operands, gathers, strict=True)
    ]


def _result(
    operand: Operand, gather: Node | None, passed: Iterator[Operand], rewriter: Rewriter
) -> Operand:
    """Return what stands behind the barrier for an operand."""
    if gather is None:
        return next(passed)
    if rewriter.uses(operand) == 1:
        return operand
    hint = gather.results[0].hint
    return rewriter.add(ALL_GATHER, (next(passed),), gather.params, at=gather.source, hint=hint)[0]
