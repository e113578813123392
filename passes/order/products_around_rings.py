"""Compute products of large gathered operands shard by shard, while the cores exchange the shards.

An all_gather over cores ends before a product of its result begins, and a reduce_scatter begins
when its product has ended: nothing of a layer runs meanwhile. So the cores of a replica form a
ring, and each computes with the shard that it has while it gets the next one:

Before:  %g = all_gather_over_cores(%x) {axis=1}    %y = jax.dot_general(%g, %w)
After:   %a = rotate_over_cores(%x) {ahead=1}       %b = rotate_over_cores(%x) {ahead=-1}  ..
         %y0 = jax.dot_general(%x, %w)              %y1 = jax.dot_general(%a, %w)  ..
         %y = join_ahead(%y0, %y1, ..) {axis=1}

If the product sums the dimension of the shards, the other operand is sliced, and the terms are
added. In a reduce_scatter each core computes its term of another core's shard, adds it to the terms
that it got, and sends the sum on:

Before:  %p = jax.dot_general(%h, %w)               %s = reduce_scatter_over_cores(%p) {axis=1}
After:   %h2 = slice_ahead(%h) {axis=1, ahead=2}    %p2 = jax.dot_general(%h2, %w)
         %r1 = rotate_over_cores(%p2) {ahead=-1}    %p1 = ..                               ..

Shards go around in both directions, each half of the way, since links send both ways at once.
Sums of products are computed in the same way, as where two products make one gradient.

The method is that of Wang et al. 2023, Overlap communication with dependent computation via
decomposition in large deep learning models (ASPLOS), which XLA has for programs that it partitions
itself. Sums are rounded in another order than those of the collective. Left alone: values of fewer
than `smallest` bytes; gathered values of which something else than products is computed; a product
of two gathered values; and a product that sums the gathered dimension to a value that is the same
on all cores, since each core would round it in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import reduce

from graphdist.ir import ops
from graphdist.ir.analyses import operations, producer_of, walk
from graphdist.ir.flow import Vertex, reachable, uses
from graphdist.ir.graph import Graph, Node, Op, Operand, Value
from graphdist.ir.op_parameters import AlongAxisOverCores, RotatingOverCores, SlicingAhead
from graphdist.ir.operation_table import ADDITIONS, divides, factors_of, on_shards
from graphdist.ir.rewrite import Copier

NAME = "products_around_rings"
_PRODUCT = "jax.dot_general"
_ADD = ADDITIONS - {"jax.sub"}
_JOINED = (ops.ALL_GATHER_OVER_CORES, ops.ALL_REDUCE_OVER_CORES, ops.JOIN_AHEAD)
_OF_CORE = (
    ops.CORE_ID,
    ops.SLICE_OF_CORE,
    ops.SLICE_AHEAD,
    ops.REDUCE_SCATTER_OVER_CORES,
    ops.ALL_TO_ALL_OVER_CORES,
    ops.EXCHANGE_BORDERS,
    ops.ADD_BORDERS,
    ops.INDEX_ON_CORE,
    ops.KEEP_ROWS_OF_CORE,
)
"""The operations that give each core a value of its own."""


@dataclass(frozen=True, slots=True)
class ProductsAroundRings:
    """The pass; values of fewer than `smallest` bytes are gathered and reduced at once."""

    smallest: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with products of shards, in place of products of gathered values."""
        names = operations(graph)
        if graph.num_cores == 1 or _PRODUCT not in names or not _ADD & names:
            return graph
        addition = next(n.op for n in walk(graph) if n.op.name in _ADD)
        return self._changed(graph, addition, _different(graph))

    def _changed(self, graph: Graph, addition: Op, different: Set[Vertex]) -> Graph:
        users = _users(graph)
        found = {
            node.results[0]: node
            for node in graph.nodes
            if node.op is ops.ALL_GATHER_OVER_CORES
            and self._is_split(node, users, graph, different)
        }
        gathers = {
            value: node
            for value, node in found.items()
            if not any(_takes_others(user, value, found) for user in users[value])
        }
        rings = _Rings(gathers, addition)
        sums = {
            node: terms
            for node in graph.nodes
            if node.op is ops.REDUCE_SCATTER_OVER_CORES
            and node.operands[0].type.bytes >= self.smallest
            and (terms := _terms(node, users, graph, rings)) is not None
        }
        dead = {each for terms in sums.values() for each in terms}
        for node in graph.nodes:
            if node in sums:
                rings.put(node.results, [rings.scattered(node, sums[node])])
            elif node.results and node.results[0] in gathers:
                rings.gather(node)
            elif any(type(each) is Value and each in gathers for each in node.operands):
                rings.put(node.results, [rings.product(node)])
            elif node not in dead:
                rings.copy(
                    node, tuple(self._changed(each, addition, different) for each in node.graphs)
                )
        return rings.changed(graph)

    def _is_split(
        self,
        gather: Node,
        users: dict[Value, list[Node]],
        graph: Graph,
        different: Set[Vertex],
    ) -> bool:
        """Return whether all that uses a gathered value are products that can be split."""
        (value,) = gather.results
        using = users.get(value, [])
        return (
            value.type.bytes >= self.smallest
            and value not in graph.outputs
            and bool(using)
            and all(
                (factor := _factor(node, value, gather)) is not None
                and (not _sums(node, factor) or node.results[0] in different)
                for node in using
            )
        )


