"""The rewrite driver: walk a graph in order, ask a rule about each node, build the result.

A rule sees a node with its operands and nested graphs already rewritten. It answers None to keep
the node, or the operands that stand for its results from now on; what it needs it adds to the
builder. If nothing changed, the same graph object comes back, which is how a pass says that it had
nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from graphdist.ir.analyses import operations
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value

Rule = Callable[[Node, tuple[Operand, ...], Builder], Sequence[Operand] | None]


def rewrite(graph: Graph, rule: Rule, origin: str, only: Collection[str] | None = None) -> Graph:
    """Return the graph with `rule` applied to every node, nested graphs included.

    `only` are the operations the rule is asked about, by name; None is all.
    """
    if only is not None and operations(graph).isdisjoint(only):
        return graph
    builder = Builder(origin)
    environment: dict[Operand, Operand] = {}
    for original in graph.nodes:
        operands = substitute(environment, original.operands) if environment else original.operands
        node = original
        if node.graphs:
            node = with_graphs(
                node, operands, tuple(rewrite(inner, rule, origin, only) for inner in node.graphs)
            )
        answer: Sequence[Operand] | None = None
        if only is None or node.op.name in only:
            answer = rule(node, operands, builder)
        if answer is None and operands is node.operands:
            builder.nodes.append(node)
            answer = node.results
        elif answer is None:
            answer = builder.keep(node, operands, node.graphs)
        if answer is not original.results:
            environment.update(zip(original.results, answer, strict=True))
    nodes, outputs = tuple(builder.nodes), substitute(environment, graph.outputs)
    if outputs is graph.outputs and nodes == graph.nodes:
        return graph
    return graph.replace(nodes=nodes, outputs=outputs)


def substitute(
    environment: Mapping[Operand, Operand], operands: tuple[Operand, ...]
) -> tuple[Operand, ...]:
    """Return the operands, those with a replacement replaced; the same tuple if none has."""
    if not environment:
        return operands
    for operand in operands:
        # Literals are slow to hash, and nothing stands for them.
        if type(operand) is Value and operand in environment:
            return tuple([environment.get(operand, operand) for operand in operands])
    return operands


def with_graphs(node: Node, operands: tuple[Operand, ...], graphs: tuple[Graph, ...]) -> Node:
    """Return the node with other operands and nested graphs; the same node if they are its own."""
    if graphs == node.graphs:
        return node
    builder = Builder(node.origin)
    builder.keep(node, operands, graphs)
    return builder.nodes[0]


def any_node(graph: Graph, test: Callable[[Node], bool]) -> bool:
    """Return whether a node of the graph, or of one nested in it, passes the test."""
    pending = [graph]
    while pending:
        for node in pending.pop().nodes:
            if test(node):
                return True
            pending.extend(node.graphs)
    return False


def map_nested(graph: Graph, function: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with `function` applied to the graphs nested directly in its nodes."""
    if not any(node.graphs for node in graph.nodes):
        return graph
    environment: dict[Operand, Operand] = {}
    builder = Builder()
    changed = False
    for node in graph.nodes:
        graphs = tuple(map(function, node.graphs)) if node.graphs else ()
        results = builder.keep(node, substitute(environment, node.operands), graphs)
        if builder.nodes[-1] is not node:
            changed = True
            environment.update(zip(node.results, results, strict=True))
    if not changed:
        return graph
    return graph.replace(nodes=tuple(builder.nodes), outputs=substitute(environment, graph.outputs))


def restage(graph: Graph, stage: Stage) -> Graph:
    """Return the graph, and those nested in it, at another stage."""
    return map_nested(graph, lambda inner: restage(inner, stage)).replace(stage=stage)
