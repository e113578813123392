"""The invariants of graphs: what every pass may rely on, and must keep.

Each invariant is a function that raises `VerifyError` at the first node that breaks it. The tables
at the end say which hold at which stage. They are listed, with their reasons, in `docs/ir.md`.

The check runs after every pass, so it is fast for correct graphs: `_looks_sound` checks everything
in one loop and returns whether it holds. Only if not, or with `full`, the slower invariants run,
which name the fault. With `full`, every type is derived again, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphdist.ir.analyses import walk
from graphdist.ir.builder import Builder
from graphdist.ir.errors import TypeRuleError, VerifyError
from graphdist.ir.graph import Graph, Node, Op, Operand, Stage, Value
from graphdist.ir.op_parameters import OverReplicas
from graphdist.ir.ops import CROSS_REPLICA, LOGICAL_ONLY, OPS
from graphdist.ir.printer import names, print_literal, print_node
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type

__all__ = ["verify"]

_SPANNING = frozenset(op for op in OPS.values() if issubclass(op.parameters, OverReplicas))
"""The operations that state a number of replicas."""

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
    if not full and _looks_sound(graph):
        return
    for invariant in _PLACED if graph.is_placed else _LOGICAL:
        invariant(graph)
    if full:
        _types_follow_from_operands(graph)


def _looks_sound(graph: Graph) -> bool:
    """Return whether all invariants hold; False may be wrong."""
    placed, num_replicas, gone = graph.is_placed, graph.num_replicas, _GONE[graph.stage]
    remarkable = gone | _SPANNING
    pending = [graph]
    for scope in pending:  # which grows
        defined: set[Operand] = set(scope.inputs)
        count = len(scope.inputs)
        for node in scope.nodes:
            for operand in node.operands:
                if operand.__class__ is Value and operand not in defined:
                    return False
            if node.op in remarkable and (node.op in gone or _spanned(node) != num_replicas):
                return False
            if node.graphs:
                pending.extend(node.graphs)
            for value in node.results:
                if placed and value.type.layout is None:
                    return False
                defined.add(value)
            count += len(node.results)
        if len(defined) != count:
            return False
        for output in scope.outputs:
            if output.__class__ is Value and output not in defined:
                return False
        # `in` would compare each layout with None, which is slow.
        if placed and any(value.type.layout is None for value in scope.inputs):
            return False
    try:
        for invariant in _OF_PLACED_GRAPHS if placed else _OF_GRAPHS:
            invariant(graph)
    except VerifyError:
        return False
    return True


def _scopes(graph: Graph) -> Iterator[Graph]:
    """Yield the graph and its nested graphs, an outer one before its inner ones."""
    pending = [graph]
    for scope in pending:  # which grows
        yield scope
        for node in scope.nodes:
            pending.extend(node.graphs)


def _refuse(graph: Graph, what: str, node: Node | None = None) -> VerifyError:
    where = f"in graph {graph.name!r}"
    if node is None:
        return VerifyError(what, where=where)
    return VerifyError(what, source=node.source, node=print_node(node, graph), where=where)


def _name(graph: Graph, operand: Operand) -> str:
    if isinstance(operand, Value):
        return names(graph).get(operand) or f"%?{operand.hint}"
    return print_literal(operand)


def _values_are_defined_once(graph: Graph) -> None:
    for scope in _scopes(graph):
        defined: set[Value] = set()
        for value in scope.inputs:
            if value in defined:
                raise _refuse(graph, f"{_name(graph, value)} stands twice among the inputs")
            defined.add(value)
        for node in scope.nodes:
            for value in node.results:
                if value in defined:
                    name = _name(graph, value)
                    raise _refuse(graph, f"{name} is defined before, and again by this node", node)
                defined.add(value)


def _values_are_defined_before_use(graph: Graph) -> None:
    for scope in _scopes(graph):
        # A nested graph sees its own inputs only.
        defined: set[Operand] = set(scope.inputs)
        for node in scope.nodes:
            for position, operand in enumerate(node.operands):
                if isinstance(operand, Value) and operand not in defined:
                    name = _name(graph, operand)
                    raise _refuse(
                        graph, f"operand {position}, {name}, is not defined before its use", node
                    )
            defined.update(node.results)
        for position, output in enumerate(scope.outputs):
            if isinstance(output, Value) and output not in defined:
                name = _name(graph, output)
                what = f"output {position}, {name}, is not defined in the graph that returns it"
                raise _refuse(graph, what)


def _replicas_are_counted_alike(graph: Graph) -> None:
    for node in walk(graph):
        if node.op in _SPANNING and (count := _spanned(node)) != graph.num_replicas:
            what = f"{node.op.name} spans {count} replicas, the graph has {graph.num_replicas}"
            raise _refuse(graph, what, node)


def _spanned(node: Node) -> int:
    return OverReplicas.of(node).mesh.num_replicas


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


def _operations_are_of_the_stage(graph: Graph) -> None:
    for node in walk(graph):
        if node.op in _GONE[graph.stage]:
            stage = graph.stage.value
            raise _refuse(graph, f"{node.op.name} has no place at stage {stage}", node)


def _values_have_layouts(graph: Graph) -> None:
    for scope in _scopes(graph):
        for value in scope.inputs:
            if value.type.layout is None:
                name = _name(graph, value)
                raise _refuse(graph, f"input {name} is {value.type}, without a layout")
        for node in scope.nodes:
            for value in node.results:
                if value.type.layout is None:
                    name = _name(graph, value)
                    what = f"{name} is {value.type}, without a layout"
                    raise _refuse(graph, what, node)


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
    """Return the type of a variable's input; a per-replica scalar has one dimension here."""
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


_Invariants = tuple[Callable[[Graph], None], ...]

_OF_VALUES: _Invariants = (_values_are_defined_once, _values_are_defined_before_use)
_OF_NODES: _Invariants = (_replicas_are_counted_alike, _operations_are_of_the_stage)
_OF_GRAPHS: _Invariants = (
    _variables_have_names_of_their_own,
    _slices_fit_variables,
    _returns_are_declared,
)
_OF_PLACED_GRAPHS: _Invariants = (
    *_OF_GRAPHS,
    _first_inputs_are_variables,
    _first_outputs_are_assigned,
)
_LOGICAL: _Invariants = (*_OF_VALUES, *_OF_NODES, *_OF_GRAPHS)
_PLACED: _Invariants = (
    *_OF_VALUES,
    *_OF_NODES,
    _values_have_layouts,
    *_OF_PLACED_GRAPHS,
)
