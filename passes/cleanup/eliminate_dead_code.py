"""Remove nodes that neither an output nor an effect needs, also in nested graphs.

A node stays if one of its results is used, or if it or a node nested in it has an effect. In a
logical graph an assignment is an effect. A `cond` no longer returns a result that nothing uses, and
a `scan` no longer stacks such a result. So the nested nodes that compute the result are removed,
too. The nodes are visited once, from the last to the first, so that each node is visited after all
its users.

Before:  %a = jax.sin(%x)   %b = jax.cos(%x)   return %b
After:   %b = jax.cos(%x)   return %b

Left alone: carries of loops, operands that nested graphs do not use, inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from graphdist.ir.analyses import has_effect
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.loops import returned_parts
from graphdist.ir.ops import COND, SCAN
from graphdist.ir.rewrite import Copier

NAME = "eliminate_dead_code"

Narrowed: TypeAlias = tuple[tuple[Graph, ...], tuple[Value, ...]]
"""The new nested graphs of a node, and the results that stay."""


def eliminate_dead_code(graph: Graph) -> Graph:
    """Return the graph without nodes that no output and no effect needs."""
    live = {output for output in graph.outputs if isinstance(output, Value)}
    nodes: list[Node] = []  # from the last to the first
    narrowed: dict[Node, Narrowed] = {}
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.results) and not has_effect(node):
            continue
        nodes.append(node)
        for operand in node.operands:
            if type(operand) is Value:
                live.add(operand)
        if node.graphs:
            less = _narrow(node, live)
            if less[0] != node.graphs:
                narrowed[node] = less
    nodes.reverse()
    if narrowed:
        return _rebuild(graph, nodes, narrowed)
    return graph if len(nodes) == len(graph.nodes) else graph.replace(nodes=tuple(nodes))


def _narrow(node: Node, live: set[Value]) -> Narrowed:
    """Remove dead nodes from the nested graphs, and dead results where the operation allows it."""
    # The next iteration of a loop reads every carry, whether the results are used or not.
    dropped: Sequence[Value] = node.results if node.op is COND else ()
    if node.op is SCAN:
        dropped = returned_parts(SCAN.of(node), node.results)[1]
    dead = {result for result in dropped if result not in live}
    graphs = node.graphs
    if dead:
        graphs = tuple(
            graph.replace(
                outputs=tuple(
                    output
                    for output, result in zip(graph.outputs, node.results, strict=True)
                    if result not in dead
                )
            )
            for graph in graphs
        )
    kept = tuple(result for result in node.results if result not in dead)
    return tuple(map(eliminate_dead_code, graphs)), kept


def _rebuild(graph: Graph, nodes: Sequence[Node], narrowed: Mapping[Node, Narrowed]) -> Graph:
    """Return the graph with these nodes, some of which have fewer results."""
    copier = Copier(NAME)
    for node in nodes:
        graphs, kept = narrowed.get(node, (None, node.results))
        if graphs is None or len(kept) == len(node.results):
            copier.copy(node, graphs)
        else:
            operands = copier.now(node.operands)
            copier.put(kept, copier.add(node.op, operands, node.params, graphs, at=node.source))
    return copier.changed(graph)
