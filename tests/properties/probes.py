"""Probes in a graph: what is called mirrored must be equal on all replicas that come by.

A probe is an operation with an effect, so that the interpreter evaluates it for each replica, one
after the other. Each graph, nested or not, gets one where it is entered and one where it is left:
between them one probe stands for one moment of the program. Where a replica has several cores, the
cores of one index are compared: the interpreter comes by with the cores of a replica one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdist.ir.arrays import Array
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Node, Op, Operand, Value
from graphdist.ir.interpreter import Evaluate
from graphdist.ir.rewrite import substitute
from graphdist.ir.source import UNKNOWN
from graphdist.ir.types import MIRRORED
from graphdist.runtime.bind_primitive import evaluate_jax_node
from tests.properties.exact import check_arrays

ENTER, LEAVE, COMPARE = (
    Op(f"probe.{name}", has_effect=True) for name in ("enter", "leave", "compare")
)


class Probes:
    """The probes of a graph, and what they saw."""

    def __init__(self, evaluate: Evaluate = evaluate_jax_node) -> None:
        self.evaluate_other = evaluate
        self.moments: dict[object, int] = {}  # how often each graph was entered
        self.is_entered: dict[object, bool] = {}
        self.seen: dict[tuple[Node, int], tuple[int, list[Array]]] = {}
        self.num_cores = 1
        self.looks: dict[Node, int] = {}

    def inserted(self, graph: Graph) -> Graph:
        """Return the graph with probes."""
        self.num_cores = max(self.num_cores, graph.num_cores)
        builder = Builder()
        environment: dict[Operand, Operand] = {}
        scope = {"graph": str(len(self.moments))}
        self.moments[scope["graph"]] = 0
        builder.add(ENTER, (), scope, at=UNKNOWN, types=[])
        self._compare(builder, graph.inputs, scope)
        for node in graph.nodes:
            graphs = tuple(map(self.inserted, node.graphs))
            results = builder.keep(node, substitute(environment, node.operands), graphs)
            environment.update(zip(node.results, results, strict=True))
            self._compare(builder, results, scope)
        builder.add(LEAVE, (), scope, at=UNKNOWN, types=[])
        return graph.replace(
            nodes=tuple(builder.nodes), outputs=substitute(environment, graph.outputs)
        )

    def _compare(self, builder: Builder, values: Sequence[Value], scope: dict[str, str]) -> None:
        mirrored = [value for value in values if value.type.layout is MIRRORED]
        if mirrored:
            builder.add(COMPARE, mirrored, scope, at=UNKNOWN, types=[])

    def evaluate(self, node: Node, operands: Sequence[Array]) -> list[Array]:
        """Evaluate an operation, or look at what a probe is given."""
        if node.op not in (ENTER, LEAVE, COMPARE):
            return self.evaluate_other(node, operands)
        graph = node.params["graph"]
        if node.op is ENTER and not self.is_entered.get(graph):
            self.moments[graph] += 1
        self.is_entered[graph] = node.op is ENTER
        if node.op is COMPARE:
            self._look(node, self.moments[graph], list(operands))
        return []

    def _look(self, node: Node, moment: int, arrays: list[Array]) -> None:
        look = self.looks[node] = self.looks.get(node, -1) + 1
        key = node, look % self.num_cores
        when, others = self.seen.get(key, (0, arrays))
        if when == moment:
            for array, other in zip(arrays, others, strict=True):
                if array is not other:
                    check_arrays(array, other, "a mirrored value differs")
        self.seen[key] = moment, arrays
