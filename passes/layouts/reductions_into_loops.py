"""Reduce gradients in each iteration of a loop, instead of their stack or sum after it.

A loop over layers stacks the gradients of all layers, and the stack is reduced after the loop, so
that each replica holds the full stack. If only shards of the reduced stack are used, each iteration
reduces the gradient of its own layer, and only shards are stacked. As many bytes are sent.

Before:  %gs = scan(..) { ..  return %g }   %c = convert(%gs)   %m = all_reduce(reshape(%c))
After:   %ts = scan(..) { ..  %t = all_reduce(convert(%g))  return %t }   %m = reshape(%ts)

A reduction is linear, so it may run before or after operations that move elements, pad them with
zeros or add them. The reduction moves before such operations, up to the stack. Elementwise
operations with literals stay before the reduction, and move into the loop with it. If a reduction
moves before an addition, the order of additions changes, and with it the last bits of the results.

A loop that adds up gradients, of microbatches or of the layer with the iteration's index, holds
unsharded sums while it runs. If the sums of a loop take more than `most_bytes`, each iteration
reduces its own gradient before the gradient is padded and added. Then the gradients of each
microbatch are sent, instead of their sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from graphdist.ir.analyses import has_zeros, operations, producer_of, use_counts, walk
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value, is_zero
from graphdist.ir.loops import Carry, Scan, ScanEdit
from graphdist.ir.operation_table import ADDITIONS, row_of
from graphdist.ir.ops import ALL_REDUCE, SCAN, TO_PARTIAL
from graphdist.ir.rewrite import Copier, map_nested
from graphdist.ir.types import MIRRORED
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.carried_sums import addition_to, mirrored_start
from graphdist.passes.layouts.elementwise_chains import add_resized, apply_chain, only_operand
from graphdist.passes.layouts.placed_values import is_full_reduction
from graphdist.passes.layouts.sharded_updates import UpdateSharding, choose_sharded_updates

NAME = "reductions_into_loops"

Maps: TypeAlias = tuple[Node, ...]
"""Elementwise operations on one value, in order."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value that is reduced after some elementwise operations."""

    value: Operand
    maps: Maps

    @property
    def bytes(self) -> int:
        """Return the number of bytes that are reduced."""
        dtype = self.maps[-1].results[0].type.dtype if self.maps else self.value.type.dtype
        return self.value.type._replace(dtype=dtype).bytes


@dataclass(frozen=True, slots=True)
class _Moved:
    """A node that moves from before a reduction to after it, with its new operands.

    None stands for an operand that does not change.
    """

    node: Node
    operands: tuple[_Leaf | _Moved | None, ...]


Tree: TypeAlias = _Leaf | _Moved


@dataclass(frozen=True, slots=True)
class _Loop:
    """The reductions that move into a loop, by the stacked or carried value."""

    stacked: dict[Value, tuple[Maps, Node]] = field(default_factory=dict)
    carried: dict[Value, tuple[Carry, Node, Node]] = field(default_factory=dict)
    """By the last value: the carry, the node that adds to it, and the reduction."""


