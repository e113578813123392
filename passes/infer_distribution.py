"""Give every value a distribution, and refuse programs that need one value where there are several.

The analysis is a forward walk: the type rule of each operation says how its result is distributed,
given its operands (`graphdist.ir.ops`). Only control flow needs more than one look. The carry of a
loop starts with the distribution it comes in with and is joined with what the body makes of it
until nothing changes; the lattice has two steps, so that is at most one more walk for each carry
that changes.

Where replicas may disagree on the way (a branch or loop whose predicate is per replica), a
collective would wait for replicas that never come, and a mirrored variable would be written on some
replicas only. Both are refused, as are:

* a per-replica value assigned to a mirrored variable that does not say how to aggregate it;
* a per-replica value given to `run` as one value, or returned from cross-replica code as one value.

Before:  %c = scan(%x) {..} : f32[4]             After:  %c = scan(%x) {..} : f32[4] per_replica
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from graphdist.ir.analyses import producers
from graphdist.ir.builder import Builder
from graphdist.ir.errors import DistributionError
from graphdist.ir.graph import Graph, Node, Operand, Value, Variable
from graphdist.ir.ops import ASSIGN, COND, READ, REPLICA_ID, SCAN, TO_REPLICAS, WHILE
from graphdist.ir.printer import print_node
from graphdist.ir.rewrite import rewrite, substitute
from graphdist.ir.types import MIRRORED, PER_REPLICA, Distribution, Type, join, sharded

NAME = "infer_distribution"


def infer_distribution(graph: Graph) -> Graph:
    """Return the graph with a distribution on every value; raises `DistributionError`."""
    inferred = rewrite(graph, _infer_node, NAME, lambda node: bool(node.graphs))
    _check(inferred)
    return inferred


def _infer_node(
    node: Node, operands: tuple[Operand, ...], builder: Builder
) -> Sequence[Operand] | None:
    graphs = _INFER[node.op](node, [operand.type for operand in operands])
    return None if graphs == node.graphs else builder.keep(node, operands, graphs)


def _scan(node: Node, operands: list[Type]) -> tuple[Graph, ...]:
    consts, carry = cast(int, node.params["num_consts"]), cast(int, node.params["num_carry"])
    xs = [_slice(type.distribution) for type in operands[consts + carry :]]
    entering = [type.distribution for type in operands[: consts + carry]]
    (body,) = node.graphs
    return (_fixpoint(body, [*entering, *xs], slice(consts, consts + carry)),)


def _slice(distribution: Distribution | None) -> Distribution | None:
    """Return the distribution of a slice along dimension 0."""
    if distribution is None or distribution.dimension is None:
        return distribution
    return sharded(distribution.dimension - 1) if distribution.dimension else PER_REPLICA


def _while(node: Node, operands: list[Type]) -> tuple[Graph, ...]:
    of_condition = cast(int, node.params["num_cond_consts"])
    of_body = cast(int, node.params["num_body_consts"])
    entering = [type.distribution for type in operands]
    condition, body = node.graphs
    inner = _fixpoint(body, entering[of_condition:], slice(of_body, None))
    carried = [value.type.distribution for value in inner.inputs[of_body:]]
    return _with_inputs(condition, [*entering[:of_condition], *carried]), inner


def _cond(node: Node, operands: list[Type]) -> tuple[Graph, ...]:
    entering = [type.distribution for type in operands[1:]]
    return tuple(_with_inputs(branch, entering) for branch in node.graphs)


_INFER = {SCAN: _scan, WHILE: _while, COND: _cond}


def _fixpoint(body: Graph, entering: Sequence[Distribution | None], carry: slice) -> Graph:
    """Return the body with inputs so distributed that its carry comes out as it went in."""
    distributions = list(entering)
    inferred = body
    while True:
        inferred = _with_inputs(inferred, distributions)
        before = distributions[carry]
        outputs = [output.type.distribution for output in inferred.outputs[: len(before)]]
        after = [a if a is b else join((a, b)) for a, b in zip(before, outputs, strict=True)]
        if after == before:
            return body if _same_types(body, inferred) else inferred
        distributions[carry] = after


def _with_inputs(graph: Graph, distributions: Sequence[Distribution | None]) -> Graph:
    """Return the graph with its inputs so distributed and everything after them derived anew."""
    environment: dict[Operand, Operand] = {}
    inputs = []
    for value, distribution in zip(graph.inputs, distributions, strict=True):
        if value.type.distribution is not distribution:
            changed = Value(value.type.distributed(distribution), value.hint)
            environment[value] = value = changed
        inputs.append(value)
    builder = Builder(NAME)
    for node in graph.nodes:
        operands = substitute(environment, node.operands)
        graphs = node.graphs
        if graphs:
            graphs = _INFER[node.op](node, [operand.type for operand in operands])
        results = builder.keep(node, operands, graphs)
        if builder.nodes[-1] is not node:
            environment.update(zip(node.results, results, strict=True))
    if not environment and tuple(builder.nodes) == graph.nodes:
        return graph
    return graph.replace(
        inputs=tuple(inputs),
        nodes=tuple(builder.nodes),
        outputs=substitute(environment, graph.outputs),
    )


def _same_types(graph: Graph, other: Graph) -> bool:
    """Return whether two forms of one graph differ in no distribution."""
    if [value.type for value in graph.inputs] != [value.type for value in other.inputs]:
        return False
    for node, same in zip(graph.nodes, other.nodes, strict=True):
        if [value.type for value in node.results] != [value.type for value in same.results]:
            return False
        if not all(map(_same_types, node.graphs, same.graphs)):
            return False
    return True


def _check(graph: Graph) -> None:
    """Raise `DistributionError` at the first use of several values as one."""
    pending: list[tuple[Graph, Node | None]] = [(graph, None)]
    while pending:
        current, divergent = pending.pop()
        for node in current.nodes:
            if divergent is not None:
                _check_divergent(graph, node, divergent)
            if node.op is ASSIGN:
                _check_assign(graph, current, node)
            elif node.op is TO_REPLICAS and not _is_mirrored(node.operands[0]):
                raise _refuse(
                    graph,
                    node,
                    "a per-replica value is passed to run as one value",
                    _reason(current, node.operands[0]),
                )
            if node.graphs:
                inner = divergent or (node if _diverges(node) else None)
                pending.extend((nested, inner) for nested in node.graphs)
    user_outputs = graph.outputs[len(graph.assigned) if graph.is_placed else 0 :]
    for output, per_replica in zip(user_outputs, graph.returns_per_replica, strict=True):
        if not per_replica and not _is_mirrored(output):
            raise _refuse(
                graph,
                producers(graph).get(cast(Value, output)),
                "a per-replica value is returned from cross-replica code as one value",
                _reason(graph, output),
            )


def _is_mirrored(operand: Operand) -> bool:
    return operand.type.distribution is MIRRORED


def _diverges(node: Node) -> bool:
    """Return whether replicas may take different ways through this node."""
    if node.op is COND:
        return not _is_mirrored(node.operands[0])
    return node.op is WHILE and not _is_mirrored(node.graphs[0].outputs[0])


def _check_divergent(graph: Graph, node: Node, divergent: Node) -> None:
    is_assign = node.op is ASSIGN and _variable(node).type.distribution is MIRRORED
    if not node.op.is_collective and not is_assign:
        return
    what = (
        f"variable {_variable(node).name!r} is assigned" if is_assign else f"{node.op.name} stands"
    )
    why = (
        "it would be written on some replicas only"
        if is_assign
        else "replicas that do not take the branch would be waited for for ever"
    )
    kind = "branch" if divergent.op is COND else "loop"
    raise DistributionError(
        f"{what} in a {kind} whose predicate differs between replicas: {why}",
        source=node.source,
        other=divergent.source,
        node=print_node(node),
        where=f"in graph {graph.name!r}, pass {NAME!r}",
        hint="make the predicate the same on all replicas (all_reduce it), "
        f"or move the {'assignment' if is_assign else 'collective'} out of the {kind}",
    )


def _check_assign(graph: Graph, current: Graph, node: Node) -> None:
    variable = _variable(node)
    if variable.type.distribution is not MIRRORED or _is_mirrored(node.operands[0]):
        return
    raise _refuse(
        graph,
        node,
        f"a per-replica value is assigned to the mirrored variable {variable.name!r}, "
        f"whose aggregation is {variable.aggregation.upper()}",
        _reason(current, node.operands[0]),
    )


def _variable(node: Node) -> Variable:
    return cast(Variable, node.params["variable"])


def _refuse(graph: Graph, node: Node | None, what: str, reason: str) -> DistributionError:
    return DistributionError(
        what + reason,
        source=node.source if node else None,
        node=print_node(node) if node else "",
        where=f"in graph {graph.name!r}, pass {NAME!r}",
        hint="reduce it first (strategy.reduce, or all_reduce in replica context), pass what it depends "
        "on through the arguments of run, or give the variable an aggregation",
    )


def _reason(graph: Graph, operand: Operand) -> str:
    """Return which input, read or replica number makes the operand differ between replicas."""
    made_by = producers(graph)
    pending, seen = [operand], set()
    while pending:
        current = pending.pop()
        if not isinstance(current, Value) or current in seen or _is_mirrored(current):
            continue
        seen.add(current)
        node = made_by.get(current)
        if node is None:
            return f" (it depends on the per-replica input {current.hint or 'of a loop'!r})"
        if node.op is REPLICA_ID:
            return " (it depends on the replica's number)"
        if node.op is READ:
            return f" (it depends on the per-replica variable {_variable(node).name!r})"
        pending.extend(node.operands)
    return ""
