"""Run the loops of a graph one after the other, in the order of the program.

A device runs one loop at a time. Compilers choose the next loop by the computation that it overlaps
with, and consider memory only if memory does not suffice. For example, the loop that computes the
loss may run last, because the loss is only printed. Then a gathered parameter that this loop shares
with the backward loop stays in memory until the end. Or all gradients may be computed before the
first is scattered, and stay in memory until then. To prevent this, each loop starts when the
previous loop in the program has ended.

Before:  %a = scan(%x) ..               %b = scan(%y) ..
After:   %a = scan(%x) ..  %a1, %y1 = barrier(%a, %y)  %b = scan(%y1) ..

How it works. If a loop does not depend on the previous loop, the smallest used result of the
previous loop and the last computed operand of this loop pass through a barrier. No value changes.

Left alone: `while` loops, and loops whose only used results are carries that the body does not
change.
"""

from __future__ import annotations

from itertools import pairwise

from graphdist.ir.analyses import operations, producer_of, use_counts, values_behind
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.loops import Scan
from graphdist.ir.ops import BARRIER, SCAN
from graphdist.ir.rewrite import Copier, map_nested

NAME = "order_loops"


def order_loops(graph: Graph) -> Graph:
    """Return the graph with a barrier between loops that do not depend on each other."""
    if SCAN.name not in operations(graph):
        return graph
    graph = map_nested(graph, order_loops)
    joined = _joined(graph)
    if not joined:
        return graph
    copier = Copier(NAME)
    for node in graph.nodes:
        if node in joined:
            passed = copier.add(BARRIER, copier.now(joined[node]), at=node.source)
            copier.put(joined[node], passed)
        copier.copy(node)
    return copier.changed(graph)


def _joined(graph: Graph) -> dict[Node, tuple[Value, Value]]:
    """Return the two values that pass the barrier before each loop.

    One value is a result of the previous loop, the other an operand of the loop itself.
    """
    loops = [node for node in graph.nodes if node.op is SCAN]
    place = {value: number for number, value in enumerate(graph.inputs)}
    for number, node in enumerate(graph.nodes, len(place)):
        place.update(dict.fromkeys(node.results, number))
    found = {}
    for first, second in pairwise(loops):
        results, operands = _computed(first, graph), _waiting(second, graph)
        behind = values_behind(graph, second.operands)
        if results and operands and behind.isdisjoint(first.results):
            result = min(results, key=lambda value: value.type.bytes)
            found[second] = (result, max(operands, key=place.__getitem__))
    return found


def _computed(loop: Node, graph: Graph) -> list[Value]:
    """Return the used results of a loop, without carries that the body does not change."""
    counts = use_counts(graph)
    passed_on = {carry.last for carry in Scan(loop).carries if carry.following is carry.value}
    return [result for result in loop.results if counts[result] and result not in passed_on]


def _waiting(loop: Node, graph: Graph) -> list[Value]:
    """Return the operands of a loop without constants, which a barrier would store in memory."""
    return [
        operand
        for operand in loop.operands
        if type(operand) is Value
        and (
            (made := producer_of(operand, graph)) is None
            or any(type(each) is Value for each in made.operands)
        )
    ]
