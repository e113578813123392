"""Re-gather variables before a later use, if keeping all of them would take too much memory.

A parameter of a layer is used in the forward pass and again in the backward pass. If all gathered
parameters were kept in between, all would be in memory at the end of the forward pass. This pass
keeps gathered parameters up to `most_bytes` in total, and re-gathers other parameters before their
next use. Where gathered parameters would take more memory, the pass drops those whose next use is
the latest, as in Belady (1966, "A study of replacement algorithms for a virtual-storage computer").
So the parameters of the first layers are re-gathered, and those of the last layers, with which the
backward pass begins, are kept. Re-gathering a value sends as many bytes as dropping it frees, so
all values cost the same per byte.

Before:  %all = all_gather(%w)  %h = dot(%x, %all)  ..  %d = ..  %g = dot(%d, %all)
After:   %all = all_gather(%w)  %h = dot(%x, %all)  ..  %d = ..
         %w1, %d1 = barrier(%w, %d)  %again = all_gather(%w1)  %g = dot(%d1, %again)

The barrier keeps the compiler from merging the two gathers, and from running the second before %d,
the last computed value that is still used. Left alone: graphs nested in loops and branches; gathers
of values that the step computes; and uses before which no computed value is still used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, BARRIER
from graphdist.ir.rewrite import Copier
from graphdist.passes.layouts.elementwise_chains import elementwise_operand

NAME = "limit_gathered"


@dataclass(frozen=True, slots=True)
class _Gap:
    """A gathered value and two nodes that use it, by position, with no use between them."""

    value: Value
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LimitGathered:
    """The pass; gathered values may take `most_bytes` at once."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with values re-gathered where they would take too much memory."""
        gathers = _gathers(graph)
        if sum(value.type.bytes for value in gathers) <= self.most_bytes:
            return graph
        given_up = self._given_up(_uses(graph, gathers), len(graph.nodes))
        return _gathered_again(graph, gathers, given_up) if given_up else graph

    def _given_up(self, uses: Mapping[Value, Sequence[int]], length: int) -> list[_Gap]:
        """Return the gaps in which values are dropped, so that no node holds too many bytes."""
        held = [0] * length
        gaps: list[_Gap] = []
        for value, places in uses.items():
            for place in range(places[0], places[-1] + 1):
                held[place] += value.type.bytes
            gaps += [_Gap(value, *ends) for ends in pairwise(places) if ends[1] - ends[0] > 1]
        given_up: list[_Gap] = []
        for place in sorted(range(length), key=held.__getitem__, reverse=True):
            idle = [gap for gap in gaps if gap.begin < place < gap.end]
            while held[place] > self.most_bytes and idle:
                gap = max(idle, key=lambda gap: (gap.end, gap.value.type.bytes))
                idle.remove(gap)
                gaps.remove(gap)
                given_up.append(gap)
                for between in range(gap.begin + 1, gap.end):
                    held[between] -= gap.value.type.bytes
        return given_up


def _gathers(graph: Graph) -> dict[Value, Node]:
    """Return the nodes that gather a variable, converted or not, by the gathered value."""
    shards: set[Operand] = set(graph.inputs[: len(graph.variables)])
    found: dict[Value, Node] = {}
    for node in graph.nodes:
        if node.op is ALL_GATHER and node.operands[0] in shards:
            found[node.results[0]] = node
        elif elementwise_operand(node) in shards:
            shards.add(node.results[0])
    return found


def _uses(graph: Graph, gathers: Mapping[Value, Node]) -> dict[Value, list[int]]:
    """Return the positions of the uses of each gathered value that the graph does not return."""
    uses: dict[Value, list[int]] = defaultdict(list)
    for place, node in enumerate(graph.nodes):
        for operand in dict.fromkeys(node.operands):
            if type(operand) is Value and operand in gathers:
                uses[operand].append(place)
    return {value: places for value, places in uses.items() if value not in graph.outputs}


def _gathered_again(graph: Graph, gathers: Mapping[Value, Node], given_up: Sequence[_Gap]) -> Graph:
    """Return the graph in which the value of each gap is gathered again at the end of the gap."""
    ending: dict[int, list[_Gap]] = defaultdict(list)
    for gap in given_up:
        ending[gap.end].append(gap)
    last_use = {
        operand: place for place, node in enumerate(graph.nodes) for operand in node.operands
    }
    latest: list[Value] = []
    """The values that nodes have computed so far, the latest last."""
    copier = Copier(NAME)
    for place, node in enumerate(graph.nodes):
        for gap in ending.get(place, ()):
            before = next((v for v in reversed(latest) if last_use.get(v, -1) >= place), None)
            if before is not None:
                gather = gathers[gap.value]
                operands = copier.now((*gather.operands, before))
                shard, after = copier.add(BARRIER, operands, at=node.source)
                copier.put((before,), (after,))
                copier.put(gather.results, copier.again(gather, (shard,)))
        copier.copy(node)
        if node.op not in (ALL_GATHER, BARRIER):
            latest += node.results
    return copier.changed(graph)
