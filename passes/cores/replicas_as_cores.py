"""Compute a product of few rows where the shards of its weights are, as cores of a replica would.

With sharded parameters, each replica gathers the weights of a product, and the gradient of the
weights is reduced. If a batch has few rows and the weights are large, such as the logits of a large
vocabulary or of many classes, it takes fewer bytes to gather the rows. Below, R is the number of
replicas, and each has n rows.

Before:  %w = all_gather(%shard) {axis=1, ..} : f32[d,v]     %y = jax.dot_general(%x, %w) : f32[n,v]
         %e = jax.reduce_sum(%y) {axes=(1,), ..} : f32[n]
         %g = jax.dot_general(%x, %u) : f32[d,v]             %s = reduce_scatter(%g) {axis=1, ..}
After:   %a = all_gather(%x) {axis=0, ..} : f32[R n,d]       %y = jax.dot_general(%a, %shard)
         %t = jax.reduce_sum(%y) {axes=(1,), ..} : f32[R n]  %e = reduce_scatter(%t) {axis=0, ..}
         %g = jax.dot_general(%a, %u) : f32[d,v/R]           %s = as_shard(%g) {axis=1, ..}

How it works. `rows_of_replicas.py` finds the part of the graph that computes on the columns of the
product, and what it is for the rows of all replicas. That is a program of one replica, whose cores
are the replicas: they have shards of the weights, and of the rows. `split_over_cores.py` chooses
how each node is computed, and its operations over cores become operations over replicas. So the
largest class is found, and a class is looked up, on shards, as over cores.

A loop over microbatches takes gathered weights, and its sums of gradients are reduced behind it.
Both move into the loop if its products are then computed on shards (`microbatch_loops.py`).

The part is replaced if that sends `saving` times fewer bytes, and `fewest_bytes` fewer.

Left alone: parts in which a replica needs its own term of a sum before the reduction, such as a
norm of its own gradient; and weights in shards over groups of replicas.

The layouts are those of the vocabulary in Megatron-LM (Shoeybi et al., 2019, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: the parameters of an operation

from graphdist.ir import ops
from graphdist.ir.analyses import producer_of, values_behind
from graphdist.ir.collective_bytes import collective_of, collectives_of
from graphdist.ir.factors import Factors
from graphdist.ir.graph import Graph, Node, Op, Operand, TypedOp, Value
from graphdist.ir.op_parameters import AlongAxis, OverCores
from graphdist.ir.operation_table import ELEMENTWISE, factors_of
from graphdist.ir.rewrite import Copier, map_nested
from graphdist.ir.source import Source
from graphdist.ir.types import MIRRORED, PER_REPLICA, sharded
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.cores.microbatch_loops import MicrobatchLoop
from graphdist.passes.cores.rows_of_replicas import (
    NAME,
    PartForAllRows,
    ProductOfFewRows,
    RowsOfReplicas,
)
from graphdist.passes.cores.separate_rows import separate_rows
from graphdist.passes.cores.split_over_cores import on_one_core

_Sent: TypeAlias = tuple[float, float]
"""The bytes that are sent before, and after."""
_PRODUCT = "jax.dot_general"
_MOVES = ("jax.transpose", "jax.reshape")
_OVER_REPLICAS: dict[Op, TypedOp[Any]] = {
    ops.ALL_GATHER_OVER_CORES: ops.ALL_GATHER,
    ops.ALL_REDUCE_OVER_CORES: ops.ALL_REDUCE,
    ops.ALL_TO_ALL_OVER_CORES: ops.ALL_TO_ALL,
    ops.INDEX_ON_CORE: ops.INDEX_ON_REPLICA,
    ops.KEEP_ROWS_OF_CORE: ops.KEEP_ROWS_OF_REPLICA,
    ops.REDUCE_SCATTER_OVER_CORES: ops.REDUCE_SCATTER,
    ops.SLICE_OF_CORE: ops.OWN_SLICE,
}
"""The operation over replicas for each operation over cores."""


@dataclass(frozen=True, slots=True)
class ReplicasAsCores:
    """The pass; it has to send `saving` times fewer bytes, and `fewest_bytes` fewer.

    `place` places the conversions of a changed graph again: a gather that served the product, and
    others, may now be needed by what can use a shard, such as the norm of a variable.
    """

    saving: int
    fewest_bytes: int = 0
    place: Callable[[Graph], Graph] = lambda graph: graph
    most_bytes: int = 2**30
    """A product with a larger result is left to `compute_in_chunks`, which holds less of it."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with products computed on shards of their weights."""
        if graph.num_replicas == 1 or graph.num_groups > 1:
            return graph
        told: list[str] = []
        divided = self._everywhere_divided(graph, told)
        return self.place(divided) if told else graph

    def chosen(self, graph: Graph) -> list[str]:
        """Return the products that are computed on shards of their weights, with the bytes."""
        found: list[str] = []
        if graph.num_replicas > 1 and graph.num_groups == 1:
            self._everywhere_divided(graph, found)
        return found

    def _everywhere_divided(self, graph: Graph, told: list[str]) -> Graph:
        """Return a graph with products on shards, in nested graphs, too; add what is told."""
        nested = map_nested(graph, lambda inner: self._everywhere_divided(inner, told))
        return self._divided_in_loops(self._divided(nested, told), told)

    def _divided_in_loops(self, graph: Graph, told: list[str]) -> Graph:
        """Return a graph whose loops over microbatches have products on shards."""
        copier, reduced = Copier(NAME), dict[Node, Value]()
        for node in graph.nodes:
            if node in reduced:
                copier.put(node.results, (reduced[node],))
                continue
            loop = MicrobatchLoop.of(node, graph)
            on_shards = None if loop is None else self._loop_on_shards(loop, copier, told)
            if on_shards is None:
                copier.copy(node)
                continue
            loop, results = on_shards
            copier.put(node.results, results)
            reduced |= loop.reduced(results)
        changed = copier.changed(graph)
        return graph if changed is graph else eliminate_dead_code(changed)

    def _loop_on_shards(
        self, loop: MicrobatchLoop, copier: Copier, told: list[str]
    ) -> tuple[MicrobatchLoop, Sequence[Value]] | None:
        """Add a loop with products on shards; return what moved into it, and its results.

        Return None if that saves too little.
        """
        while loop.gathers:
            trial, found = Copier(NAME), list[str]()
            trial.put(tuple(copier.environment), copier.environment.values())
            _, moved = loop.add(trial)
            *before, node = trial.nodes
            body = self._divided(eliminate_dead_code(node.graphs[0]), found)
            fewer = loop.without(moved, body.nodes)
            if found and fewer != loop:
                loop = fewer
                continue
            sent = loop.bytes_sent, loop.length * (_bytes_sent(body) - _bytes_sent(loop.body))
            if not found or self._saves_little(*sent, loop.length):
                return None
            told.append(_told(sent, loop.weights, loop.node.source))
            for each in before:
                copier.keep(each, each.operands, each.graphs)
            return loop, copier.keep(node, node.operands, (body,))
        return None

    def _divided(self, graph: Graph, told: list[str]) -> Graph:
        """Return a graph, without nested graphs, with products on shards; add what is told of them.

        The products of one gather are tried together, then each alone, the largest weights first.
        """
        if not self._groups(graph):
            return graph
        new, tried = eliminate_dead_code(separate_rows(graph, NAME)), set[frozenset[Node]]()
        changed = graph
        while True:
            groups = [each for each in self._groups(new) if _nodes(each) not in tried]
            if not groups:
                return changed
            products = max(groups, key=lambda each: (each[0].weights.type.bytes, len(each)))
            tried.add(_nodes(products))
            on_shards = self._on_shards(new, products)
            if on_shards is not None:
                new = changed = on_shards.changed_graph()
                first = products[0]
                told.append(_told(on_shards.sent, [first.weights], first.node.source))

    def _groups(self, graph: Graph) -> list[list[ProductOfFewRows]]:
        """Return the products of few rows, those of one gather together, and each alone."""
        groups: dict[Node, list[ProductOfFewRows]] = {}
        for node in graph.nodes:
            found = self._product(node, graph)
            if found is not None:
                gather, product = found
                groups.setdefault(gather, []).append(product)
        together = [_independent(products, graph) for products in groups.values()]
        alone = [[product] for products in groups.values() for product in products]
        return [each for each in together if len(each) > 1] + alone

    def may_divide(self, node: Node, graph: Graph) -> bool:
        """Return whether a node is such a product."""
        is_on_replicas = graph.num_replicas > 1 and graph.num_groups == 1
        return is_on_replicas and self._product(node, graph) is not None

    def _product(self, node: Node, graph: Graph) -> tuple[Node, ProductOfFewRows] | None:
        """Return a node as a product of few rows with gathered weights, behind their gather."""
        factors = factors_of(node) if node.op.name == _PRODUCT else None
        if factors is None or node.results[0].type.bytes > self.most_bytes:
            return None
        for index, weights in enumerate(node.operands):
            rows = node.operands[1 - index]
            gather = _gather_of(weights, graph) if self._may_save(rows, weights, graph) else None
            if gather is not None:
                found = _factors_of_product(node, factors, index, graph.num_replicas)
                return None if found is None else (gather, ProductOfFewRows(node, weights, *found))
        return None

    def _may_save(self, rows: Operand, weights: Operand, graph: Graph) -> bool:
        gathered = graph.num_replicas * rows.type.bytes
        is_fewer = self.saving * gathered <= weights.type.bytes
        return is_fewer and weights.type.bytes - gathered >= self.fewest_bytes

    def _saves_little(self, before: float, after: float, times: int = 1) -> bool:
        """Return whether collectives, in so many iterations, would save too few bytes."""
        return self.saving * after > before or before - after < max(times * self.fewest_bytes, 1)

    def _on_shards(self, graph: Graph, products: Sequence[ProductOfFewRows]) -> _OnReplicas | None:
        """Return the part of products on shards; None if that saves too little."""
        found = RowsOfReplicas(graph, products)
        if not found.find():
            return None
        part = found.for_all_rows()
        core = eliminate_dead_code(
            on_one_core(
                part.graph,
                [each.layout for each in part.inputs],
                [each.layout for each in part.outputs],
                part.wanted,
            )
        )
        exchanges = [node for node in core.nodes if isinstance(node.params, OverCores)]
        if any(node.op not in _OVER_REPLICAS for node in exchanges):
            return None
        before = sum(collective_of(node).bytes_sent for node in part.replaced)
        after = sum(
            collective_of(node).bytes_sent
            for node in exchanges
            if node.op.is_collective and not _is_of_lookups(node, core, part, graph)
        )
        if self._saves_little(before, after):
            return None
        return _OnReplicas(graph, part, core, (before, after))


