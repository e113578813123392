"""The invariants of graphs: what every pass may rely on, and must keep.

Each check raises `VerifyError` at the first node that breaks an invariant. `docs/ir.md` lists the
invariants, with their reasons and the stages at which they hold.

The checks run after every pass, so they are fast for correct graphs: one loop goes over all values
and nodes. With `full`, every type is derived again, too.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import NoReturn

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError, VerifyError
from graphdist.ir.graph import Graph, Node, Op, Operand, Stage, Value
from graphdist.ir.layouts_over_cores import layouts_over_cores
from graphdist.ir.op_parameters import OverReplicas
from graphdist.ir.ops import ASSIGN, CROSS_REPLICA, LOGICAL_ONLY, OPS, variable_named_by
from graphdist.ir.printer import names, print_literal, print_node
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, is_partial

_SPANNING = frozenset(op for op in OPS.values() if issubclass(op.parameters, OverReplicas))
"""The operations whose parameters state a number of replicas."""

_GONE = {
    Stage.LOGICAL: frozenset[Op](),
    Stage.PLACED: LOGICAL_ONLY,
    Stage.SPMD: LOGICAL_ONLY | CROSS_REPLICA,
}


def verify(graph: Graph, full: bool = False) -> None:
    """Raise `VerifyError` if the graph breaks an invariant of its stage.

    With `full`, also derive the types of all results again, and compare, and the layouts over cores
    of what leaves a split program.

    >>> from graphdist.ir.graph import Stage
    >>> lost = Value(Type("f32", (2,)), "lost")
    >>> verify(Graph("f", Stage.LOGICAL, 2, (), (), (lost,), (), (False,)))
    Traceback (most recent call last):
    graphdist.errors.VerifyError: output 0, %?lost, is not defined in the graph that returns it
      in graph 'f'
    """
    _check_values_and_nodes(graph)
    _check_variables(graph)
    _check_boundary(graph)
    if full:
        _check_types(graph)
        _check_cores(graph)


def _check_values_and_nodes(graph: Graph) -> None:
    """Check that values are defined once, before their use, with a layout; check the operations.

    A nested graph may use only values of its own.
    """
    placed, remarkable = graph.is_placed, _GONE[graph.stage] | _SPANNING
    pending = [graph]
    for scope in pending:  # `pending` grows in the loop
        defined: set[Operand] = set()
        for value in scope.inputs:
            if value in defined:
                _refuse(graph, f"{_name(graph, value)} stands twice among the inputs")
            if placed and value.type.layout is None:
                _refuse(graph, f"input {_name(graph, value)} is {value.type}, without a layout")
            defined.add(value)
        for node in scope.nodes:
            for operand in node.operands:
                if operand.__class__ is Value and operand not in defined:
                    what = f"operand {node.operands.index(operand)}, {_name(graph, operand)}"
                    _refuse(graph, f"{what}, is not defined before its use", node)
            if node.op in remarkable:
                _check_operation(graph, node)
            for value in node.results:
                if value in defined:
                    name = _name(graph, value)
                    _refuse(graph, f"{name} is defined before, and again by this node", node)
                if placed and value.type.layout is None:
                    name = _name(graph, value)
                    _refuse(graph, f"{name} is {value.type}, without a layout", node)
                defined.add(value)
            if node.graphs:
                pending.extend(node.graphs)
        for output in scope.outputs:
            if output.__class__ is Value and output not in defined:
                what = f"output {scope.outputs.index(output)}, {_name(graph, output)}"
                _refuse(graph, f"{what}, is not defined in the graph that returns it")


def _check_operation(graph: Graph, node: Node) -> None:
    """Check that an operation is allowed at the graph's stage, and spans the graph's replicas."""
    name = node.op.name
    if node.op in _GONE[graph.stage]:
        _refuse(graph, f"{name} has no place at stage {graph.stage.value}", node)
    count = OverReplicas.of(node).mesh.num_replicas
    if count != graph.num_replicas:
        _refuse(graph, f"{name} spans {count} replicas, the graph has {graph.num_replicas}", node)


def _refuse(
    graph: Graph, what: str, node: Node | None = None, because: Exception | None = None
) -> NoReturn:
    source, text = (node.source, print_node(node, graph)) if node else (None, "")
    where = f"in graph {graph.name!r}"
    raise VerifyError(what, source=source, node=text, where=where) from because


def _name(graph: Graph, operand: Operand) -> str:
    if isinstance(operand, Value):
        return names(graph).get(operand) or f"%?{operand.hint}"
    return print_literal(operand)


def _check_variables(graph: Graph) -> None:
    """Check that variables have different names, and equal shards on all replicas of a group."""
    if graph.num_groups < 1 or graph.num_replicas % graph.num_groups:
        _refuse(
            graph, f"{graph.num_replicas} replicas form no {graph.num_groups} groups of one size"
        )
    seen, count = set[str](), graph.mesh.group_size
    for variable in graph.variables:
        name, along, type = variable.name, variable.sharded_along, variable.type
        if name in seen:
            _refuse(graph, f"two variables have the name {name!r}")
        seen.add(name)
        if along is not None and (not 0 <= along < len(type.shape) or type.shape[along] % count):
            _refuse(graph, f"variable {name!r}, {type}, has no {count} shards along {along}")


def _check_boundary(graph: Graph) -> None:
    """Check the number of the user's outputs; from PLACED on, the variables' inputs and outputs."""
    assigned = graph.assigned if graph.is_placed else ()
    returned, declared = len(graph.outputs) - len(assigned), len(graph.returns_per_replica)
    if returned != declared:
        _refuse(
            graph, f"outputs of the user's: {returned}, said to be per replica or not: {declared}"
        )
    if not graph.is_placed:
        return
    if len(graph.inputs) < len(graph.variables):
        _refuse(graph, f"variables: {len(graph.variables)}, inputs: {len(graph.inputs)}")
    for value, variable in zip(graph.inputs, graph.variables, strict=False):
        held = variable.held(graph.mesh)
        if value.type != held and value.type != _at_boundary(held):
            name = _name(graph, value)
            _refuse(graph, f"input {name} is {value.type}, its variable {variable.name!r} {held}")
    for output, variable in zip(graph.outputs, assigned, strict=False):
        held = variable.held(graph.mesh)
        type, wanted = output.type, held.layout
        # A mirrored value may be written to a per-replica variable, but not the reverse, unless
        # there is only one replica.
        fits = type.layout in (wanted, MIRRORED) or wanted is PER_REPLICA or graph.num_replicas == 1
        shapes = held.shape, _at_boundary(held).shape
        if not fits or type.dtype != held.dtype or type.shape not in shapes:
            name = _name(graph, output)
            _refuse(graph, f"output {name} is {type}, its variable {variable.name!r} {held}")


def _at_boundary(type: Type) -> Type:
    """Return the input's type for a variable of `type`: a per-replica scalar has the shape (1,)."""
    return type if type.shape or type.layout is not PER_REPLICA else type.shaped((1,))


