"""The layouts of the inputs and outputs of a placed graph.

A variable has its declared layout, whatever is known about the value assigned to it. Any other
value has the layout of its type. So a value that the user gets as a per-replica value is stored
once if it is provably mirrored.
"""

from __future__ import annotations

from graphdist.ir.graph import Graph
from graphdist.ir.types import MIRRORED, Layout


def input_layouts(graph: Graph) -> tuple[Layout | None, ...]:
    """Return the layout of every input, the variables' first."""
    return tuple(_of(graph, value.type.layout) for value in graph.inputs)


def output_layouts(graph: Graph) -> tuple[Layout | None, ...]:
    """Return the layout of every output, the assigned variables' first."""
    held = [variable.held(graph.mesh) for variable in graph.assigned]
    declared = tuple(_of(graph, type.layout) for type in held)
    rest = graph.outputs[len(declared) :]
    return (*declared, *(_of(graph, output.type.layout) for output in rest))


def _of(graph: Graph, layout: Layout | None) -> Layout | None:
    """Return `layout`, or mirrored if the graph has one replica, where every value is mirrored."""
    return MIRRORED if graph.num_replicas == 1 else layout
