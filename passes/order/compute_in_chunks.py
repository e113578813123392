"""Compute very large values chunk by chunk, forward and backward pass in one loop.

The logits of a large vocabulary, tokens times vocabulary, are the largest values of a step: the
loss holds them as the product, in float32, as exponentials and as their gradient. Each of these
values is used by row only, and only the loss and the gradients of the product's operands leave. So
a loop computes all of it for one chunk of the rows after the other. Only one chunk is held at a
time, and nothing is computed twice.

Before:  %l = jax.dot_general(%h, %w) : f32[t,v]    %e = jax.exp(%l) : f32[t,v]
         %s = jax.reduce_sum(%e) {axes=(1,)} : f32[t]    %g = jax.mul(..) : f32[t,v]
         %dw = jax.dot_general(%h, %g) : f32[d,v]
After:   %dw, %p = scan([zeros], %h, %w, [0, 1, .., C-1]) {
           %c = take_part(%h, %i) {axis=0, count=C}    %l = jax.dot_general(%c, %w) : f32[t/C,v] ..
           %t = jax.dot_general(%c, %g) : f32[d,v]    %n = jax.add(%sum, %t)  return %n, %s }
         %s = join_parts(%p) {axis=0}

How it works. The loop begins with a product whose result takes more than `largest` bytes and more
than one of the operands. Its nodes are those between the product and the last node that uses a
value of this size. Nodes between, such as those of the losses by row, come along, since the
backward pass needs their results. So do nodes that make a value of this size for the loop alone,
such as labels as one-hot vectors. The table of operations says how the chunked dimension passes
through each node. A value of which only a row is needed is taken by chunks; a term of a sum over
the rows is added up in a carry; any other result is stacked, and joined behind the loop. The fewest
chunks are taken of which each is small enough. The loss is left alone if no number of chunks from
there to four times as many divides the rows.

The terms of a sum over the rows are added in the dtype of the result, as in a loop that a user
writes over chunks. In bfloat16 the sum of C terms is rounded C times.

Left alone: what is no loss, whose scores the forward pass reduces or searches along another
dimension than the rows. The hidden values of a layer are only multiplied: in chunks they would be
products of fewer rows, and a sum of the weights' gradients in memory, for less memory than a loss
has. Further, a large value that leaves, or of which a node needs all rows; a backward pass that
depends on the sum over all rows, such as that of the square of a loss; an operation between that is
not the loss's, such as a product of small values, a loop or a print; products of shards that go
around the ring of a replica's cores (`products_around_rings.py`); and products of few rows, which
are computed on shards of their weights (`replicas_as_cores.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

import numpy as np

from graphdist.ir.analyses import (
    has_effect,
    operations,
    places,
    producer_of,
    producers,
    users,
    walk,
)
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Op, Operand, Value
from graphdist.ir.op_parameters import Holding, Joining, Scanning
from graphdist.ir.operation_table import divides, factors_of
from graphdist.ir.ops import (
    CONSTANT,
    JOIN_PARTS,
    ROTATE_OVER_CORES,
    SCAN,
    SLICE_AHEAD,
)
from graphdist.ir.rewrite import Copier
from graphdist.ir.types import Type, is_inexact
from graphdist.passes.cores.replicas_as_cores import ReplicasAsCores
from graphdist.passes.order.chunk_body import ChunkBody
from graphdist.passes.order.nodes_in_order import NodesInOrder

NAME = "compute_in_chunks"

_PRODUCT, _BROADCAST, _SUMS = "jax.dot_general", "jax.broadcast_in_dim", ("jax.add", "jax.add_any")
_SEARCHES = ("jax.argmax", "jax.argmin", "jax.top_k")

_MORE_CHUNKS = 4
"""Up to so many times as many chunks as are needed are taken: products of few rows are slow."""


@dataclass(frozen=True, slots=True)
class ComputeInChunks:
    """The pass; no value takes more than `largest` bytes in one chunk.

    It leaves alone what `dividing` computes on shards of weights.
    """

    largest: int
    dividing: ReplicasAsCores | None = None

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with what follows each large product computed in chunks."""
        return self._chunked(graph, False) if _PRODUCT in operations(graph) else graph

    def _chunked(self, graph: Graph, is_backward: bool) -> Graph:
        """Return a graph in chunks; `is_backward` says whether a backward pass runs it."""
        chunked = graph = self._in_nested(graph, is_backward)
        while (more := self._with_loops(chunked, is_backward)) is not chunked:
            chunked = more  # what stood in the way of a loss may be in a loop now
        return graph if chunked is graph else self._in_nested(chunked, is_backward)

    def _in_nested(self, graph: Graph, is_backward: bool) -> Graph:
        if not any(node.graphs for node in graph.nodes):
            return graph
        copier = Copier()
        for node in graph.nodes:
            is_inner = is_backward or node.source.is_transposed
            copier.copy(node, tuple(self._chunked(each, is_inner) for each in node.graphs))
        return copier.changed(graph)

    def _with_loops(self, graph: Graph, is_backward: bool) -> Graph:
        """Return the graph, without nested graphs, with loops; each product is tried once."""
        left_alone = set[Node]()
        while True:
            large = (node for node in graph.nodes if self._is_large(node, graph))
            for product in large:
                if product in left_alone:
                    continue
                ways = self._ways(graph, product, is_backward)
                found = next(filter(_Chunks.is_possible, ways), None)
                if found is not None:
                    graph = found.applied()
                    break
                left_alone.add(product)
            else:
                return graph

    def declined(self, graph: Graph) -> list[str]:
        """Return the large products that are computed at once, and why."""
        reasons = []
        for node in graph.nodes:
            reasons += [reason for nested in node.graphs for reason in self.declined(nested)]
            if self._is_large(node, graph):
                ways = [way for way in self._ways(graph, node, False) if way.is_narrowed()]
                if ways and all(way.problem for way in ways):
                    size = node.results[0].type.bytes
                    why = "; ".join(dict.fromkeys(way.problem for way in ways))
                    reasons.append(f"{size:,} bytes at {node.source} at once: {why}")
        return reasons

    def _is_large(self, node: Node, graph: Graph) -> bool:
        if node.op.name != _PRODUCT or _is_of_ring(node, graph):
            return False
        if self.dividing is not None and self.dividing.may_divide(node, graph):
            return False
        size = node.results[0].type.bytes
        return size > max(self.largest, min(operand.type.bytes for operand in node.operands))

    def _ways(self, graph: Graph, product: Node, is_backward: bool) -> Iterator[_Chunks]:
        """Yield how to compute in chunks along each dimension of a product, possible or not."""
        for axis in range(len(product.results[0].type.shape)):
            yield _Chunks(graph, product, axis, self.largest, is_backward)