def _check_types(graph: Graph) -> None:
    """Check that the types of all results follow from the operands."""
    for node in walk(graph):
        declared = [value.type for value in node.results]
        try:
            results = Builder().add(
                node.op, node.operands, node.params, node.graphs, at=node.source, types=declared
            )
        except TypeRuleError as error:
            _refuse(graph, error.what, node, error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            _refuse(graph, f"the rule of {node.op.name} fails on this node: {error!r}", node, error)
        derived = [value.type for value in results]
        if derived != declared:
            by_rule, stated = (
                ", ".join(map(str, types)) or "nothing" for types in (derived, declared)
            )
            _refuse(graph, f"{node.op.name} gives {by_rule} by its rule, not {stated}", node)


def _check_cores(graph: Graph) -> None:
    """Check that outputs are the same on each core, but for shards of sharded variables."""
    layouts = layouts_over_cores(graph)
    cores = [variable.core for variable in graph.assigned] if graph.is_placed else []
    leaving = [(node.operands[0], node) for node in walk(graph) if node.op is ASSIGN]
    wanted = [variable_named_by(node).core for _, node in leaving] + cores
    outputs: list[tuple[Operand, Node | None]] = [
        *leaving,
        *((each, None) for each in graph.outputs),
    ]
    for (operand, node), core in zip_longest(outputs, wanted):
        held = layouts.get(operand, MIRRORED) if type(operand) is Value else MIRRORED
        if held is not MIRRORED and (core is None or is_partial(held)):
            what = "differs between cores" if held is None else f"is {held} on the cores"
            _refuse(graph, f"{_name(graph, operand)} {what} of a replica", node)
