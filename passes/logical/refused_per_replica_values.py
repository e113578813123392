"""Raise errors for per-replica values where all replicas need one value.

If a branch or loop has a per-replica predicate, replicas may run different branches or numbers of
iterations. A collective inside would wait for replicas that never reach it, and a mirrored variable
would be written on some replicas only. Both raise an error, and so does:

* a per-replica value assigned to a mirrored variable that does not say how to aggregate it;
* a per-replica value given to `run` as one value, or returned from cross-replica code as one value.
"""

from __future__ import annotations

from graphdist.ir.analyses import producer_of
from graphdist.ir.divergence import cause
from graphdist.ir.errors import DistributionError
from graphdist.ir.flow import choice_of, diverges
from graphdist.ir.graph import Graph, Node, Operand
from graphdist.ir.ops import AGGREGATE, ASSIGN, COND, TO_REPLICAS, variable_named_by
from graphdist.ir.printer import print_graph, print_node
from graphdist.ir.types import MIRRORED


def refuse_per_replica_values(graph: Graph) -> None:
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
