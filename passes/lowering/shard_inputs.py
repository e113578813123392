"""Give per-replica inputs and outputs the shape of their shard.

As an input or output of a step, a per-replica value is one array: the replicas' values concatenated
along dimension 0, with each replica's value on its own device. A scalar has no dimension 0: the R
scalars are an array of shape [R], of which each device has a shard of shape [1]. This pass gives
the graph's inputs and outputs that shape.

Before:  (%x: f32[] per_replica) { return per_replica %x }
After:   (%x: f32[1] per_replica) { %0 = reshape(%x) {shape=()}  %1 = reshape(%0) ..  return %1 }
"""

from __future__ import annotations

from graphdist.ir.boundary import input_layouts, output_layouts
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Operand, Value
from graphdist.ir.op_parameters import Reshaping
from graphdist.ir.ops import RESHAPE
from graphdist.ir.rewrite import substitute
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED

NAME = "shard_inputs"


def shard_inputs(graph: Graph) -> Graph:
    """Return the graph with no rank-0 per-replica value at its boundary."""
    builder = Builder(NAME)
    environment: dict[Operand, Operand] = {}
    inputs = []
    for value, layout in zip(graph.inputs, input_layouts(graph), strict=True):
        if layout is MIRRORED or value.type.shape:
            inputs.append(value)
            continue
        shard = Value(value.type.shaped((1,)), value.hint)
        (environment[value],) = builder.add(RESHAPE, (shard,), Reshaping(()), at=UNKNOWN)
        inputs.append(shard)
    if not environment:
        builder.nodes.extend(graph.nodes)
    else:
        for node in graph.nodes:
            operands = substitute(environment, node.operands)
            results = builder.keep(node, operands, node.graphs)
            if results is not node.results:
                environment.update(zip(node.results, results, strict=True))
    outputs = []
    before = len(builder.nodes)
    layouts = output_layouts(graph)
    for output, layout in zip(substitute(environment, graph.outputs), layouts, strict=True):
        if layout is not MIRRORED and not output.type.shape:
            (output,) = builder.add(RESHAPE, (output,), Reshaping((1,)), at=UNKNOWN)
        outputs.append(output)
    if not environment and len(builder.nodes) == before:
        return graph
    return graph.replace(inputs=tuple(inputs), nodes=tuple(builder.nodes), outputs=tuple(outputs))
