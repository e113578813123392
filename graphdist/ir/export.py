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

    def add(name: str, values: tuple[Value, ...], **attributes: str | int) -> None:
        types = ", ".join(str(value.type) for value in values)
        size = sum(value.type.bytes for value in values)
        exported.add_node(name, **attributes, types=types, bytes=size)
        place.update(dict.fromkeys(values, name))

    for value in graph.inputs:
        add(name_of[value], (value,), op="input", source="", origin="", index=-1)
    for index, node in enumerate(graph.nodes):
        op, source = node.op.name, str(node.source) if node.source.frame else ""
        name = name_of[node.results[0]] if node.results else f"{op}#{index}"
        add(name, node.results, op=op, source=source, origin=node.origin, index=index)
        exported.add_edges_from((place[v], name) for v in node.operands if isinstance(v, Value))
    add("return", (), op="return", source="", origin="", index=len(graph.nodes))
    exported.add_edges_from((place[v], "return") for v in graph.outputs if isinstance(v, Value))
    return exported
