"""Send less where a replica wants its own slice: XLA keeps these collectives on every backend.

* a replica's own slice of what it and the others gathered is what it gave;
* its own slice of a reduced value is all it needs of it: a reduce_scatter, half the bytes;
* gathering what a reduce_scatter left is the reduction of the whole.

Before:  %all = all_gather(%x) {axis=0, ..} : f32[8]   %mine = dynamic_slice(%all, replica_id * 4)
After:   %mine is %x

A slice is a replica's own if it is one of R equal ones along one dimension and begins at the
replica's number times its length, as `lax.dynamic_slice_in_dim` and NumPy's indexing write it. Left
alone: a reduced value that something else needs whole, a slice of one that something else needs,
slices along other dimensions than the one that was gathered, and what is reduced by max or min,
which no reduce_scatter does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

from graphdist.ir.analyses import operations, walk
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, REPLICA_ID
from graphdist.ir.rewrite import rewrite

NAME = "own_slices"

_COLLECTIVES = (ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER)
_INDEX = ("jax.mul", "jax.add", "jax.lt", "jax.select_n", "jax.convert_element_type")
_NUMBERS = ("i32", "u32", "i64", "u64")
"""The dtypes that hold the number of every replica, and its products with lengths."""
_LOOKED_AT = {*(op.name for op in (*_COLLECTIVES, REPLICA_ID)), *_INDEX, "jax.dynamic_slice"}


def own_slices(graph: Graph) -> Graph:
    """Return the graph without collectives of more than each replica wants."""
    # Every rule ends in one of these.
    if operations(graph).isdisjoint({ALL_GATHER.name, "jax.dynamic_slice"}):
        return graph
    rule = _OwnSlices(graph).apply
    return rewrite(graph, rule, NAME, _LOOKED_AT)


class _OwnSlices:
    """Remembers the nodes of the new graph that a slice may be of."""

    def __init__(self, graph: Graph) -> None:
        self.definitions: dict[Operand, Node] = {}
        nodes = walk(graph)
        graphs = [graph, *(nested for node in nodes for nested in node.graphs)]
        users = [*(node.operands for node in nodes), *(one.outputs for one in graphs)]
        self.uses = Counter(value for values in users for value in values if type(value) is Value)

    def apply(
        self, node: Node, operands: tuple[Operand, ...], builder: Builder
    ) -> Sequence[Operand] | None:
        """Return what stands for the results of the node."""
        answer = None
        if node.op is ALL_GATHER:
            answer = self._gathered(node, operands, builder)
        elif node.op.name == "jax.dynamic_slice":
            answer = self._sliced(node, operands, builder)
        if answer is not None:
            return answer
        results = builder.keep(node, operands, node.graphs)
        for result, old in zip(results, node.results, strict=True):
            self.definitions[result] = builder.nodes[-1]
            self.uses[result] = self.uses[old]
        return results

    def _gathered(
        self, node: Node, operands: tuple[Operand, ...], builder: Builder
    ) -> Sequence[Operand] | None:
        scatter = self._defined(operands[0], REDUCE_SCATTER.name)
        if scatter is None or scatter.params["axis"] != node.params["axis"]:
            return None
        if self.uses[cast(Value, operands[0])] > 1:
            return None
        params = {name: scatter.params[name] for name in ("reducer", "group_size")}
        hint = node.results[0].hint
        return builder.add(ALL_REDUCE, scatter.operands, params, at=node.source, hint=hint)

    def _sliced(
        self, node: Node, operands: tuple[Operand, ...], builder: Builder
    ) -> Sequence[Operand] | None:
        whole, *starts = operands
        made = self._defined(whole, ALL_GATHER.name) or self._defined(whole, ALL_REDUCE.name)
        if made is None:
            return None
        axis = self._own_axis(whole, node.results[0], starts, cast(int, made.params["group_size"]))
        if axis is None:
            return None
        if made.op is ALL_GATHER:
            return made.operands if made.params["axis"] == axis else None
        if self.uses[cast(Value, whole)] > 1 or made.params["reducer"] not in ("sum", "mean"):
            return None
        hint = node.results[0].hint
        params = {**made.params, "axis": axis}
        return builder.add(REDUCE_SCATTER, made.operands, params, at=made.source, hint=hint)

    def _own_axis(
        self, whole: Operand, part: Value, starts: Sequence[Operand], size: int
    ) -> int | None:
        """Return the dimension along which a part is the replica's own of R equal ones."""
        lengths = zip(whole.type.shape, part.type.shape, strict=True)
        cut = [i for i, (all_of_it, length) in enumerate(lengths) if all_of_it != length]
        if len(cut) != 1:
            return None
        (axis,) = cut
        length = part.type.shape[axis]
        if length * size != whole.type.shape[axis]:
            return None
        return axis if self._factor_of_number(starts[axis]) == length else None

    def _factor_of_number(self, operand: Operand) -> int | None:
        """Return k if the operand is k times the replica's number."""
        node = self.definitions.get(operand) if type(operand) is Value else None
        if node is None or operand.type.dtype not in _NUMBERS:
            return None
        if node.op is REPLICA_ID:
            return 1
        if node.op.name == "jax.convert_element_type":
            return self._factor_of_number(node.operands[0])
        if node.op.name == "jax.mul":
            first, second = node.operands
            value, literal = (second, first) if type(first) is Literal else (first, second)
            factor = self._factor_of_number(value)
            if factor is None or type(literal) is not Literal:
                return None
            return factor * int(cast(int, literal.value))
        if node.op.name == "jax.select_n":
            return self._not_negative(node)
        return None

    def _not_negative(self, select: Node) -> int | None:
        """Return k of `x if x >= 0 else x + n`, the index of NumPy, where x is k times it."""
        if len(select.operands) != 3:
            return None
        predicate, value, _ = select.operands
        test = self._defined(predicate, "jax.lt")
        if test is None or test.operands[0] is not value:
            return None
        bound = test.operands[1]
        if type(bound) is not Literal or bound.value != 0:
            return None
        factor = self._factor_of_number(value)
        return factor if factor is not None and factor >= 0 else None

    def _defined(self, operand: Operand, name: str) -> Node | None:
        node = self.definitions.get(operand) if type(operand) is Value else None
        return node if node is not None and node.op.name == name else None
