"""Scatter and gather in stages over groups of replicas, where the compiler would all_reduce.

The TPU compiler makes a reduce_scatter over all chips of a slice of 16 or more an all_reduce and a
slice of it, and an all_gather of up to 16 MiB over 64 or more an all_reduce of mostly zeros: twice
the bytes. Over groups of them it does not, but for small reduce_scatters of several variables,
which it joins in one all_reduce (libtpu 0.0.42, compiled for v5e, v6e and v5p of up to 512 chips).
So replicas are numbered (a, b), a the larger digit. To scatter, replicas with the same b scatter
the a-th parts; then replicas with the same a scatter the b-th parts of these. Replica (a, b) ends
with the part that one stage gives it. To gather, the same backwards. As many bytes are sent as in
one stage.

Before:  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16}
After:   %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, stages=(4, 4)}

Left alone: collectives of groups of replicas already; larger all_gathers, which the compiler does
as such on v5e and v6e (not on v5p), over all links at once; and several slices, where the compiler
crosses the network with what a slice has reduced, and stages would cross it with all values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

from graphdist.ir.analyses import operations
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER, is_over_all
from graphdist.ir.rewrite import rewrite

NAME = "stage_collectives"

_SCATTER_FROM, _GATHER_FROM = 16, 64
"""From this many replicas on, the compiler makes all_reduces of them."""
_GATHER_UP_TO = 2**24
"""The largest gathered value, in bytes, for which it does."""


def stages_of(num_replicas: int) -> tuple[int, ...]:
    """Return the sizes of the groups of two stages, as alike as they can be; () for a prime.

    >>> stages_of(256), stages_of(6144), stages_of(17)
    ((16, 16), (64, 96), ())
    """
    divides = [size for size in range(2, isqrt(num_replicas) + 1) if num_replicas % size == 0]
    return (divides[-1], num_replicas // divides[-1]) if divides else ()


@dataclass(frozen=True, slots=True)
class StageCollectives:
    """The pass for one target, which is staged or not."""

    is_staged: bool

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with its reduce_scatters and small all_gathers in stages."""
        staged = {REDUCE_SCATTER.name, ALL_GATHER.name} & operations(graph)
        if not self.is_staged or not staged:
            return graph
        stages = stages_of(graph.num_replicas)

        def rule(
            node: Node, operands: tuple[Operand, ...], builder: Builder
        ) -> Sequence[Operand] | None:
            is_staged = "stages" in node.params or not is_over_all(node)
            if is_staged or not _is_reduced(node, graph.num_replicas):
                return None
            params = {**node.params, "stages": stages}
            hint = node.results[0].hint
            return builder.add(node.op, operands, params, at=node.source, hint=hint)

        return rewrite(graph, rule, NAME, staged) if stages else graph


def _is_reduced(node: Node, num_replicas: int) -> bool:
    """Whether the compiler would make it an all_reduce."""
    if node.op is REDUCE_SCATTER:
        return num_replicas >= _SCATTER_FROM
    return num_replicas >= _GATHER_FROM and node.results[0].type.bytes <= _GATHER_UP_TO
