"""Give per-replica inputs and outputs the shape of their shard.

As an input or output of a step, a per-replica value is one array: the replicas' values concatenated
along dimension 0, with each replica's value on its own device. A scalar has no dimension 0. So the
scalars of R replicas are an array of shape [R], and each device has a shard of shape [1]. This pass
gives scalar inputs and outputs the shape [1].

Before:  (%x: f32[] per_replica) { return per_replica %x }
After:   (%x: f32[1] per_replica) { %0 = reshape(%x) {shape=()}  %1 = reshape(%0) ..  return %1 }
"""

from __future__ import annotations

from graphdist.ir.graph import Graph, Value
from graphdist.ir.op_parameters import Reshaping
from graphdist.ir.ops import RESHAPE
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED

NAME = "shard_inputs"


def shard_inputs(graph: Graph) -> Graph:
    """Return the graph with no rank-0 per-replica value at its boundary."""
    copier = Copier(NAME)
    inputs = []
    for value, layout in zip(graph.inputs, graph.input_layouts, strict=True):
        inputs.append(value)
        if layout is not MIRRORED and not value.type.shape:
            inputs[-1] = Value(value.type.shaped((1,)), value.hint)
            copier.put((value,), copier.add(RESHAPE, inputs[-1:], Reshaping(()), at=UNKNOWN))
    for node in graph.nodes:
        copier.copy(node)
    outputs = []
    for output, layout in zip(copier.now(graph.outputs), graph.output_layouts, strict=True):
        if layout is not MIRRORED and not output.type.shape:
            (output,) = copier.add(RESHAPE, (output,), Reshaping((1,)), at=UNKNOWN)
        outputs.append(output)
    if len(copier.nodes) == len(graph.nodes):
        return graph
    return graph.replace(inputs=tuple(inputs), nodes=tuple(copier.nodes), outputs=tuple(outputs))