def _different(graph: Graph) -> Set[Vertex]:
    """Return the values of which each core of a replica has one of its own."""
    variables = zip(graph.variables, graph.inputs, strict=False)
    shards = [value for variable, value in variables if variable.core is not None]
    nodes = list(walk(graph))
    own = [result for node in nodes if node.op in _OF_CORE for result in node.results]
    joined = {result for node in nodes if node.op in _JOINED for result in node.results}
    return reachable(uses(graph), [*shards, *own], without=joined)


def _sums(product: Node, factor: int) -> bool:
    factors = factors_of(product)
    return factors is not None and factor not in factors.results[0]


def _users(graph: Graph) -> dict[Value, list[Node]]:
    users: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            if type(operand) is Value:
                users.setdefault(operand, []).append(node)
    return users


def _takes_others(product: Node, value: Value, gathered: Mapping[Value, Node]) -> bool:
    """Return whether a product takes one of the gathered values beside this one."""
    return any(
        type(each) is Value and each is not value and each in gathered for each in product.operands
    )


def _factor(product: Node, value: Value, gather: Node) -> int | None:
    """Return the factor of a product along which one of its operands was gathered.

    None if it is no product, or both of its operands are this value, or the shards do not divide.
    """
    params = ops.ALL_GATHER_OVER_CORES.of(gather)
    if product.op.name != _PRODUCT or product.operands.count(value) != 1:
        return None
    factors = factors_of(product)
    if factors is None or _is_over_replicas(product):
        return None
    factor = factors.operands[product.operands.index(value)][params.axis]
    if factor is None or not divides(product, factors, factor, params.num_cores):
        return None
    return factor


def _is_over_replicas(node: Node) -> bool:
    return any(each.type.sharded_along is not None for each in (*node.operands, *node.results))


def _terms(
    scatter: Node, users: dict[Value, list[Node]], graph: Graph, rings: _Rings
) -> tuple[Node, ...] | None:
    """Return the nodes that add up products to what is reduced, the last one first.

    None if it is no sum of products, or if something else uses one of them.
    """
    axis = ops.REDUCE_SCATTER_OVER_CORES.of(scatter).axis
    found, pending = list[Node](), [scatter.operands[0]]
    while pending:
        value = pending.pop()
        node = producer_of(value, graph) if type(value) is Value else None
        if node is None or len(users[value]) != 1 or value in graph.outputs:  # type: ignore[index]
            return None
        found.append(node)
        if node.op.name in _ADD:
            pending += node.operands
        elif node.op.name != _PRODUCT or not _is_cut(node, axis, scatter, rings):
            return None
    return tuple(found)


def _is_cut(product: Node, axis: int, scatter: Node, rings: _Rings) -> bool:
    """Return whether shards of a product along a dimension are products of an operand's shards."""
    factors, cores = factors_of(product), ops.REDUCE_SCATTER_OVER_CORES.of(scatter).num_cores
    if factors is None or _is_over_replicas(product) or rings.takes(product):
        return False
    factor = factors.results[0][axis]
    return factor is not None and divides(product, factors, factor, cores)


