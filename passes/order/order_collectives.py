"""Reduce a gradient as soon as it is computed: each collective directly follows its operands.

A user's program computes all gradients and then reduces them in the order of the pytree of
parameters, but the backward pass computes the gradients of the last layer first. Compilers that
overlap collectives with computation, or combine neighbours into buckets, mostly keep the program's
order, so that the first bucket would wait for the last gradient. (Li et al. 2020, "PyTorch
Distributed", section 3.2.3, fills buckets in the same order.)

Before:  %b = ..(%x)  %a = ..(%b)  %ra = all_reduce(%a)  %rb = all_reduce(%b)
After:   %b = ..(%x)  %rb = all_reduce(%b)  %a = ..(%b)  %ra = all_reduce(%a)

The nodes are visited once. All replicas order collectives alike, since they run one program. A
collective may move before operations with effects, but never before another collective that needs
the same nodes, so that the pass does not change its own result.
"""

from __future__ import annotations

from collections import defaultdict

from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.rewrite import map_nested

NAME = "order_collectives"


def order_collectives(graph: Graph) -> Graph:
    """Return the graph with every collective directly behind the last node that it needs."""
    graph = map_nested(graph, order_collectives)
    if not any(node.op.is_collective for node in graph.nodes):
        return graph
    needed = {operand for node in graph.nodes if node.op.is_collective for operand in node.operands}
    made_at: dict[Operand, int] = {}
    waiting: dict[int, list[Node]] = defaultdict(list)
    for position, node in enumerate(graph.nodes):
        place = position
        if node.op.is_collective:
            place = max((made_at.get(operand, -1) for operand in node.operands), default=-1)
            waiting[place].append(node)
        for result in node.results:
            if result in needed:
                made_at[result] = place
    nodes = list(waiting[-1])
    for position, node in enumerate(graph.nodes):
        if not node.op.is_collective:
            nodes.append(node)
        if position in waiting:
            nodes += waiting[position]
    ordered = tuple(nodes)
    return graph if ordered == graph.nodes else graph.replace(nodes=ordered)