@dataclass(frozen=True, slots=True)
class ReductionsIntoLoops:
    """The pass; an iteration reduces slices of at least `smallest` bytes before they are stacked.

    Sums that a loop carries may take `most_bytes` unsharded; None sets no limit.
    """

    sharding: UpdateSharding
    smallest: int = 0
    most_bytes: int | None = 0

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with reductions in the loops that compute their operands."""
        if graph.num_replicas == 1 or ALL_REDUCE.name not in operations(graph):
            return graph
        # This test is cheaper than the analysis, and often finds that nothing can move.
        reduced = {node.results[0] for node in walk(graph) if is_full_reduction(node)}
        if _Moves(reduced, self)(graph) is graph:
            return graph
        while True:
            placed, _ = choose_sharded_updates(graph, self.sharding, self.smallest)
            moved = _Moves(placed.sharded - placed.unsharded, self)(graph)
            if moved is graph:
                return graph
            graph = eliminate_dead_code(moved)
            if not _has_loops_in_loops(graph):
                return graph


@dataclass(frozen=True, slots=True)
class _Moves:
    """Moves the reductions whose results are among `sharded` into loops, where that is cheaper."""

    sharded: Collection[Value]
    options: ReductionsIntoLoops

    def __call__(self, graph: Graph) -> Graph:
        """Return a graph, nested or not, with reductions moved into its loops."""
        return map_nested(self._moved(graph), self)

    def _moved(self, graph: Graph) -> Graph:
        trees = {
            node: self._tree(node.operands[0], (), graph)
            for node in graph.nodes
            if is_full_reduction(node) and node.results[0] in self.sharded
        }
        loops = self._loops(trees, graph)
        moving = {result for loop in loops.values() for result in (*loop.stacked, *loop.carried)}
        trees = {
            node: tree
            for node, tree in trees.items()
            if self._is_in_parts(tree) or any(leaf.value in moving for leaf in _leaves(tree))
        }
        if not trees:
            return graph
        copier = Copier(NAME)
        builds = {node: _Building(node, graph, copier) for node in trees}
        leaves_of: dict[Node, list[tuple[_Leaf, _Building]]] = {}
        for reduction, tree in trees.items():
            for leaf in _leaves(tree):
                if (made := producer_of(leaf.value, graph)) is not None:
                    leaves_of.setdefault(made, []).append((leaf, builds[reduction]))
        for node in graph.nodes:
            if node in trees:
                copier.put(node.results, (builds[node].reduced(trees[node]),))
                continue
            if node in loops:
                copier.put(node.results, self._rebuilt(node, loops[node], graph, copier))
            else:
                copier.copy(node)
            # Each part is reduced as soon as it is computed, so that it is not held any longer.
            for leaf, build in leaves_of.get(node, ()):
                (value,) = copier.now((leaf.value,))
                build.leaves[leaf] = value if leaf.value in moving else build.of_leaf(leaf)
        return copier.changed(graph)

    def _tree(self, operand: Operand, maps: Maps, graph: Graph) -> Tree:
        """Return the nodes to move behind the reduction of an operand, and the values to reduce."""
        node = producer_of(operand, graph)
        if node is None or type(operand) is not Value or use_counts(graph)[operand] != 1:
            return _Leaf(operand, maps)
        if _is_of_each_replica(node):
            return self._tree(node.operands[0], maps, graph)
        row, place = row_of(node), only_operand(node)
        if row is None:
            return _Leaf(operand, maps)
        if row.is_elementwise and place is not None:
            return self._tree(node.operands[place], (node, *maps), graph)
        if row.only_moves and place is not None:
            return self._behind(node, (place,), maps, graph)
        if all(map(_is_linear, maps)):
            filled = _filled_up(node, graph)
            if filled is not None:
                return self._behind(node, (filled,), maps, graph)
            if self.options.sharding.reduces and node.op.name in ADDITIONS:
                return self._behind(node, (0, 1), maps, graph)
        return _Leaf(operand, maps)

    def _behind(self, node: Node, places: Sequence[int], maps: Maps, graph: Graph) -> Tree:
        operands = [
            self._tree(operand, maps, graph) if place in places else None
            for place, operand in enumerate(node.operands)
        ]
        moved, alone = _Moved(node, tuple(operands)), _Leaf(node.results[0], maps)
        # Never send more bytes than before.
        return moved if sum(leaf.bytes for leaf in _leaves(moved)) <= alone.bytes else alone

    def _is_in_parts(self, tree: Tree) -> bool:
        """Return whether a value has several large parts, each of which is then reduced alone."""
        sizes = [leaf.bytes for leaf in _leaves(tree)]
        is_large = min(sizes) >= self.options.smallest
        return len(sizes) > 1 and is_large and 2 * max(sizes) <= sum(sizes)

    def _loops(self, trees: Mapping[Node, Tree], graph: Graph) -> dict[Node, _Loop]:
        """Return the loops into which reductions move."""
        found: dict[Node, _Loop] = {}
        for reduction, leaf in ((node, leaf) for node in trees for leaf in _leaves(trees[node])):
            value, node = leaf.value, producer_of(leaf.value, graph)
            if type(value) is not Value or node is None or node.op is not SCAN:
                continue
            if use_counts(graph)[value] != 1:
                continue
            scan, loop = Scan(node), found.setdefault(node, _Loop())
            is_large = value.type.bytes >= self.options.smallest * scan.length
            is_stacked = any(result is value for _, result in scan.stacked)
            if is_stacked and is_large and scan.length > 1:
                loop.stacked[value] = leaf.maps, reduction
            for carry in scan.carries if self.options.sharding.reduces and not leaf.maps else ():
                addition = addition_to(carry, scan.body) if carry.last is value else None
                if addition is not None and mirrored_start(carry, reduction, graph) is not None:
                    loop.carried[value] = carry, addition, reduction
        for loop in found.values():
            bytes_carried = sum(last.type.bytes for last in loop.carried)
            if self.options.most_bytes is None or bytes_carried <= self.options.most_bytes:
                loop.carried.clear()
        return {node: loop for node, loop in found.items() if loop.stacked or loop.carried}

    def _rebuilt(self, node: Node, loop: _Loop, graph: Graph, copier: Copier) -> Sequence[Operand]:
        """Add the loop with the reductions inside."""
        scan = Scan(node, copier.now(node.operands))
        edit = ScanEdit(scan, NAME)
        additions: dict[Node, tuple[Value, Node]] = {}
        for last, (carry, addition, reduction) in loop.carried.items():
            start = mirrored_start(carry, reduction, graph)
            assert start is not None
            mirrored = last.type.with_layout(MIRRORED)
            edit.replace(carry.value, copier.now((start,))[0], mirrored)
            additions[addition] = carry.value, reduction
        for each in scan.body.nodes:
            if each not in additions:
                edit.inside.copy(each)
                continue
            carried, reduction = additions[each]
            build = _Building(reduction, scan.body, edit.inside)
            operands = [
                edit.environment[carried]
                if operand is carried
                else build.reduced(self._tree(operand, (), scan.body))
                for operand in each.operands
            ]
            edit.inside.put(each.results, edit.inside.again(each, operands, [carried.type]))
        for output, result in scan.stacked:
            if result in loop.stacked:
                maps, reduction = loop.stacked[result]
                build = _Building(reduction, scan.body, edit.inside)
                edit.stack(result, build.of_leaf(_Leaf(output, maps)))
        return edit.finish(copier)


def _has_loops_in_loops(graph: Graph) -> bool:
    """Return whether a reduction that moved into a loop may move into a loop nested in it."""
    loops = (node for node in walk(graph) if node.op is SCAN)
    return any(SCAN.name in operations(nested) for node in loops for nested in node.graphs)


def _is_of_each_replica(node: Node) -> bool:
    """Return whether a node is a `to_partial` of a per-replica value, which stays the same."""
    return node.op is TO_PARTIAL and node.operands[0].type.layout is not MIRRORED


def _leaves(tree: Tree) -> Iterator[_Leaf]:
    if isinstance(tree, _Leaf):
        yield tree
        return
    for operand in tree.operands:
        if operand is not None:
            yield from _leaves(operand)


def _is_linear(node: Node) -> bool:
    """Return whether a node is linear up to rounding: zero stays zero, a sum stays a sum."""
    row, place = row_of(node), only_operand(node)
    if node.op.name == "jax.convert_element_type":
        return True
    return row is not None and any(place in places for places in row.linear_in(node))


def _filled_up(node: Node, graph: Graph) -> int | None:
    """Return the index of the operand that a node pads with zeros; None if it pads none."""
    if node.op.name == "jax.pad" and is_zero(node.operands[1]):
        return 0
    if node.op.name == "jax.dynamic_update_slice" and has_zeros(node.operands[0], graph):
        return 1
    return None


@dataclass(frozen=True, slots=True)
class _Building:
    """Adds the nodes that replace a reduction: reductions of the leaves, then the moved nodes."""

    reduction: Node
    graph: Graph
    copier: Copier
    leaves: dict[_Leaf, Operand] = field(default_factory=dict)
    """The leaves that are reduced already."""

    def reduced(self, tree: Tree) -> Operand:
        """Return the reduced value of a tree."""
        if isinstance(tree, _Leaf):
            return self.leaves[tree] if tree in self.leaves else self.of_leaf(tree)
        node = tree.node
        new = [None if each is None else self.reduced(each) for each in tree.operands]
        (dtype,) = {operand.type.dtype for operand in new if operand is not None}
        operands = self.copier.now(
            [
                self._in_dtype(operand, dtype, node) if each is None else each
                for operand, each in zip(node.operands, new, strict=True)
            ]
        )
        type_ = node.results[0].type._replace(dtype=dtype)
        return add_resized(node, operands, type_, self.copier)

    def of_leaf(self, leaf: _Leaf) -> Operand:
        """Return a value after its elementwise operations and the reduction."""
        (value,) = self.copier.now((leaf.value,))
        value = apply_chain(leaf.maps, value, self.copier)
        return self.copier.again(self.reduction, (value,))[0]

    def _in_dtype(self, operand: Operand, dtype: str, of: Node) -> Operand:
        """Return an operand that is not reduced: an index, or zeros, which get the new `dtype`."""
        if operand.type.dtype != of.results[0].type.dtype or operand.type.dtype == dtype:
            return operand
        type_ = operand.type._replace(dtype=dtype)
        if type(operand) is Literal:
            return Literal.of(operand.value, type_)
        made = producer_of(operand, self.graph)
        assert made is not None
        zero = Literal.of(cast(Literal, made.operands[0]).value, type_.shaped(()))
        return add_resized(made, (zero,), type_, self.copier)
