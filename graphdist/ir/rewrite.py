"""The rewrite driver: walk a graph in order, ask a rule about each node, build the result.

A rule is called with a node whose operands and nested graphs are already rewritten. The rule
returns None to keep the node, or the operands that replace the node's results. It adds new nodes to
the `Rewriter`, which also knows the node that makes a value and how often the value is used. If
nothing changed, `rewrite` returns the same graph object, so a caller can tell by `is`.

A pass that does more than replace nodes walks a graph itself, with a `Copier`:

    copier = Copier("my_pass")
    for node in graph.nodes:
        if node is unwanted:
            copier.put(node.results, operands_that_replace_them)
        else:
            copier.copy(node)
    return copier.changed(graph)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from graphdist.ir.analyses import operations, use_counts
from graphdist.ir.builder import Builder, are_same
from graphdist.ir.graph import Graph, Node, Operand, Operands, Stage, Value


class Copier(Builder):
    """The builder of a changed copy of a graph.

    `environment` maps values of the old graph to the operands that replace them.
    """

    def __init__(self, origin: str = "") -> None:
        """Start with no nodes, and nothing replaced."""
        super().__init__(origin)
        self.environment: dict[Operand, Operand] = {}

    def now(self, operands: Sequence[Operand]) -> Operands:
        """Return the operands with their replacements."""
        return substitute(self.environment, tuple(operands))

    def put(self, values: Sequence[Operand], operands: Iterable[Operand]) -> None:
        """Replace values of the old graph by these operands."""
        if operands is not values:
            self.environment.update(zip(values, operands, strict=True))

    def copy(self, node: Node, graphs: tuple[Graph, ...] | None = None) -> tuple[Value, ...]:
        """Append a node of the old graph, maybe with other nested graphs; return its results."""
        operands = substitute(self.environment, node.operands)
        results = self.keep(node, operands, node.graphs if graphs is None else graphs)
        self.put(node.results, results)
        return results

    def changed(self, graph: Graph) -> Graph:
        """Return `graph` with the nodes of this builder; `graph` itself if it has these nodes."""
        nodes, outputs = tuple(self.nodes), self.now(graph.outputs)
        if nodes == graph.nodes and are_same(outputs, graph.outputs):
            return graph
        return graph.replace(nodes=nodes, outputs=outputs)


class Rewriter(Copier):
    """The builder of a graph that is rewritten, with the definitions and uses of its values.

    Each nested graph has its own rewriter, since it has its own values.
    """

    def __init__(self, graph: Graph, origin: str) -> None:
        """Start with no nodes; `graph` is the old graph."""
        super().__init__(origin)
        self.graph = graph
        self._definitions: dict[Operand, Node] = {}
        self._defined = 0
        """The number of nodes whose results are in `_definitions`, which is filled when needed."""
        self._stands_for: dict[Operand, list[Value]] = {}

    def definition(self, operand: Operand, *names: str) -> Node | None:
        """Return the node of the new graph that makes an operand.

        Return None for an input or a literal. With `names`, also return None if the node's
        operation has none of these names.
        """
        if type(operand) is not Value:
            return None
        for made in self.nodes[self._defined :]:
            self._definitions.update(dict.fromkeys(made.results, made))
        self._defined = len(self.nodes)
        node = self._definitions.get(operand)
        return node if node is None or not names or node.op.name in names else None

    def uses(self, operand: Operand) -> int:
        """Return how often the old graph uses a value: at least once.

        A value that replaces results of the old graph has the uses of these results. Any other
        value that a rule made counts as used once. Uses by replaced nodes still count, until dead
        nodes are removed.
        """
        counts = use_counts(self.graph)
        values = [operand, *self._stands_for.get(operand, ())]
        return max(1, sum(counts.get(value, 0) for value in values if type(value) is Value))

    def stand_for(self, answer: Sequence[Operand], results: Sequence[Value]) -> None:
        """Record that the operands `answer` replace `results` of the old graph."""
        for operand, result in zip(answer, results, strict=True):
            if type(operand) is Value and operand is not result:
                self._stands_for.setdefault(operand, []).append(result)

    def take_back(self, count: int) -> list[Node]:
        """Remove the nodes after the first `count`, and return them."""
        self._defined = min(self._defined, count)
        taken = self.nodes[count:]
        del self.nodes[count:]
        return taken


Answer: TypeAlias = Sequence[Operand] | None
"""The operands that replace a node's results; None keeps the node."""
Rule: TypeAlias = Callable[[Node, Operands, Rewriter], Answer]


def rewrite(graph: Graph, rule: Rule, origin: str, only: Collection[str] | None = None) -> Graph:
    """Return the graph with `rule` applied to every node, also in nested graphs.

    If `only` is given, `rule` is called only for nodes whose operation has one of these names.
    """
    if only is not None and operations(graph).isdisjoint(only):
        return graph
    rewriter = Rewriter(graph, origin)
    for original in graph.nodes:
        operands = substitute(rewriter.environment, original.operands)
        node = original
        if node.graphs:
            node = with_graphs(
                node, operands, tuple(rewrite(inner, rule, origin, only) for inner in node.graphs)
            )
        answer: Answer = None
        if only is None or node.op.name in only:
            answer = rule(node, operands, rewriter)
        if answer is None:
            answer = rewriter.keep(node, operands, node.graphs)
        if answer is not original.results:
            rewriter.stand_for(answer, original.results)
            rewriter.put(original.results, answer)
    return rewriter.changed(graph)


def substitute(environment: Mapping[Operand, Operand], operands: Operands) -> Operands:
    """Return the operands with their replacements; the same tuple if no operand has one."""
    if not environment:
        return operands
    for operand in operands:
        # Literals are slow to hash, and are never replaced.
        if type(operand) is Value and operand in environment:
            return tuple([environment.get(operand, operand) for operand in operands])
    return operands


def with_graphs(node: Node, operands: Operands, graphs: tuple[Graph, ...]) -> Node:
    """Return `node` with these operands and nested graphs; `node` itself if it has these graphs."""
    if graphs == node.graphs:
        return node
    builder = Builder(node.origin)
    builder.keep(node, operands, graphs)
    return builder.nodes[0]


def renewed(graph: Graph) -> Graph:
    """Return a copy of a nested graph with values of its own, for a second node that has it."""
    copier = Copier()
    copier.put(graph.inputs, inputs := tuple(Value(v.type, v.hint) for v in graph.inputs))
    for node in graph.nodes:
        types = None if node.op.rule else [result.type for result in node.results]
        operands, graphs = copier.now(node.operands), tuple(map(renewed, node.graphs))
        results = copier.add(node.op, operands, node.params, graphs, at=node, types=types)
        copier.put(node.results, results)
    nodes, outputs = tuple(copier.nodes), copier.now(graph.outputs)
    return graph.replace(inputs=inputs, nodes=nodes, outputs=outputs)


def map_nested(graph: Graph, function: Callable[[Graph], Graph]) -> Graph:
    """Return the graph with `function` applied to the graphs nested directly in its nodes."""
    if not any(node.graphs for node in graph.nodes):
        return graph
    copier = Copier()
    for node in graph.nodes:
        copier.copy(node, tuple(map(function, node.graphs)))
    return copier.changed(graph)


def restage(graph: Graph, stage: Stage) -> Graph:
    """Return the graph and its nested graphs at another stage."""
    return map_nested(graph, lambda inner: restage(inner, stage)).replace(stage=stage)
