"""Graphs for networkx, to draw and to analyse; not for compiling, building one is slow.

The networkx nodes are named as in the text of the graph: an input `%x`, a node after its first
result, or after its operation and position if it has none, and the outputs `return`. Attributes are
strings and numbers, so that every format networkx writes can hold them. Nested graphs are left out:
export `node.graphs`.
"""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx

from graphdist.ir.analyses import producers
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.printer import names

__all__ = ["bytes_touched", "critical_path", "to_networkx"]


def to_networkx(graph: Graph) -> nx.DiGraph:
    """Return the dataflow: an edge from what computes a value to what uses it.

    Nodes have `op`, `types` and `bytes` of their results, `source`, `origin`, and `index`, which is
    the place in `graph.nodes`, -1 for inputs and the number of nodes for `return`.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> list(to_networkx(graph).edges)
    [('%x', '%y'), ('%y', 'return')]
    """
    exported = nx.DiGraph(name=graph.name)
    name_of = names(graph)
    place: dict[Value, str] = {}
    for value in graph.inputs:
        place[value] = name_of[value]
        _add(exported, name_of[value], "input", (value,), index=-1)
    for index, node in enumerate(graph.nodes):
        name = name_of[node.results[0]] if node.results else f"{node.op.name}#{index}"
        source = str(node.source) if node.source.frame else ""
        _add(exported, name, node.op.name, node.results, index, source, node.origin)
        exported.add_edges_from((place[v], name) for v in node.operands if isinstance(v, Value))
        place.update(dict.fromkeys(node.results, name))
    _add(exported, "return", "return", (), len(graph.nodes))
    exported.add_edges_from((place[v], "return") for v in graph.outputs if isinstance(v, Value))
    return exported


def _add(
    exported: nx.DiGraph,
    name: str,
    op: str,
    values: tuple[Value, ...],
    index: int,
    source: str = "",
    origin: str = "",
) -> None:
    exported.add_node(
        name,
        op=op,
        types=", ".join(str(value.type) for value in values),
        bytes=sum(value.type.bytes for value in values),
        source=source,
        origin=origin,
        index=index,
    )


def bytes_touched(node: Node) -> float:
    """Return the bytes a node reads and writes: a guess at its cost, where memory is the limit."""
    return sum(operand.type.bytes for operand in (*node.operands, *node.results))


def critical_path(graph: Graph, cost: Callable[[Node], float] = bytes_touched) -> tuple[Node, ...]:
    """Return the nodes, each using a result of the one before, that cost most together.

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   %z = jax.exp(%x) : f32[3] mirrored
    ...   %s = jax.add(%y, %y) : f32[3] mirrored
    ...   return %z, %s
    ... }''')
    >>> [node.op.name for node in critical_path(graph)]
    ['jax.neg', 'jax.add']
    """
    producer = producers(graph)
    total: dict[Node, float] = {}
    before: dict[Node, Node | None] = {}
    for node in graph.nodes:
        candidates = [producer[v] for v in node.operands if isinstance(v, Value) and v in producer]
        best = max(candidates, key=total.__getitem__, default=None)
        before[node] = best
        total[node] = cost(node) + (total[best] if best is not None else 0)
    last = max(graph.nodes, key=total.__getitem__, default=None)
    path = []
    while last is not None:
        path.append(last)
        last = before[last]
    return tuple(reversed(path))
