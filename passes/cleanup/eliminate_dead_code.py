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

from collections.abc import Sequence
from dataclasses import dataclass

from graphdist.ir.analyses import has_effect
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.loops import returned_parts
from graphdist.ir.ops import COND, SCAN
from graphdist.ir.rewrite import Copier

__all__ = ["eliminate_dead_code"]

NAME = "eliminate_dead_code"


@dataclass(frozen=True, slots=True)
class _Narrowed:
    """The new nested graphs of a node, and the positions of the results that stay."""

    graphs: tuple[Graph, ...]
    kept: tuple[int, ...]


def eliminate_dead_code(graph: Graph) -> Graph:
    """Return the graph without nodes that no output and no effect needs."""
    live = {output for output in graph.outputs if isinstance(output, Value)}
    nodes: list[Node] = []  # from the last to the first
    narrowed: dict[Node, _Narrowed] = {}
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.results) and not has_effect(node):
            continue
        nodes.append(node)
        for operand in node.operands:
            if type(operand) is Value:
                live.add(operand)
        if node.graphs:
            less = _narrow(node, live)
            if less.graphs != node.graphs:
                narrowed[node] = less
    nodes.reverse()
    if narrowed:
        return _rebuild(graph, nodes, narrowed)
    return graph if len(nodes) == len(graph.nodes) else graph.replace(nodes=tuple(nodes))


def _narrow(node: Node, live: set[Value]) -> _Narrowed:
    """Remove dead nodes from the nested graphs, and dead results where the operation allows it."""
    # The next iteration of a loop reads every carry, whether the results are used or not.
    dropped: Sequence[Value] = node.results if node.op is COND else ()
    if node.op is SCAN:
        dropped = returned_parts(SCAN.of(node), node.results)[1]
    kept = tuple(
        position
        for position, result in enumerate(node.results)
        if result not in dropped or result in live
    )
    graphs = node.graphs
    if len(kept) < len(node.results):
        graphs = tuple(
            graph.replace(outputs=tuple(graph.outputs[position] for position in kept))
            for graph in graphs
        )
    return _Narrowed(tuple(map(eliminate_dead_code, graphs)), kept)


def _rebuild(graph: Graph, nodes: list[Node], narrowed: dict[Node, _Narrowed]) -> Graph:
    """Return the graph with these nodes, some of which have fewer results."""
    copier = Copier(NAME)
    for node in nodes:
        less = narrowed.get(node)
        if less is not None and len(less.kept) < len(node.results):
            old = [node.results[position] for position in less.kept]
            operands = copier.now(node.operands)
            copier.put(old, copier.add(node.op, operands, node.params, less.graphs, at=node.source))
        else:
            copier.copy(node, None if less is None else less.graphs)
    return copier.changed(graph)
