"""Scatter and gather in two stages over groups of replicas, where the compiler would all_reduce.

The TPU compiler replaces two collectives over all chips of a slice by an all_reduce, which sends
twice the bytes (libtpu 0.0.42, compiled for all TPUs from v4 on):

* a reduce_scatter over 16 or more chips becomes an all_reduce, of which each chip keeps its shard;
* an all_gather over 64 or more chips becomes an all_reduce of mostly zeros, which also need memory.
  If chips are linked in two dimensions, this happens to all_gathers of up to 16 MiB. If they are
  linked in three, it happens to all_gathers of any size.

The compiler does neither for collectives over groups of these chips, except that it joins small
reduce_scatters of several variables in one all_reduce.

So the pass divides the collective into two stages over groups. The id of a replica is written as
two digits (a, b), with a the more significant one. In the first stage of a reduce_scatter the
replicas of equal b scatter the value, and replica (a, b) gets part a. In the second stage the
replicas of equal a scatter this part, and replica (a, b) gets part b of it, which is the shard that
it gets in one stage. An all_gather runs the stages in reverse. As many bytes are sent as in one
stage.

The first stage of a reduce_scatter sends most of the bytes. The fewer groups share the links
between chips, the faster is a stage, so the first stage has as few groups as possible: two if the
number of replicas is even.

Before:  %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16}
After:   %s = reduce_scatter(%x) {reducer="sum", axis=0, group_size=16, stages=(8, 2)}

If each of several groups of replicas holds all shards, the id of a replica is its id in its group.

Left alone: all_gathers above 16 MiB where chips are linked in two dimensions, which the compiler
keeps; and collectives of all replicas over several TPU slices. For these the compiler reduces
within a slice first and sends only the result over the network. Stages would send all values.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operands
from graphdist.ir.op_parameters import Gathering, ReduceScattering
from graphdist.ir.ops import ALL_GATHER, REDUCE_SCATTER
from graphdist.ir.rewrite import Answer, rewrite

NAME = "stage_collectives"

_SCATTER_FROM, _GATHER_FROM = 16, 64
"""The smallest numbers of replicas for which the compiler replaces the collective."""
_GATHER_UP_TO = 2**24
"""The largest all_gather that the compiler replaces if links are in two dimensions, in bytes."""


def stages_of(num_replicas: int) -> tuple[int, ...]:
    """Return the group sizes of two stages, of which the second is the smallest; () for a prime.

    >>> stages_of(256), stages_of(75), stages_of(17)
    ((128, 2), (25, 3), ())
    """
    divisors = (size for size in range(2, isqrt(num_replicas) + 1) if num_replicas % size == 0)
    least = next(divisors, 0)
    return (num_replicas // least, least) if least else ()


@dataclass(frozen=True, slots=True)
class StageCollectives:
    """The pass for `num_slices` TPU slices, whose chips are linked in two or three dimensions."""

    num_slices: int = 1
    is_three_dimensional: bool = False

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with stages for the collectives that would become all_reduces."""
        return rewrite(graph, self._rule, NAME, {REDUCE_SCATTER.name, ALL_GATHER.name})

    def _rule(self, node: Node, operands: Operands, builder: Builder) -> Answer:
        params = node.params
        assert isinstance(params, Gathering | ReduceScattering)
        crosses_network = self.num_slices > 1 and params.num_groups == 1
        if params.stages or crosses_network or not self._is_reduced(node, params.group_size):
            return None
        stages = stages_of(params.group_size)
        return builder.again(node, operands, stages=stages) if stages else None

    def _is_reduced(self, node: Node, group_size: int) -> bool:
        """Return whether the compiler would make the collective an all_reduce."""
        if node.op is REDUCE_SCATTER:
            return group_size >= _SCATTER_FROM
        is_small = node.results[0].type.bytes <= _GATHER_UP_TO
        return group_size >= _GATHER_FROM and (is_small or self.is_three_dimensional)
