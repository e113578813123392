"""A loop over microbatches with the gathers and the reductions of weights in each iteration.

Such a loop takes weights that are gathered in front of it, and carries sums of gradients, which are
reduced behind it. A product of few rows is computed on shards of its weights
(`replicas_as_cores.py`) where both are beside it. Then neither is left, in the loop or outside.

Before:  %w = all_gather(%shard)
         %g = scan(%w, to_partial(%zero), %xs) { ..  %new = %sum + to_partial(%d) }
         %s = reduce_scatter(%g)
After:   %s = scan(%shard, own_slice(%zero), %xs) {
             %w = all_gather(%shard_in)  ..  %r = reduce_scatter(%d)  %new = %sum + %r }
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from graphdist.ir.analyses import producer_of, use_counts, users
from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Carry, Scan, ScanEdit
from graphdist.ir.op_parameters import AlongAxis
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    OWN_SLICE,
    REDUCE_SCATTER,
    SCAN,
    TO_PARTIAL,
    is_over_all,
)
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import MIRRORED, is_partial
from graphdist.passes.layouts.carried_sums import addition_to, mirrored_start


@dataclass(frozen=True, slots=True)
class _Sum:
    """A carried sum: the node that adds to it, the reduction behind the loop, and its start."""

    addition: Node
    reduction: Node
    start: Operand


@dataclass(frozen=True, slots=True)
class MicrobatchLoop:
    """A loop, with the gathers and the reductions that may move into it.

    `gathers` are by the body's input for the gathered weights, `sums` by that for the carry.
    """

    graph: Graph
    node: Node
    gathers: Mapping[Value, Node]
    sums: Mapping[Value, _Sum]

    @classmethod
    def of(cls, node: Node, graph: Graph) -> MicrobatchLoop | None:
        """Return the loop of a node of a graph; None if it takes no gathered weights."""
        if node.op is not SCAN:
            return None
        scan = Scan(node)
        gathers = {
            taken.value: made
            for taken in scan.constants
            if (made := producer_of(taken.operand, graph)) is not None
            and made.op is ALL_GATHER
            and is_over_all(made)
            and use_counts(graph)[made.results[0]] == 1
        }
        if not gathers:
            return None
        sums = {carry.value: _sum_of(carry, scan.body, graph) for carry in scan.carries}
        return cls(graph, node, gathers, {at: each for at, each in sums.items() if each})

    @property
    def body(self) -> Graph:
        """Return the body of the loop."""
        return self.node.graphs[0]

    @property
    def length(self) -> int:
        """Return the number of iterations."""
        return SCAN.of(self.node).length

    @property
    def weights(self) -> list[Value]:
        """Return the gathered weights."""
        return [gather.results[0] for gather in self.gathers.values()]

    @property
    def bytes_sent(self) -> float:
        """Return the bytes that the collectives around the loop send."""
        reductions = (each.reduction for each in self.sums.values())
        return sum(collective_of(each).bytes_sent for each in (*self.gathers.values(), *reductions))

    def reduced(self, results: Sequence[Value]) -> Mapping[Node, Value]:
        """Return which of the new loop's results each reduction behind the loop has become."""
        carries = zip(Scan(self.node).carries, results, strict=False)
        return {
            self.sums[carry.value].reduction: result
            for carry, result in carries
            if carry.value in self.sums
        }

    def without(self, moved: Mapping[Value, Node], left: Container[Node]) -> MicrobatchLoop:
        """Return the loop without what is left in a body, of the collectives that `add` moved."""
        kept = {value for value, node in moved.items() if node not in left}
        return replace(
            self,
            gathers={value: each for value, each in self.gathers.items() if value in kept},
            sums={value: each for value, each in self.sums.items() if value in kept},
        )

    def add(self, copier: Copier) -> tuple[tuple[Value, ...], Mapping[Value, Node]]:
        """Add the loop; return its results, and the collectives in it by the old body's inputs."""
        scan = Scan(self.node, copier.now(self.node.operands))
        edit, moved = ScanEdit(scan, copier.origin), dict[Value, Node]()
        for value, gather in self.gathers.items():
            shard = edit.replace(value, copier.now(gather.operands)[0])
            edit.inside.put([value], edit.inside.again(gather, (shard,)))
            moved[value] = edit.inside.nodes[-1]
        added: dict[Node, Value] = {}
        for value, each in self.sums.items():
            edit.replace(value, _start(each, copier))
            added[each.addition] = value
        for node in scan.body.nodes:
            if node not in added:
                edit.inside.copy(node)
                continue
            value = added[node]
            moved[value] = _add_reduced(node, value, self.sums[value], scan.body, edit.inside)
        return edit.finish(copier), moved


def _sum_of(carry: Carry, body: Graph, graph: Graph) -> _Sum | None:
    """Return the sum of a carry if only its reduction is used."""
    addition = addition_to(carry, body)
    if addition is None or use_counts(graph)[carry.last] != 1 or carry.last in graph.outputs:
        return None
    (reduction,) = users(graph)[carry.last]
    if reduction.op not in (ALL_REDUCE, REDUCE_SCATTER) or not is_over_all(reduction):
        return None
    if reduction.params["reducer"] not in ("sum", "mean"):
        return None
    start = mirrored_start(carry, reduction, graph)
    return None if start is None else _Sum(addition, reduction, start)


def _start(of: _Sum, copier: Copier) -> Operand:
    """Return what a reduced sum begins with."""
    (start,) = copier.now((of.start,))
    if of.reduction.op is ALL_REDUCE:
        return start
    params = REDUCE_SCATTER.of(of.reduction)
    shard = AlongAxis(params.axis, group_size=params.group_size)
    return copier.add(OWN_SLICE, (start,), shard, at=of.reduction)[0]


def _add_reduced(addition: Node, carried: Value, of: _Sum, body: Graph, copier: Copier) -> Node:
    """Add the reduction of a term, and the addition to the sum; return the reduction."""
    (term,) = (each for each in addition.operands if each is not carried)
    copier.again(of.reduction, (_of_each_replica(term, body, copier),))
    reduction = copier.nodes[-1]
    operands = [
        copier.now((carried,))[0] if each is carried else reduction.results[0]
        for each in addition.operands
    ]
    types = [reduction.results[0].type]
    copier.put(addition.results, copier.again(addition, operands, types))
    return reduction


def _of_each_replica(operand: Operand, body: Graph, copier: Copier) -> Operand:
    """Return a partial value as the term of each replica, which has the same numbers."""
    if not is_partial(operand.type.layout):
        return copier.now((operand,))[0]
    made = producer_of(operand, body)
    assert made is not None
    if made.op is TO_PARTIAL and made.operands[0].type.layout is not MIRRORED:
        return copier.now(made.operands)[0]
    if made.op is TO_PARTIAL or made.graphs:
        return copier.now((operand,))[0]
    operands = [_of_each_replica(each, body, copier) for each in made.operands]
    return copier.again(made, operands)[0]