def _bytes_sent(graph: Graph) -> float:
    return sum(each.times * each.bytes_sent for each in collectives_of(graph))


def _told(sent: _Sent, weights: Sequence[Operand], at: Source) -> str:
    """Return what is sent, in place of what."""
    before, after = sent
    names = " and ".join(f"{each.type.dtype}{list(each.type.shape)}" for each in weights)
    return f"{after:,.0f} bytes in place of {before:,.0f} of {names} at {at}"


def _independent(products: Sequence[ProductOfFewRows], graph: Graph) -> list[ProductOfFewRows]:
    """Return the products that do not depend on the first ones."""
    found: list[ProductOfFewRows] = []
    for product in products:
        behind = values_behind(graph, product.node.operands)
        if behind.isdisjoint(each.node.results[0] for each in found):
            found.append(product)
    return found


def _nodes(products: Sequence[ProductOfFewRows]) -> frozenset[Node]:
    return frozenset(each.node for each in products)


def _gather_of(weights: Operand, graph: Graph) -> Node | None:
    """Return what gathers a value, or values of which all replicas compute it one by one."""
    pending, seen = [weights], set[Operand]()
    while pending:
        made = producer_of(pending.pop(), graph)
        if made is None or made.results[0].type.layout is not MIRRORED:
            continue
        if made.op is ops.ALL_GATHER and ops.is_over_all(made):
            return made
        if made.op.name in ELEMENTWISE or made.op.name in _MOVES:
            pending += [each for each in made.operands if each not in seen]
            seen.update(made.operands)
    return None


