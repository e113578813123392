"""Give every value a layout; raise an error for per-replica values where one value is needed.

Nodes are visited in order: the type rule of each operation gives the layout of its result, from
the layouts of its operands (`graphdist.ir.ops`). Only the bodies of loops are visited more than
once. A carry starts with the layout of its initial value. This layout is joined with the layout
that the body returns for the carry, until nothing changes. The lattice has two levels, so there is
at most one more visit for each carry that changes. `refused_per_replica_values.py` raises the
errors.

Before:  %c = scan(%x) {..} : f32[4]             After:  %c = scan(%x) {..} : f32[4] per_replica
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operands, Types, Value
from graphdist.ir.loops import scan_parts, type_of_slice, while_parts
from graphdist.ir.ops import COND, SCAN, WHILE
from graphdist.ir.rewrite import Answer, Copier, rewrite
from graphdist.ir.types import Layout, Type, join
from graphdist.passes.logical.refused_per_replica_values import refuse_per_replica_values

NAME = "infer_layouts"


def infer_layouts(graph: Graph) -> Graph:
    """Return the graph with a layout on every value; raises `DistributionError`."""
    inferred = rewrite(graph, _infer_node, NAME, {COND.name, SCAN.name, WHILE.name})
    if graph.num_replicas > 1:
        refuse_per_replica_values(inferred)
    return inferred


Derive: TypeAlias = Callable[[Graph, Sequence[Layout | None]], Graph]
"""A function that returns a nested graph with given layouts of inputs; other types are derived."""


def _infer_node(node: Node, operands: Operands, builder: Builder) -> Answer:
    graphs = nested_graphs(node, [operand.type for operand in operands], _with_inputs)
    return None if graphs == node.graphs else builder.keep(node, operands, graphs)


def nested_graphs(node: Node, operands: list[Type], derive: Derive) -> tuple[Graph, ...]:
    """Return the graphs nested in a loop or a branch, derived for operands of these types."""
    if node.op is SCAN:
        constants, first, scanned = scan_parts(SCAN.of(node), operands)
        slices = list(map(type_of_slice, scanned))
        return (_fixpoint(node.graphs[0], constants, first, slices, derive),)
    if node.op is WHILE:
        of_condition, of_body, first = while_parts(WHILE.of(node), operands)
        condition, body = node.graphs
        inner = _fixpoint(body, of_body, first, (), derive)
        carried = [value.type for value in inner.inputs[len(of_body) :]]
        return derive(condition, _layouts([*of_condition, *carried])), inner
    assert node.op is COND
    return tuple(derive(branch, _layouts(operands[1:])) for branch in node.graphs)


def _fixpoint(body: Graph, constants: Types, first: Types, slices: Types, derive: Derive) -> Graph:
    """Return the body with layouts for its inputs such that each carry keeps its layout."""
    carried = _layouts(first)
    while True:
        entering = [*_layouts(constants), *carried, *_layouts(slices)]
        inferred = derive(body, entering)
        outputs = [output.type.layout for output in inferred.outputs[: len(carried)]]
        after = [a if a is b else join((a, b)) for a, b in zip(carried, outputs, strict=True)]
        if after == carried:
            return inferred
        carried = after


def _layouts(types: Types) -> list[Layout | None]:
    return [type.layout for type in types]


def _with_inputs(graph: Graph, layouts: Sequence[Layout | None]) -> Graph:
    """Return the graph with these layouts for its inputs, and all other types derived again."""
    copier = Copier(NAME)
    inputs = with_layouts(graph.inputs, layouts)
    copier.put(graph.inputs, inputs)
    for node in graph.nodes:
        if node.graphs:
            types = [operand.type for operand in copier.now(node.operands)]
            copier.copy(node, nested_graphs(node, types, _with_inputs))
        else:
            copier.copy(node)
    changed = copier.changed(graph)
    return changed if inputs == graph.inputs else changed.replace(inputs=inputs)


def with_layouts(values: Sequence[Value], layouts: Sequence[Layout | None]) -> tuple[Value, ...]:
    """Return values with these layouts. A value that has its layout already is not replaced."""
    return tuple(
        value if value.type.layout is layout else Value(value.type.with_layout(layout), value.hint)
        for value, layout in zip(values, layouts, strict=True)
    )
