"""Graphs for networkx, to draw and to analyse. They are too slow to build for the compiler.

The networkx nodes are named as in the text of the graph: an input `%x`, a node after its first
result, or after its operation and index if it has no result, and the outputs `return`. Attributes
are strings and numbers, so that every format networkx writes can hold them. Nested graphs are left
out: export each of `node.graphs` by itself.
"""

from __future__ import annotations

import networkx as nx

from graphdist.ir.graph import Graph, Value
from graphdist.ir.printer import names


def to_networkx(graph: Graph) -> nx.DiGraph:
    """Return the dataflow, with an edge from the definition of each value to each of its users.

    Nodes have `op`, `types` and `bytes` of their results, `source`, `origin`, and `index`: their
    index in `graph.nodes`, -1 for inputs, and the number of nodes for `return`.

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
