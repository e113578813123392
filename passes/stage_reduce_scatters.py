"""Scatter in stages over groups of replicas, where the compiler would reduce to all of them first.

The TPU compiler makes a reduce_scatter over all chips of a slice of 16 or more an all_reduce and a
slice of it: twice the bytes. Over groups of them it does not (libtpu 0.0.42, compiled for v5e, v6e
and v5p of 4x4, 16x16 and 4x4x4). So replicas are numbered (a, b), a the larger digit: in the first
stage those of one b scatter a-th parts, in the second those of one a scatter the b-th parts of
these. Replica (a, b) ends with the part it would have had, and as many bytes are sent as in one.

Before:  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16}
After:   %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, stages=(4, 4)}

Left alone: several slices, where the compiler crosses the network with what a slice has reduced and
stages would cross it with all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from graphdist.ir.analyses import operations
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import REDUCE_SCATTER
from graphdist.ir.rewrite import rewrite

NAME = "stage_reduce_scatters"

_FROM = 16
"""The number of replicas from which on the compiler reduces first."""


def stages_of(num_replicas: int) -> tuple[int, ...]:
    """Return the sizes of the groups of two stages, as alike as they can be; () for one stage.

    >>> stages_of(256), stages_of(6144), stages_of(8), stages_of(17)
    ((16, 16), (64, 96), (), ())
    """
    if num_replicas < _FROM:
        return ()
    divides = [one for one in range(2, isqrt(num_replicas) + 1) if num_replicas % one == 0]
    return (divides[-1], num_replicas // divides[-1]) if divides else ()


@dataclass(frozen=True, slots=True)
class StageReduceScatters:
    """The pass for one target, which is staged or not."""

    is_staged: bool

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with its reduce_scatters in stages."""
        stages = stages_of(graph.num_replicas) if self.is_staged else ()
        if not stages or REDUCE_SCATTER.name not in operations(graph):
            return graph

        def rule(
            node: Node, operands: tuple[Operand, ...], builder: Builder
        ) -> Sequence[Operand] | None:
            if "stages" in node.params:
                return None
            params = {**node.params, "stages": stages}
            hint = node.results[0].hint
            return builder.add(node.op, operands, params, at=node.source, hint=hint)

        return rewrite(graph, rule, NAME, {REDUCE_SCATTER.name})
