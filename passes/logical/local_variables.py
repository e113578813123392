"""Variables of which each replica stores its own copy, and the value that represents all copies.

`local_steps.py` stores variables of training steps in copies. In a graph that is no training step,
all replicas see one value of such a variable: the mean of the copies, or the maximum for integers
and booleans, which have no mean. This value is computed once, at the start, and stored in a *cell*,
a new variable that only this graph has. The graph reads and assigns the cell in place of the
copies. If the graph assigns the cell, its last value is written to all copies and to the anchor.
"""

from __future__ import annotations

from dataclasses import replace

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Operands, Value
from graphdist.ir.op_parameters import OfVariable, Reducing
from graphdist.ir.ops import ALL_REDUCE, ASSIGN, READ, variable_named_by
from graphdist.ir.rewrite import Answer, rewrite
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, is_inexact
from graphdist.ir.variable_storage import (
    UNSHARDED,
    AddedRole,
    Anchor,
    StoredInCopies,
    StoredUnsharded,
)

_NAME = "local_steps"


def read_as_means(graph: Graph, anchored: bool) -> Graph:
    """Return a graph that is no training step, with one value for each variable stored in copies.

    `anchored` says whether the variables have anchors.
    """
    stored = [variable for variable in graph.variables if has_hidden_copies(variable)]
    if not stored:
        return graph
    names = {variable.name for variable in graph.variables}
    local = {variable.name: as_local(variable) for variable in stored}
    cells = {}
    for variable in stored:
        name = free_name(f"{variable.name}.mean", names)
        cells[variable.name] = replace(variable, name=name, is_local=True, storage=UNSHARDED)

    def of_cells(node: Node, operands: Operands, builder: Builder) -> Answer:
        cell = cells.get(variable_named_by(node).name)
        return None if cell is None else builder.again(node, operands, variable=cell)

    inner = rewrite(graph, of_cells, _NAME, {"read", "assign", "aggregate"})
    assigned = {
        variable_named_by(node).name: node.source for node in walk(graph) if node.op is ASSIGN
    }
    before, after = Builder(_NAME), Builder(_NAME)
    anchors = {}
    for name, cell in cells.items():
        (copies,) = add_read(before, local[name], UNKNOWN)
        add_assign(before, cell, one_value(before, copies, graph.num_replicas, UNKNOWN), UNKNOWN)
        if name not in assigned:
            continue
        (value,) = add_read(after, cell, assigned[name])
        add_assign(after, local[name], value, assigned[name])
        if anchored:
            anchors[name] = added_variable(Anchor((name,)), cell.type, names)
            add_assign(after, anchors[name], value, assigned[name])
    variables = [local.get(variable.name, variable) for variable in graph.variables]
    return inner.replace(
        nodes=(*before.nodes, *inner.nodes, *after.nodes),
        variables=(*variables, *cells.values(), *anchors.values()),
    )


def as_local(variable: GraphVariable) -> GraphVariable:
    """Return the variable as a local one, with a copy on each replica."""
    type = variable.type.with_layout(PER_REPLICA)
    return replace(variable, type=type, storage=StoredInCopies())


def is_local_copy(variable: GraphVariable) -> bool:
    """Return whether the graph computes with a variable's copies, after `as_local`."""
    return variable.is_in_copies and variable.type.layout is PER_REPLICA


def has_hidden_copies(variable: GraphVariable) -> bool:
    """Return whether a variable is stored in copies but mirrored in the graph."""
    return variable.is_in_copies and variable.type.layout is MIRRORED


def added_variable(role: AddedRole, type: Type, names: set[str]) -> GraphVariable:
    """Return a variable that the pass adds, under a free name."""
    name = free_name(f"{role.serves[0]}.{str(role).replace(' ', '_')}", names)
    storage = StoredUnsharded(is_alone=True)
    type = type.with_layout(MIRRORED)
    return GraphVariable(name, type, trainable=False, storage=storage, role=role)


def free_name(name: str, names: set[str]) -> str:
    """Append underscores to `name` until it is not in `names`; add it to `names` and return it."""
    while name in names:
        name += "_"
    names.add(name)
    return name


def add_read(builder: Builder, variable: GraphVariable, at: Source) -> tuple[Value, ...]:
    """Add a node that reads a variable, and return its result."""
    return builder.add(READ, (), OfVariable(variable), at=at, hint=variable.name)


def add_assign(builder: Builder, variable: GraphVariable, value: Operand, at: Source) -> None:
    """Add a node that assigns a variable."""
    builder.add(ASSIGN, (value,), OfVariable(variable), at=at)


def one_value(builder: Builder, value: Operand, replicas: int, at: Source) -> Operand:
    """Return the mean of the replicas' values; for integers and booleans the maximum."""
    reducer = "mean" if is_inexact(value.type.dtype) else "max"
    params = Reducing(reducer, group_size=replicas)
    return builder.add(ALL_REDUCE, (value,), params, at=at)[0]
