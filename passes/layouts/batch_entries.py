"""The graph of one entry of a batch.

A computation of a batch, such as that of a stack of layers, is the same for each entry if dimension
0 of what it takes passes through each node to dimension 0 of what it returns. The table of
operations says so. The graph of one entry has the same nodes on values of one entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdist.ir.definitions import definitions
from graphdist.ir.errors import TypeRuleError
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import divides, factors_of, on_shards
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import PER_REPLICA, Type
from graphdist.passes.layouts.repeated_computations import LARGE, RepeatedComputation
from graphdist.passes.layouts.sharding_propagation import propagate_sharding


@dataclass(frozen=True, slots=True)
class BatchEntries:
    """The entries of a computation, all of which one graph computes, one at a time.

    The inputs of `graph` are `shared`, which are the same for all entries, and then one entry of
    each of `stacked`. Its outputs are one entry of each result. Without a batch, `count` is 1 and
    an entry is a whole value.
    """

    computation: RepeatedComputation
    graph: Graph
    count: int
    shared: tuple[Value, ...]
    stacked: tuple[Value, ...]

    @property
    def results(self) -> tuple[Value, ...]:
        """Return the values that the computation returns."""
        return self.computation.results


def batch_entries_of(
    computation: RepeatedComputation, graph: Graph, common: set[Value]
) -> BatchEntries:
    """Return the entries of a computation.

    Without a batch, the values of `common` are shared. With a batch, the values that have no batch
    dimension are shared.
    """
    largest = max(computation.outside, key=lambda value: value.type.bytes)
    count = largest.type.shape[0] if largest.type.shape else 0
    if count > 1:
        alone = graph.replace(
            inputs=computation.outside,
            nodes=computation.nodes,
            outputs=computation.results,
            variables=(),
        )
        along = propagate_sharding(definitions(alone), [[(largest, 0)]], 1)
        if all(along.get(result) == 0 for result in computation.results):
            stacked = {value for value in computation.outside if along.get(value) == 0}
            try:
                return _Builder(graph, along, count).entries(computation, stacked)
            except _NoBatchError:
                pass
    return _Builder(graph, {}, 1).entries(computation, set(computation.outside) - common)


class _NoBatchError(Exception):
    """A node needs all entries at once."""


class _Builder:
    """Builds the graph of one of `count` entries, of values that have these `along` dimensions."""

    def __init__(self, graph: Graph, along: Mapping[Operand, int], count: int) -> None:
        """Store how values are divided."""
        self.graph, self.along, self.count = graph, along, count

    def entries(self, computation: RepeatedComputation, stacked: set[Value]) -> BatchEntries:
        """Return the entries of a computation; raises `_NoBatchError` if there is no such graph."""
        shared = tuple(value for value in computation.outside if value not in stacked)
        apart = tuple(value for value in computation.outside if value in stacked)
        if any(value in self.along for value in shared):
            raise _NoBatchError
        inputs = [Value(value.type, value.hint) for value in shared]
        inputs += map(self._entry, apart)
        graph = Graph(
            name="body",
            stage=self.graph.stage,
            num_replicas=self.graph.num_replicas,
            inputs=tuple(inputs),
            nodes=(),
            outputs=computation.results,
        )
        built = self._filled(graph, (*shared, *apart), computation.nodes)
        return BatchEntries(computation, built, self.count, shared, apart)

    def _entry(self, value: Value) -> Value:
        """Return an input of one entry of a value, or of the value if it has no entries."""
        shape, dimension = value.type.shape, self.along.get(value)
        if dimension is not None:
            if shape[dimension] % self.count:
                raise _NoBatchError
            shape = value.type.resized(dimension, shape[dimension] // self.count).shape
        return Value(Type(value.type.dtype, shape, PER_REPLICA), value.hint)

    def _filled(self, graph: Graph, old: Sequence[Value], nodes: Sequence[Node]) -> Graph:
        """Return `graph`, whose inputs replace `old`, with the nodes on one entry."""
        copier = Copier()
        copier.put(old, graph.inputs)
        for node in nodes:
            copier.put(node.results, self._add(node, copier))
        return graph.replace(nodes=tuple(copier.nodes), outputs=copier.now(graph.outputs))

    def _add(self, node: Node, copier: Copier) -> tuple[Value, ...]:
        operands = copier.now(node.operands)
        if node.graphs:
            try:
                return copier.add(
                    node.op, operands, node.params, tuple(map(self._nested, node.graphs)), at=node
                )
            except TypeRuleError:
                raise _NoBatchError from None
        factor = self._factor(node)
        if factor is None:
            return copier.again(node, operands)
        return on_shards(node, operands, factor, self.count, copier)

    def _nested(self, graph: Graph) -> Graph:
        inputs = tuple(map(self._entry, graph.inputs))
        return self._filled(graph.replace(inputs=inputs), graph.inputs, graph.nodes)

    def _factor(self, node: Node) -> int | None:
        """Return the factor of the entries in a node; None if the node has no entries."""
        values = *node.operands, *node.results
        if self.along.keys().isdisjoint(values):
            return None
        found = factors_of(node)
        if found is None:
            raise _NoBatchError
        pairs = list(zip(values, (*found.operands, *found.results), strict=True))
        factors = {dims[self.along[value]] for value, dims in pairs if value in self.along}
        factor = factors.pop()
        if factor is None or factors or factor in found.summed:
            raise _NoBatchError
        if not divides(node, found, factor, self.count):
            raise _NoBatchError
        if node.op.name in LARGE and any(factor not in dims for dims in found.operands):
            raise _NoBatchError  # rows of one matrix are no batch of matrices
        if any(Factors.dimension(dims, factor) != self.along.get(value) for value, dims in pairs):
            raise _NoBatchError
        return factor
