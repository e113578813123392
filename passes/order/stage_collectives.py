"""Scatter and gather in stages over groups of replicas, where the compiler would all_reduce.

The TPU compiler makes a reduce_scatter over all chips of a slice of 16 or more an all_reduce and a
slice of it. Of an all_gather over 64 or more it makes an all_reduce of mostly zeros, up to 16 MiB
where chips are linked in two dimensions, of any size where they are in three: twice the bytes, and
room for the zeros. Over groups of them it does not, but for small reduce_scatters of several
variables, which it joins in one all_reduce (libtpu 0.0.42, compiled for all TPUs from v4 on).
So replicas are numbered (a, b), a the larger digit. To scatter, replicas with the same b scatter
the a-th parts; then replicas with the same a scatter the b-th parts of these. Replica (a, b) ends
with the part that one stage gives it. To gather, the same backwards. As many bytes are sent as in
one stage.

Before:  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16}
After:   %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, stages=(4, 4)}

Where groups of replicas hold all shards each, replicas are numbered within their group.

Left alone: large all_gathers in two dimensions, which the compiler does as such, over all links at
once; and what all replicas do together over several slices of TPUs, where the compiler crosses the
network with what a slice has reduced, and stages would cross it with all values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from graphdist.ir.analyses import operations
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operands
from graphdist.ir.op_parameters import Gathering, ReduceScattering
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER
from graphdist.ir.rewrite import Answer, rewrite

NAME = "stage_collectives"

_SCATTER_FROM, _GATHER_FROM = 16, 64
"""From this many replicas on, the compiler makes these collectives all_reduces."""
_GATHER_UP_TO = 2**24
"""The largest gathered value, in bytes, for which it does so with links in two dimensions."""


def stages_of(num_replicas: int) -> tuple[int, ...]:
    """Return the group sizes of two stages, as nearly equal as possible; () for a prime.

    >>> stages_of(256), stages_of(6144), stages_of(17)
    ((16, 16), (64, 96), ())
    """
    divides = [size for size in range(2, isqrt(num_replicas) + 1) if num_replicas % size == 0]
    return (divides[-1], num_replicas // divides[-1]) if divides else ()


@dataclass(frozen=True, slots=True)
class StageCollectives:
    """The pass for `num_slices` TPU slices, whose chips are linked in two or three dimensions."""

    num_slices: int = 1
    is_three_dimensional: bool = False

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with stages for the collectives that would become all_reduces."""
        staged = {REDUCE_SCATTER.name, ALL_GATHER.name} & operations(graph)
        return rewrite(graph, self._rule, NAME, staged) if staged else graph

    def _rule(self, node: Node, operands: Operands, builder: Builder) -> Answer:
        params = node.params
        assert isinstance(params, Gathering | ReduceScattering)
        crosses_network = self.num_slices > 1 and params.num_groups == 1
        if params.stages or crosses_network or not self._is_reduced(node, params.group_size):
            return None
        stages = stages_of(params.group_size)
        if not stages:
            return None
        return builder.again(node, operands, stages=stages)

    def _is_reduced(self, node: Node, group_size: int) -> bool:
        """Return whether the compiler would make the collective an all_reduce."""
        if node.op is REDUCE_SCATTER:
            return group_size >= _SCATTER_FROM
        is_small = node.results[0].type.bytes <= _GATHER_UP_TO
        return group_size >= _GATHER_FROM and (is_small or self.is_three_dimensional)