class _Rings(Copier):
    """The builder of a graph whose gathered values stay in the shards that go around the ring."""

    def __init__(self, gathers: dict[Value, Node], addition: Op) -> None:
        super().__init__(NAME)
        self._gathers, self._addition = gathers, addition
        self._shards: dict[Operand, dict[int, Operand]] = {}
        """The shards of gathered values, by the places that their cores are ahead."""
        self._slices: dict[tuple[Operand, int, int], Operand] = {}

    def takes(self, node: Node) -> bool:
        """Return whether a node takes a gathered value."""
        return any(type(each) is Value and each in self._gathers for each in node.operands)

    def gather(self, node: Node) -> None:
        """Send the shards of a value around the ring, in both directions."""
        cores = ops.ALL_GATHER_OVER_CORES.of(node).num_cores
        (own,) = self.now(node.operands)
        shards = {0: own}
        for ahead in _outwards(cores):
            step = 1 if ahead > 0 else -1
            shards[ahead] = self._rotated(shards[ahead - step], step, cores, node)
        self._shards[node.results[0]] = shards

    def product(self, node: Node) -> Operand:
        """Return a product of a gathered value, which is computed shard by shard."""
        index = next(i for i, each in enumerate(node.operands) if each in self._shards)
        value, gather = node.operands[index], self._gathers[node.operands[index]]  # type: ignore[index]
        factors, factor = factors_of(node), _factor(node, value, gather)  # type: ignore[arg-type]
        assert factors is not None, "products were chosen by their factors"
        assert factor is not None, "products were chosen by their factors"
        cores = ops.ALL_GATHER_OVER_CORES.of(gather).num_cores
        along = factors.dimension(factors.results[0], factor)
        other = factors.dimension(factors.operands[1 - index], factor)
        found = dict[int, Operand]()
        for ahead, shard in self._shards[value].items():
            operands = list(self.now(node.operands))
            operands[index] = shard
            if other is not None:
                operands[1 - index] = self._slice(operands[1 - index], other, ahead, cores, node)
            (found[ahead % cores],) = on_shards(node, operands, factor, cores, self)
        if along is None:
            return reduce(lambda total, term: self._add(total, term, node), found.values())
        params = AlongAxisOverCores(along, num_cores=cores)
        return self.add(ops.JOIN_AHEAD, [found[i] for i in range(cores)], params, at=node)[0]

    def scattered(self, scatter: Node, terms: Sequence[Node]) -> Operand:
        """Return the core's shard of a sum, to which each core on the way adds its terms."""
        cores = ops.REDUCE_SCATTER_OVER_CORES.of(scatter).num_cores
        total = self._term(scatter, terms, 0)
        for step in (1, -1):
            ways = [ahead for ahead in _outwards(cores) if ahead * step > 0]
            arriving: Operand | None = None
            for ahead in reversed(ways):
                own = self._term(scatter, terms, ahead)
                arriving = own if arriving is None else self._add(arriving, own, scatter)
                arriving = self._rotated(arriving, -step, cores, scatter)
            if arriving is not None:
                total = self._add(total, arriving, scatter)
        return total

    def _term(self, scatter: Node, terms: Sequence[Node], ahead: int) -> Operand:
        """Return this core's term of the shard of the core that is `ahead` places ahead."""
        params = ops.REDUCE_SCATTER_OVER_CORES.of(scatter)
        made = dict[Operand, Operand]()
        for node in reversed(terms):
            if node.op.name in _ADD:
                left, right = (made[each] for each in node.operands)
                made[node.results[0]] = self._add(left, right, node)
                continue
            factors, operands = factors_of(node), list(self.now(node.operands))
            assert factors is not None, "terms are products with factors"
            factor = factors.results[0][params.axis]
            assert factor is not None, "terms are cut along a factor"
            for index, dimensions in enumerate(factors.operands):
                if factor in dimensions:
                    along = dimensions.index(factor)
                    operands[index] = self._slice(
                        operands[index], along, ahead, params.num_cores, node
                    )
            (made[node.results[0]],) = on_shards(node, operands, factor, params.num_cores, self)
        return made[scatter.operands[0]]

    def _rotated(self, operand: Operand, ahead: int, cores: int, at: Node) -> Operand:
        params = RotatingOverCores(ahead, num_cores=cores)
        return self.add(ops.ROTATE_OVER_CORES, (operand,), params, at=at)[0]

    def _slice(self, operand: Operand, axis: int, ahead: int, cores: int, at: Node) -> Operand:
        params = SlicingAhead(axis, ahead % cores, num_cores=cores)
        key = (operand, axis, params.ahead)
        if key not in self._slices:
            self._slices[key] = self.add(ops.SLICE_AHEAD, (operand,), params, at=at)[0]
        return self._slices[key]

    def _add(self, left: Operand, right: Operand, at: Node) -> Operand:
        return self.add(self._addition, (left, right), at=at, types=[left.type])[0]


def _outwards(cores: int) -> Iterator[int]:
    """Yield how many places ahead other cores are, the nearest ones first, both ways in turn.

    >>> list(_outwards(4)), list(_outwards(5))
    ([1, -1, 2], [1, -1, 2, -2])
    """
    for distance in range(1, cores // 2 + 1):
        yield distance
        if 2 * distance < cores:
            yield -distance
