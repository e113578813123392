"""How the inputs and outputs of a placed graph are laid out over the replicas.

A variable is laid out as it was declared, whatever is known of the value assigned to it. Everything
else is laid out as its own type says: a value the user gets as one a replica but that is provably
mirrored is kept once.
"""

from __future__ import annotations

from graphdist.ir.graph import Graph
from graphdist.ir.types import MIRRORED, Layout


def input_layouts(graph: Graph) -> tuple[Layout | None, ...]:
    """Return the layout of every input, the variables' first."""
    return tuple(_of(graph, value.type.layout) for value in graph.inputs)


def output_layouts(graph: Graph) -> tuple[Layout | None, ...]:
    """Return the layout of every output, the assigned variables' first."""
    held = [variable.held(graph.num_replicas) for variable in graph.assigned]
    declared = tuple(_of(graph, type.layout) for type in held)
    rest = graph.outputs[len(declared) :]
    return (*declared, *(_of(graph, output.type.layout) for output in rest))


def _of(graph: Graph, layout: Layout | None) -> Layout | None:
    """Return the layout; over one replica there is nothing to lay out."""
    return MIRRORED if graph.num_replicas == 1 else layout