def _is_of_ring(product: Node, graph: Graph) -> bool:
    """Return whether an operand is a shard that goes around the ring of cores, or goes with one."""
    made = (producer_of(operand, graph) for operand in product.operands)
    return any(node is not None and node.op in (ROTATE_OVER_CORES, SLICE_AHEAD) for node in made)


class _Chunks:
    """The nodes that are computed in chunks, and how.

    `problem` says why they cannot be; it is "" if they can.
    """

    def __init__(
        self, graph: Graph, product: Node, axis: int, largest: int, is_backward: bool
    ) -> None:
        """Find the nodes, the dimension along which each value is chunked, and the count."""
        self.graph, self.product, self.is_backward = graph, product, is_backward
        self.place = places(graph)
        self.factors_of = cache(factors_of)
        self.problem = ""
        self.with_rows = self._with_rows(axis)
        """The values to which the chunked dimension of the product passes."""
        self.span = self._span()
        """The nodes from the product to the last one that touches a large value of rows."""
        self.behind = self._behind()
        """The values that depend on the product, as far as they are made in the span."""
        self.nodes = self._between()
        self.made = {result for node in self.nodes for result in node.results}
        self.factors: dict[Node, int] = {}
        """The factor of each node along which it is computed in chunks."""
        self.dimensions: dict[Operand, int] = {product.results[0]: axis}
        """The chunked dimension of each value that is made and needed in chunks."""
        self.later = self._postponed()
        self.count = 0
        self.problem = self.problem or self._divide() or self._problem_of_exits()
        if not self.problem:
            widest = max(value.type.bytes for value in self.dimensions)
            fewest, size = -(-widest // largest), product.results[0].type.shape[axis]
            most = min(_MORE_CHUNKS * fewest, size)
            counts = (count for count in range(fewest, most + 1) if size % count == 0)
            self.count = next(filter(self._divides, counts), 0)
            if not self.count:
                self.problem = (
                    f"dimension {axis} of {size} does not divide into {fewest} to "
                    f"{_MORE_CHUNKS * fewest} chunks"
                )

    def is_possible(self) -> bool:
        """Return whether the nodes are those of a loss, and can be computed in chunks."""
        return not self.problem and self.is_of_loss()

    def is_of_loss(self) -> bool:
        """Return whether the forward pass reduces or searches the large values by row.

        The backward pass of a layer reduces them, too, to the gradient of a bias.
        """
        return any(map(self._reduces_scores, self.nodes))

    def is_narrowed(self) -> bool:
        """Return whether the large values are computed with, and not only made and reduced.

        A weight's gradient is only made: whatever computes it has to hold it.
        """
        return any(
            any(map(self._is_large_of_rows, node.operands))
            and not any(map(self._is_large_of_rows, node.results))
            and not node.op.is_collective
            for node in self.nodes
        )

    def _reduces_scores(self, node: Node) -> bool:
        found = self.factors_of(node)
        is_backward = self.is_backward or node.source.is_transposed
        is_of_gradients = is_backward and not node.source.is_replayed
        if found is None or node.op.name == _PRODUCT or is_of_gradients:
            return False
        kept = {*found.results[0], None}
        scores = zip(node.operands, found.operands, strict=True)
        return any(
            node.op.name in _SEARCHES or not kept.issuperset(dims)
            for value, dims in scores
            if self._is_large_of_rows(value)
        )

    def _with_rows(self, axis: int) -> Mapping[Operand, int]:
        """Return each value to which dimension `axis` of the product passes, with its dimension.

        A large value behind a product of small ones ends the search, since these are no loss: else
        the rows of a batch would be followed through all layers.
        """
        found: dict[Operand, int] = {self.product.results[0]: axis}
        used_by, behind_small = users(self.graph), dict[Operand, Node]()
        reached = NodesInOrder(self.place, used_by[self.product.results[0]])
        for node in reached:
            dimensions = self._dimensions_behind(node, found)
            found.update(dimensions)
            reached.add(user for result in dimensions for user in used_by[result])
            small = next((behind_small[o] for o in node.operands if o in behind_small), None)
            is_large = any(o in found and self._is_large(o) for o in (*node.operands, *dimensions))
            if small is not None and is_large:
                self.problem = _of_small_values(small)
                break
            if small is None and node.op.name == _PRODUCT and not is_large:
                small = node
            if small is not None:
                behind_small.update(dict.fromkeys(node.results, small))
        return found

    def _dimensions_behind(self, node: Node, found: Mapping[Operand, int]) -> dict[Operand, int]:
        """Return the chunked dimensions of a node's results, given those of some operands."""
        factors = self.factors_of(node)
        if factors is None:
            return {}
        operands = zip(node.operands, factors.operands, strict=True)
        chunked = {dims[found[operand]] for operand, dims in operands if operand in found}
        factor = next(iter(chunked)) if len(chunked) == 1 else None
        return {
            result: dims.index(factor)
            for result, dims in zip(node.results, factors.results, strict=True)
            if factor is not None and factor in dims
        }

    def _span(self) -> Sequence[Node]:
        used_by, made_by = users(self.graph), producers(self.graph)
        large = [v for v in self.with_rows if type(v) is Value and self._is_large(v)]
        touching = (node for value in large for node in (made_by[value], *used_by[value]))
        last = max(map(self.place.__getitem__, touching))
        return self.graph.nodes[self.place[self.product] : last + 1]

    def _behind(self) -> set[Operand]:
        found: set[Operand] = set(self.product.results)
        for node in self.span:
            if _uses(node, found):
                found.update(node.results)
        return found

    def _is_large(self, operand: Operand) -> bool:
        return operand.type.size >= self.product.results[0].type.size

    def _touches_large(self, node: Node) -> bool:
        """Return whether a node uses or makes a large value of rows.

        The gradient of the product's weights may be as large, but has no rows.
        """
        return any(map(self._is_large_of_rows, (*node.operands, *node.results)))

    def _is_large_of_rows(self, operand: Operand) -> bool:
        return operand in self.with_rows and self._is_large(operand)

    def _between(self) -> list[Node]:
        """Return the nodes from the product to the last large value, in the order of the graph."""
        used_by = users(self.graph)
        chosen = set[Node]()
        for node in reversed(self.span):
            if self.behind.isdisjoint(node.results):
                continue
            used = (user for result in node.results for user in used_by[result])
            if self._touches_large(node) or any(user in chosen for user in used):
                chosen.add(node)
        return [node for node in self.span if node in chosen]

    def _postponed(self) -> list[Node]:
        """Return the nodes that stand between the chosen ones and have to run after the loop.

        These depend on the product, or have an effect and stand behind one that is postponed.
        """
        chosen, found = set(self.nodes), list[Node]()
        late = set(self.behind)
        for node in takewhile(lambda node: node is not self.nodes[-1], self.span):
            if node in chosen:
                continue
            if _uses(node, late) or (found and has_effect(node)):
                found.append(node)
                late.update(node.results)
        return found

    def _divide(self) -> str:
        """Find the factor of each node; return why there is none, or "" if each has one."""
        late = set[Operand](result for node in self.later for result in node.results)
        for node in self.nodes:
            found = self.factors_of(node)
            at = _at(node)
            if found is None or _uses(node, late):
                return f"{at} is not computed in chunks"
            if node.op.name == _PRODUCT and not self._touches_large(node):
                return _of_small_values(node)
            values = [
                *zip(node.operands, found.operands, strict=True),
                *zip(node.results, found.results, strict=True),
            ]
            chunked = {d[self.dimensions[v]] for v, d in values if v in self.dimensions}
            factor = next(iter(chunked)) if len(chunked) == 1 else None
            if factor is None or found.summed.get(factor, "sum") != "sum":
                return f"{at} needs all rows"
            if factor not in found.summed and any(factor not in dims for dims in found.results):
                return f"{at} has a result without rows"
            self.factors[node] = factor
            for value, dims in values:
                if factor in dims and value in self.made:
                    self.dimensions[value] = dims.index(factor)
                elif value in self.behind and value in node.operands and factor not in dims:
                    return f"{at} needs all rows"
        self._divide_large_operands(late)
        return ""

    def _divide_large_operands(self, late: set[Operand]) -> None:
        """Compute in chunks, too, the large values of rows that only the nodes of the loop use.

        An example is the gradient of the labels' scores, scattered to a value of all scores' size.
        """
        used_by = users(self.graph)
        reached = NodesInOrder(self.place, self._makers(self.nodes), is_reversed=True)
        for node in reached:
            if len(node.results) != 1 or node in self.factors or _uses(node, late):
                continue
            (result,), found = node.results, self.factors_of(node)
            if found is None or not self._is_large(result) or self._leaves(result):
                continue
            dimensions = {d for user in used_by[result] for d in self._chunked(result, user)}
            dimension = next(iter(dimensions)) if len(dimensions) == 1 else None
            factor = None if dimension is None else found.results[0][dimension]
            if dimension is not None and factor is not None:
                self.factors[node], self.dimensions[result] = factor, dimension
                reached.add(self._makers([node]))
        self.nodes = sorted(self.factors, key=self.place.__getitem__)
        self.made = {result for node in self.nodes for result in node.results}

    def _makers(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes that make the operands of nodes."""
        made_by = (producer_of(each, self.graph) for node in nodes for each in node.operands)
        return [node for node in made_by if node is not None]

    def _chunked(self, operand: Operand, user: Node) -> Iterator[int | None]:
        """Yield the chunked dimension of each use of an operand by a node; None if it is whole."""
        found = self.factors_of(user)
        assert found is not None
        for each, dims in zip(user.operands, found.operands, strict=True):
            if each is operand:
                yield found.dimension(dims, self.factors[user])

    def _problem_of_exits(self) -> str:
        for node in self.nodes:
            for result in node.results:
                if self._leaves(result) and result in self.dimensions and self._is_large(result):
                    return f"the value made at {node.source} is needed afterwards"
        if any(value not in self.dimensions for value in self._used_inside()):
            return "the backward pass needs the sum over all rows"
        has_sums = any(self._leaves(value) and value not in self.dimensions for value in self.made)
        if has_sums and (self._op(*_SUMS) is None or self._op(_BROADCAST) is None):
            return "the graph has no operation that adds"
        return ""

    def _used_inside(self) -> Iterator[Operand]:
        return (each for node in self.nodes for each in node.operands if each in self.made)

    def _leaves(self, result: Value) -> bool:
        """Return whether a value is needed outside of the loop."""
        used_by = users(self.graph)[result]
        return any(node not in self.factors for node in used_by) or result in self.graph.outputs

    def _op(self, *names: str) -> Op | None:
        return next((node.op for node in walk(self.graph) if node.op.name in names), None)

    def _divides(self, count: int) -> bool:
        return all(
            divides(node, found, factor, count)
            for node, factor in self.factors.items()
            if (found := self.factors_of(node)) is not None
        )

    def applied(self) -> Graph:
        """Return the graph with the loop in place of the nodes."""
        copier, last = Copier(NAME), self.nodes[-1]
        apart = {*self.nodes, *self.later}
        for node in self.graph.nodes:
            if node not in apart:
                copier.copy(node)
            if node is last:
                self._add_loop(copier)
                for postponed in self.later:
                    copier.copy(postponed)
        return copier.changed(self.graph)

    def _add_loop(self, copier: Copier) -> None:
        """Add the loop over the chunks, and what joins its stacked results."""
        body = ChunkBody(self.nodes, self.factors, self.count, self.product.source)
        exits = [result for node in self.nodes for result in node.results if self._leaves(result)]
        sums = [value for value in exits if value not in self.dimensions]
        stacks = [value for value in exits if value in self.dimensions]
        carries = [Value(value.type, value.hint) for value in sums]
        add, at = self._op(*_SUMS), self.product.source
        assert add is not None
        outputs: list[Operand] = []
        for carry, value in zip(carries, sums, strict=True):
            terms = (carry, body.environment[value])
            outputs += body.inside.add(add, terms, {}, at=at, types=[value.type])
        outputs += [body.environment[value] for value in stacks]
        numbers = Holding(np.arange(self.count, dtype=np.int32))
        operands = (
            *copier.now(tuple(body.taken)),
            *(self._zeros(copier, value) for value in sums),
            *copier.add(CONSTANT, (), numbers, at=at),
        )
        graph = Graph(
            name="body",
            stage=self.graph.stage,
            num_replicas=self.graph.num_replicas,
            inputs=(*body.taken.values(), *carries, body.number),
            nodes=tuple(body.inside.nodes),
            outputs=tuple(outputs),
        )
        params = Scanning(
            length=self.count,
            reverse=False,
            unroll=1,
            num_consts=len(body.taken),
            num_carry=len(carries),
        )
        results = copier.add(SCAN, operands, params, (graph,), at=at)
        copier.put(sums, results[: len(sums)])
        for value, stack in zip(stacks, results[len(sums) :], strict=True):
            axis = Joining(self.dimensions[value])
            copier.put([value], copier.add(JOIN_PARTS, (stack,), axis, at=at, hint=value.hint))

    def _zeros(self, builder: Builder, value: Value) -> Value:
        type, op = value.type, self._op(_BROADCAST)
        assert op is not None
        zero = Literal.of(0.0 if is_inexact(type.dtype) else 0, Type(type.dtype, ()))
        params = {"shape": type.shape, "broadcast_dimensions": (), "sharding": None}
        return builder.add(op, (zero,), params, at=self.product.source, types=[type])[0]


def _of_small_values(node: Node) -> str:
    return f"{_at(node)} is a product of small values, which is not a part of a loss"


def _at(node: Node) -> str:
    return f"{node.op.name} at {node.source}"


def _uses(node: Node, values: set[Operand]) -> bool:
    # Literals are slow to hash.
    return any(operand in values for operand in node.operands if type(operand) is Value)
