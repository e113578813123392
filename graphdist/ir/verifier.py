"""The invariants of graphs: what every pass may rely on, and must keep.

Each check raises `VerifyError` at the first node that breaks an invariant. `docs/ir.md` lists the
invariants, with their reasons and the stages at which they hold.

The checks run after every pass, so they are fast for correct graphs: one loop goes over all values
and nodes. With `full`, every type is derived again, too.
"""

from __future__ import annotations

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError, VerifyError
from graphdist.ir.graph import Graph, Node, Op, Operand, Stage, Value
from graphdist.ir.op_parameters import OverReplicas
from graphdist.ir.ops import CROSS_REPLICA, LOGICAL_ONLY, OPS
from graphdist.ir.printer import names, print_literal, print_node
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type

_SPANNING = frozenset(op for op in OPS.values() if issubclass(op.parameters, OverReplicas))
"""The operations whose parameters state a number of replicas."""

_GONE = {
    Stage.LOGICAL: frozenset[Op](),
    Stage.PLACED: LOGICAL_ONLY,
    Stage.SPMD: LOGICAL_ONLY | CROSS_REPLICA,
}


def verify(graph: Graph, full: bool = False) -> None:
    """Raise `VerifyError` if the graph breaks an invariant of its stage.

    With `full`, also derive the types of all results again, and compare.

    >>> from graphdist.ir.graph import Stage
    >>> lost = Value(Type("f32", (2,)), "lost")
    >>> verify(Graph("f", Stage.LOGICAL, 2, (), (), (lost,), (), (False,)))
    Traceback (most recent call last):
    graphdist.errors.VerifyError: output 0, %?lost, is not defined in the graph that returns it
      in graph 'f'
    """
    _check_values_and_nodes(graph)
    _variables_have_names_of_their_own(graph)
    _slices_fit_variables(graph)
    _returns_are_declared(graph)
    if graph.is_placed:
        _first_inputs_are_variables(graph)
        _first_outputs_are_assigned(graph)
    if full:
        _types_follow_from_operands(graph)


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
                raise _refuse(graph, f"{_name(graph, value)} stands twice among the inputs")
            if placed and value.type.layout is None:
                what = f"input {_name(graph, value)} is {value.type}, without a layout"
                raise _refuse(graph, what)
            defined.add(value)
        for node in scope.nodes:
            for operand in node.operands:
                if operand.__class__ is Value and operand not in defined:
                    what = f"operand {node.operands.index(operand)}, {_name(graph, operand)}"
                    raise _refuse(graph, f"{what}, is not defined before its use", node)
            if node.op in remarkable:
                _check_operation(graph, node)
            for value in node.results:
                if value in defined:
                    what = f"{_name(graph, value)} is defined before, and again by this node"
                    raise _refuse(graph, what, node)
                if placed and value.type.layout is None:
                    what = f"{_name(graph, value)} is {value.type}, without a layout"
                    raise _refuse(graph, what, node)
                defined.add(value)
            if node.graphs:
                pending.extend(node.graphs)
        for output in scope.outputs:
            if output.__class__ is Value and output not in defined:
                what = f"output {scope.outputs.index(output)}, {_name(graph, output)}"
                raise _refuse(graph, f"{what}, is not defined in the graph that returns it")


def _check_operation(graph: Graph, node: Node) -> None:
    """Check that an operation is allowed at the graph's stage, and spans the graph's replicas."""
    if node.op in _GONE[graph.stage]:
        what = f"{node.op.name} has no place at stage {graph.stage.value}"
        raise _refuse(graph, what, node)
    count = OverReplicas.of(node).mesh.num_replicas
    if count != graph.num_replicas:
        what = f"{node.op.name} spans {count} replicas, the graph has {graph.num_replicas}"
        raise _refuse(graph, what, node)


def _refuse(graph: Graph, what: str, node: Node | None = None) -> VerifyError:
    where = f"in graph {graph.name!r}"
    if node is None:
        return VerifyError(what, where=where)
    return VerifyError(what, source=node.source, node=print_node(node, graph), where=where)


def _name(graph: Graph, operand: Operand) -> str:
    if isinstance(operand, Value):
        return names(graph).get(operand) or f"%?{operand.hint}"
    return print_literal(operand)


def _slices_fit_variables(graph: Graph) -> None:
    if graph.num_groups < 1 or graph.num_replicas % graph.num_groups:
        what = f"{graph.num_replicas} replicas form no {graph.num_groups} groups of one size"
        raise _refuse(graph, what)
    slices = graph.mesh.group_size
    for variable in graph.variables:
        along, type = variable.sharded_along, variable.type
        if along is not None and not (
            0 <= along < len(type.shape) and type.shape[along] % slices == 0
        ):
            what = f"variable {variable.name!r}, {type}, has no {slices} slices along {along}"
            raise _refuse(graph, what)


def _variables_have_names_of_their_own(graph: Graph) -> None:
    seen: set[str] = set()
    for variable in graph.variables:
        if variable.name in seen:
            raise _refuse(graph, f"two variables have the name {variable.name!r}")
        seen.add(variable.name)


def _returns_are_declared(graph: Graph) -> None:
    assigned = len(graph.assigned) if graph.is_placed else 0
    returned, declared = len(graph.outputs) - assigned, len(graph.returns_per_replica)
    if returned != declared:
        what = f"outputs of the user's: {returned}, said to be per replica or not: {declared}"
        raise _refuse(graph, what)


def _first_inputs_are_variables(graph: Graph) -> None:
    if len(graph.inputs) < len(graph.variables):
        what = f"variables: {len(graph.variables)}, inputs: {len(graph.inputs)}"
        raise _refuse(graph, what)
    for value, variable in zip(graph.inputs, graph.variables, strict=False):
        held = variable.held(graph.mesh)
        if value.type != held and value.type != _at_boundary(held):
            name = _name(graph, value)
            what = f"input {name} is {value.type}, its variable {variable.name!r} {held}"
            raise _refuse(graph, what)


def _first_outputs_are_assigned(graph: Graph) -> None:
    # `_returns_are_declared` has checked that there are enough outputs.
    for output, variable in zip(graph.outputs, graph.assigned, strict=False):
        held = variable.held(graph.mesh)
        type, wanted = output.type, held.layout
        # A mirrored value may be written to a per-replica variable, but not the reverse.
        fits = type.layout in (wanted, MIRRORED) or wanted is PER_REPLICA
        shapes = held.shape, _at_boundary(held).shape
        if not fits or type.dtype != held.dtype or type.shape not in shapes:
            name = _name(graph, output)
            what = f"output {name} is {type}, its variable {variable.name!r} {held}"
            raise _refuse(graph, what)


def _at_boundary(type: Type) -> Type:
    """Return the input's type for a variable of `type`: a per-replica scalar has the shape (1,)."""
    return type if type.shape or type.layout is not PER_REPLICA else type.shaped((1,))


def _types_follow_from_operands(graph: Graph) -> None:
    for node in walk(graph):
        declared = [value.type for value in node.results]
        try:
            results = Builder().add(
                node.op, node.operands, node.params, node.graphs, at=node.source, types=declared
            )
        except TypeRuleError as error:
            raise _refuse(graph, error.what, node) from error
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"the rule of {node.op.name} fails on this node: {error!r}"
            raise _refuse(graph, what, node) from error
        derived = [value.type for value in results]
        if derived != declared:
            what = (
                f"{node.op.name} gives {', '.join(map(str, derived)) or 'nothing'} by its rule, "
                f"not {', '.join(map(str, declared)) or 'nothing'}"
            )
            raise _refuse(graph, what, node)