def _factors_of_product(
    node: Node, factors: Factors, index: int, num_replicas: int
) -> tuple[int, int] | None:
    """Return the factors of the rows and of the columns of a product; None if it has not both."""
    of_rows, of_weights = factors.operands[1 - index], factors.operands[index]
    (of_result,), layout = factors.results, node.operands[1 - index].type.layout
    passed = [of for of in of_rows if of is not None and of in of_result and of not in of_weights]
    if layout is not PER_REPLICA:
        passed = [of for of in passed if layout is sharded(of_rows.index(of))]
    sizes = {
        of: size
        for of, size in zip(of_result, node.results[0].type.shape, strict=True)
        if of is not None and of in of_weights and of not in of_rows and size % num_replicas == 0
    }
    return (passed[0], max(sizes, key=lambda of: sizes[of])) if passed and sizes else None


def _is_of_lookups(node: Node, core: Graph, part: PartForAllRows, graph: Graph) -> bool:
    """Return whether a node reduces gradients of lookups, of which `lookups_on_shards` sends rows.

    They are added to the gradient of the product if its weights are the table, too.
    """
    if node.operands[0] not in core.inputs:
        return False
    made = producer_of(part.inputs[core.inputs.index(node.operands[0])].operand, graph)
    while made is not None and made.op.name == "jax.convert_element_type":
        made = producer_of(made.operands[0], graph)
    return made is not None and made.op.name == "jax.scatter-add"


