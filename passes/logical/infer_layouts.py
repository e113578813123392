"""Give every value a layout; raise an error for per-replica values where one value is needed.

Nodes are visited in order: the type rule of each operation gives the layout of its result, from
the layouts of its operands (`graphdist.ir.ops`). Only the bodies of loops are visited more than
once. A carry starts with the layout of its initial value. This layout is joined with the layout
that the body returns for the carry, until nothing changes. The lattice has two levels, so there is
at most one more visit for each carry that changes.

Before:  %c = scan(%x) {..} : f32[4]             After:  %c = scan(%x) {..} : f32[4] per_replica

Replicas run the same program, so some values must be one value for all replicas. If a branch or
loop has a per-replica predicate, replicas may run different branches or numbers of iterations. A
collective inside would wait for replicas that never reach it, and a mirrored variable would be
written on some replicas only. Both raise an error, and so does:

* a per-replica value assigned to a mirrored variable that does not say how to aggregate it;
* a per-replica value given to `run` as one value, or returned from cross-replica code as one value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from graphdist.ir.analyses import producer_of
from graphdist.ir.builder import Builder
from graphdist.ir.divergence import cause
from graphdist.ir.errors import DistributionError
from graphdist.ir.flow import choice_of, diverges
from graphdist.ir.graph import Graph, Node, Operand, Operands, Types, Value
from graphdist.ir.loops import scan_parts, type_of_slice, while_parts
from graphdist.ir.ops import AGGREGATE, ASSIGN, COND, SCAN, TO_REPLICAS, WHILE, variable_named_by
from graphdist.ir.printer import print_graph, print_node
from graphdist.ir.rewrite import Answer, Copier, rewrite
from graphdist.ir.types import MIRRORED, Layout, Type, join

NAME = "infer_layouts"


def infer_layouts(graph: Graph) -> Graph:
    """Return the graph with a layout on every value; raises `DistributionError`."""
    inferred = rewrite(graph, _infer_node, NAME, {COND.name, SCAN.name, WHILE.name})
    if graph.num_replicas > 1:
        _refuse_per_replica_values(inferred)
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


def _refuse_per_replica_values(graph: Graph) -> None:
    """Raise `DistributionError` at the first use of a per-replica value as one value."""
    pending: list[tuple[Graph, Node | None]] = [(graph, None)]
    while pending:
        current, divergent = pending.pop()
        for node in current.nodes:
            if divergent is not None:
                _check_divergent(graph, node, divergent)
            if node.op is ASSIGN:
                _check_assign(graph, current, node)
            elif node.op is TO_REPLICAS and not _is_mirrored(node.operands[0]):
                what = "a per-replica value is passed to run as one value"
                raise _refuse(graph, node, what, node.operands[0], _IN_CROSS_REPLICA)
            if node.graphs:
                inner = divergent or (node if diverges(node) else None)
                pending.extend((nested, inner) for nested in node.graphs)
    user_outputs = graph.outputs[len(graph.assigned) if graph.is_placed else 0 :]
    for output, per_replica in zip(user_outputs, graph.returns_per_replica, strict=True):
        if not per_replica and not _is_mirrored(output):
            what = "a per-replica value is returned from cross-replica code as one value"
            raise _refuse(graph, producer_of(output, graph), what, output, _IN_CROSS_REPLICA)


def _is_mirrored(operand: Operand) -> bool:
    return operand.type.layout is MIRRORED


def _check_divergent(graph: Graph, node: Node, divergent: Node) -> None:
    is_assign = node.op is ASSIGN and variable_named_by(node).type.layout is MIRRORED
    if not node.op.is_collective and not is_assign:
        return
    kind, others = ("branch", "do not take it") if divergent.op is COND else ("loop", "leave first")
    what, why, hint = (
        f"{node.op.name} stands",
        f"replicas that {others} would be waited for without end",
        f"move the {node.op.name} out of the {kind}",
    )
    if is_assign:
        what = f"variable {variable_named_by(node).name!r} is assigned"
        why = "it would be written on some replicas only"
        hint = f"let the {kind} return the value, and assign it after the {kind}"
    what = f"{what} in a {kind} whose predicate differs between replicas"
    hint = f"make the predicate the same on all replicas (all_reduce it), or {hint}"
    choice = choice_of(divergent)
    assert choice is not None
    error = _refuse(graph, node, what, choice, hint, f": {why}")
    error.other = divergent.source
    raise error


_IN_CROSS_REPLICA = (
    "make one value of what run returned: strategy.reduce(reduce_op, value, axis=None), "
    "or strategy.gather(value, axis)"
)
_IN_REPLICA = (
    "combine it first: gd.get_replica_context().all_reduce('MEAN', value), or make the variable "
    "with aggregation=gd.VariableAggregation.MEAN"
)
_OF_GRADIENT = (
    "pass the value that the gradient is taken of to the replica function through the args of run "
    "instead of closing over it: its gradient is then summed over the replicas"
)


def _check_assign(graph: Graph, current: Graph, node: Node) -> None:
    variable = variable_named_by(node)
    if variable.type.layout is not MIRRORED or _is_mirrored(node.operands[0]):
        return
    why, hint = " in cross-replica context", _IN_CROSS_REPLICA
    if _is_in_replica_context(current, node):
        why, hint = f", whose aggregation is {variable.aggregation.upper()}", _IN_REPLICA
    what = f"a per-replica value is assigned to the mirrored variable {variable.name!r}{why}"
    raise _refuse(graph, node, what, node.operands[0], hint)


def _is_in_replica_context(graph: Graph, assign: Node) -> bool:
    """Return whether an assignment comes from a replica function.

    `assign_add` aggregates the addend in replica context and writes the sum as one value, so there
    may be up to three nodes from the `aggregate` node to the assignment.
    """
    operands = list(assign.operands)
    for _ in range(3):
        nodes = [made for operand in operands if (made := producer_of(operand, graph))]
        if any(node.op is AGGREGATE and AGGREGATE.of(node).context == "replica" for node in nodes):
            return True
        operands = [operand for node in nodes for operand in node.operands]
    return False


def _refuse(
    graph: Graph, node: Node | None, what: str, operand: Operand, hint: str, why: str = ""
) -> DistributionError:
    """Return the error; `node` uses the per-replica operand as one value, or makes it."""
    found = cause(graph, operand)
    if hint is _IN_CROSS_REPLICA and any("transpose(" in node.source.scope for node in found.nodes):
        hint = _OF_GRADIENT
    because = f" (it depends on {found.text})" if found.text else ""
    text = print_node(node, graph) if node else print_graph(graph).splitlines()[-2].strip()
    return DistributionError(
        f"{what}{because}{why}",
        source=node.source if node else None,
        node=text,
        where=f"in graph {graph.name!r}, pass 'infer_layouts'",
        hint=hint,
    )
