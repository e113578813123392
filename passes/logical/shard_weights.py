"""Store the weights of products of few rows in the shards on which the products are computed.

`replicas_as_cores` computes such a product on shards of the columns of its weights, such as the
words of a vocabulary, or of the dimension that the product sums over. The second product of a layer
sums over the columns of the first. Weights that are stored in other shards would be exchanged in
each step, and so would their gradient. So they are stored along the longer of the two, and what is
sharded with them, such as their slots, too.

Before:  @w: f32[512,65536] mirrored sharded_along=0     (%x: f32[8,512] per_replica)
         %r = read() {variable=@w}                       %y = jax.dot_general(%x, %r)
After:   @w: f32[512,65536] mirrored sharded_along=1     and the same nodes

In a loop over microbatches, weights serve all iterations. They are sharded only if products alone
use them, and if their gradient is in the same body.

Weights that each replica holds in full are sharded, too, if the step trains them. Otherwise their
gradient would be reduced and their new value gathered. If the product is computed on full weights
after all, these are gathered, and shards of the gradient reduced, which sends as many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from graphdist.ir.analyses import kept_analysis, users, values_behind, walk
from graphdist.ir.definitions import definitions
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, GraphVariable, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.operation_table import factors_of
from graphdist.ir.ops import ASSIGN, READ, SCAN, variable_named_by
from graphdist.ir.types import MIRRORED
from graphdist.ir.variable_storage import StoredUnsharded
from graphdist.passes.layouts.sharding_propagation import propagate_sharding

_PRODUCT = "jax.dot_general"
_UNCHANGED = (
    "jax.convert_element_type",
    "jax.optimization_barrier",
    "jax.reshape",
    "jax.transpose",
)


@dataclass(frozen=True, slots=True)
class ShardWeights:
    """The pass, for weights of `saving` times as many bytes as the rows, and `fewest_bytes` more.

    It shards variables that are stored unsharded only if `shards_unsharded`.
    """

    saving: int
    fewest_bytes: int
    shards_unsharded: bool

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph whose weights are stored where their products are computed."""
        if graph.num_replicas == 1 or graph.num_groups > 1:
            return graph
        weights = [
            (operand, dimension)
            for node, operand, times in _products(graph, set(), set())
            if (dimension := self._dimension(node, operand, times, graph)) is not None
        ]
        if not weights:
            return graph
        dimensions = _dimensions(weights, graph)
        assigned = {variable_named_by(node).name for node in walk(graph) if node.op is ASSIGN}
        variables = tuple(
            variable.stored_along(dimensions[variable.name])
            if variable.name in dimensions and self._may_change(variable, variable.name in assigned)
            else variable
            for variable in graph.variables
        )
        return graph if variables == graph.variables else graph.replace(variables=variables)

    def chosen(self, graph: Graph) -> list[str]:
        """Return which variables are stored otherwise from then on."""
        pairs = zip(graph.variables, self(graph).variables, strict=True)
        return [
            f"{new.name}: {new.type.dtype}{list(new.type.shape)} is stored in shards along "
            f"dimension {new.sharded_along}, for a product of few rows"
            for old, new in pairs
            if old != new
        ]

    def _may_change(self, variable: GraphVariable, is_assigned: bool) -> bool:
        if variable.sharded_along is not None:
            return True
        is_large = variable.type.bytes >= self.fewest_bytes and variable.type.layout is MIRRORED
        is_free = (
            isinstance(variable.storage, StoredUnsharded)
            and not variable.is_local
            and variable.core is None
        )
        return self.shards_unsharded and is_assigned and is_large and is_free

    def _dimension(self, node: Node, weights: Value, times: int, graph: Graph) -> int | None:
        """Return along which dimension a product's operand is sharded; None if it has few bytes.

        The operand serves `times` products, each with other rows.
        """
        index, factors = node.operands.index(weights), factors_of(node)
        rows = node.operands[1 - index]
        if factors is None or not self._may_be_weights(weights, rows, times, graph):
            return None
        return _dimension(node, factors, weights, graph.num_replicas)

    def _may_be_weights(self, weights: Value, rows: Operand, times: int, graph: Graph) -> bool:
        if weights.type.layout is not MIRRORED or rows.type.layout is MIRRORED:
            return False
        gathered = times * graph.num_replicas * rows.type.bytes
        return weights.type.bytes - self.saving * gathered >= times * self.fewest_bytes