class _OnReplicas:
    """A graph whose part is computed as by the cores of a replica; `core` is what one of them runs.

    The nodes of the part are added where the graph first needs one of their results. What they
    depend on then stands before them, as in the old graph.
    """

    def __init__(self, graph: Graph, part: PartForAllRows, core: Graph, sent: _Sent) -> None:
        self._graph, self._core, self.sent = graph, core, sent
        self._copier = Copier(NAME)
        self._inputs = {
            value: each.operand for value, each in zip(core.inputs, part.inputs, strict=True)
        }
        self._outputs: dict[Operand, Operand] = {
            each.replaced: value for value, each in zip(core.outputs, part.outputs, strict=True)
        }
        self._place = {node: place for place, node in enumerate(core.nodes)}
        self._now: dict[Operand, Operand] = {}
        self._exchanges: dict[Operand, Node] = {}
        """The all_to_alls of the part, by their results."""

    def changed_graph(self) -> Graph:
        """Return the changed graph."""
        copier = self._copier
        for node in self._graph.nodes:
            if not all(result in self._outputs for result in node.results):
                self._put(node.operands)
                if not self._is_undone(node):
                    copier.copy(node)
        self._put(self._graph.outputs)
        return eliminate_dead_code(copier.changed(self._graph))

    def _is_undone(self, node: Node) -> bool:
        """Return whether a node is an all_to_all that the part has undone, and leave it out.

        The product in front of another part may make the columns of which that one needs shards.
        """
        if node.op is not ops.ALL_TO_ALL:
            return False
        undone = self._exchanges.get(self._copier.now(node.operands)[0])
        if undone is None:
            return False
        now, before = ops.ALL_TO_ALL.of(node), ops.ALL_TO_ALL.of(undone)
        if (now.split_axis, now.concat_axis) != (before.concat_axis, before.split_axis):
            return False
        self._copier.put(node.results, undone.operands)
        return True

    def _put(self, operands: Sequence[Operand]) -> None:
        """Add what makes those operands that are outputs of the part."""
        for operand in operands:
            if operand in self._outputs and operand not in self._copier.environment:
                for node in self._needed(self._outputs[operand]):
                    self._add(node)
                self._copier.put([operand], [self._typed(operand)])

    def _needed(self, value: Operand) -> list[Node]:
        """Return the nodes of the core, not added yet, that a value needs, in order."""
        found, pending = set[Node](), [value]
        while pending:
            made = producer_of(pending.pop(), self._core)
            if made is not None and made not in found and made.results[0] not in self._now:
                found.add(made)
                pending += made.operands
        return sorted(found, key=lambda node: self._place[node])

    def _add(self, node: Node) -> None:
        shard = self._gathered_shard(node)
        if shard is not None:
            self._now[node.results[0]] = self._copier.now([shard])[0]
            return
        operands = [self._operand(operand) for operand in node.operands]
        if isinstance(node.params, OverCores):
            params = {**node.params, "group_size": self._graph.num_replicas}
            del params["num_cores"]
            if node.op is ops.REDUCE_SCATTER_OVER_CORES:
                params["reducer"] = "sum"
            op, copier = _OVER_REPLICAS[node.op], self._copier
            results = copier.add(op, operands, op.parameters.read(params, op.name), at=node)
            if op is ops.ALL_TO_ALL:
                self._exchanges[results[0]] = copier.nodes[-1]
        else:
            results = self._copier.again(node, operands)
        self._now.update(zip(node.results, results, strict=True))

    def _gathered_shard(self, node: Node) -> Operand | None:
        """Return the shard of which a node takes the slice after it is gathered; None if none is.

        So a gather whose other uses another part replaces is seen to have no more.
        """
        if node.op is not ops.SLICE_OF_CORE or node.operands[0] not in self._inputs:
            return None
        made = producer_of(self._inputs[node.operands[0]], self._graph)
        if made is None or made.op is not ops.ALL_GATHER or not ops.is_over_all(made):
            return None
        is_along = ops.ALL_GATHER.of(made).axis == ops.SLICE_OF_CORE.of(node).axis
        return made.operands[0] if is_along else None

    def _operand(self, operand: Operand) -> Operand:
        if operand in self._inputs:
            return self._copier.now([self._inputs[operand]])[0]
        return self._now.get(operand, operand)

    def _typed(self, replaced: Operand) -> Operand:
        """Return an output, as a shard where it replaces one."""
        now = self._operand(self._outputs[replaced])
        axis = replaced.type.sharded_along
        if axis is None or now.type.sharded_along == axis:
            return now
        made = producer_of(replaced, self._graph)
        assert made is not None
        params = AlongAxis(axis, group_size=self._graph.num_replicas)
        return self._copier.add(ops.AS_SHARD, (now,), params, at=made)[0]