def _products(
    graph: Graph, in_front: set[Value], lost: set[Value], length: int = 1
) -> Iterator[tuple[Node, Value, int]]:
    """Yield the products that may be computed on shards, also in nested graphs, with an operand.

    The number that follows says how many iterations may share a gather of the operand: `length` if
    it is gathered in front of the loop whose body the graph is, as the inputs `in_front` are.
    `replicas_as_cores` finds these if their gradients are in the same body. It does not find what
    is gathered in front of a branch, or of several loops: `lost` inputs.
    """
    lost |= {value for value in in_front if not _may_move_into(graph, value)}
    outer = in_front | lost
    for node in graph.nodes:
        if node.op.name == _PRODUCT:
            for operand in node.operands:
                behind = values_behind(graph, [operand]) if outer else set[Value]()
                if type(operand) is Value and behind.isdisjoint(lost):
                    yield node, operand, 1 if behind.isdisjoint(in_front) else length
        elif node.op is SCAN:
            scan = Scan(node)
            far = {
                each.value
                for each in (*scan.constants, *scan.scanned)
                if outer and not outer.isdisjoint(values_behind(graph, [each.operand]))
            }
            near = {each.value for each in scan.constants}
            yield from _products(scan.body, near - far, far, scan.length)
        else:
            for inner in node.graphs:
                yield from _products(inner, set(), set(inner.inputs))


def _may_move_into(body: Graph, weights: Value) -> bool:
    """Return whether only products use weights, one of which makes their gradient."""
    pending: list[Value] = [weights]
    while pending:
        value = pending.pop()
        for node in users(body).get(value, ()):
            if node.op.name in _UNCHANGED:
                pending.append(node.results[node.operands.index(value)])
            elif node.op.name != _PRODUCT:
                return False
    sizes = (node.results[0].type.size for node in body.nodes if node.op.name == _PRODUCT)
    return weights.type.size in sizes


def _dimension(node: Node, factors: Factors, weights: Value, num_replicas: int) -> int | None:
    """Return the longest dimension of the columns, or of what is summed if that is longer."""
    index = node.operands.index(weights)
    of_rows, shape = factors.operands[1 - index], weights.type.shape
    named = [(at, of) for at, of in enumerate(factors.operands[index]) if of is not None]
    summed = [at for at, of in named if of in factors.summed]
    longer = prod(shape[at] for at in summed)
    columns = [at for at, of in named if of not in of_rows and shape[at] > longer]
    for dimensions in (columns, summed):
        divided = [at for at in dimensions if shape[at] % num_replicas == 0]
        if divided:
            return max(divided, key=lambda at: shape[at])
    return None


def _dimensions(weights: Sequence[tuple[Value, int]], graph: Graph) -> Mapping[str, int]:
    """Return the dimensions along which weights, and what is alike, should be sharded, by name.

    What is sharded with a variable may be sharded with others, too. Large weights decide first.
    """
    found: dict[str, int] = {}
    reads, program = reads_of(graph), definitions(graph)
    for sharded in sorted(weights, key=lambda each: -each[0].type.bytes):
        given = [sharded]
        while given:
            alike = propagate_sharding(program, [given], graph.num_replicas)
            new = {
                name: alike[value]
                for name, values in reads.items()
                for value in values
                if value in alike and name not in found
            }
            found |= new
            given = [(value, along) for name, along in new.items() for value in reads[name]]
    return found


@kept_analysis
def reads_of(graph: Graph) -> Mapping[str, Sequence[Value]]:
    """Return the results of each variable's reads, by the variable's name."""
    found: dict[str, list[Value]] = {}
    for node in walk(graph):
        if node.op is READ:
            found.setdefault(variable_named_by(node).name, []).extend(node.results)
    return found
