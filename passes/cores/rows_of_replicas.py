"""The part of a graph that computes on rows of a batch, and the same part for all replicas' rows.

Each replica has rows of a batch, and applies the same operations to them. So the factors of an
operation (`graphdist.ir.factors`) say what it is for all rows at once: the dimensions that have the
factor of the rows are as many times as long as there are replicas. A product that sums over rows
gives each replica a term. For all rows it gives the sum, which needs no reduction. Only what is
linear may follow, up to the reduction.

The part begins with products of the same weights. What uses their columns belongs to it, and so
does what is computed of that with few elements, such as the statistics of a softmax. What is
computed from broadcasts and has the columns, such as labels as vectors, belongs to it, too, and
stays outside for other uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from graphdist.ir.analyses import has_zeros, producer_of, users
from graphdist.ir.blocks_of_cores import over_cores
from graphdist.ir.builder import Builder
from graphdist.ir.factors import Dimensions, Factors, shard_shape
from graphdist.ir.graph import Graph, Node, Operand, Stage, Value, is_zero
from graphdist.ir.op_parameters import Scaling, SplittingOverCores
from graphdist.ir.operation_table import ELEMENTWISE, TABLE, factors_of, linear_operands
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    SCALE,
    SPLIT_OVER_CORES,
    is_over_all,
)
from graphdist.ir.types import MIRRORED, PER_REPLICA, Layout, Type, partial, sharded
from graphdist.passes.layouts.indexed_shards import GATHER, SCATTERS

NAME = "replicas_as_cores"
_FEW = 256
"""A value has few elements if the first product has so many times as many."""
_SPREADS = ELEMENTWISE | {
    "jax.broadcast_in_dim",
    "jax.iota",
    "jax.reshape",
    "jax.squeeze",
    "jax.transpose",
}
"""The operations that are computed again in the part, in place of an exchange of their result."""
_NORMS = ("jax.reduce_sum", "jax.reduce_max")
"""What is computed again, too, if it is computed of weights."""


class ProductOfFewRows(NamedTuple):
    """A product with the factors of its rows, and of the columns of its weights."""

    node: Node
    weights: Operand
    rows: int
    columns: int


class PartInput(NamedTuple):
    """An input of a part: the operand of the old graph that has it in a layout over replicas."""

    value: Value
    operand: Operand
    layout: Layout


class PartOutput(NamedTuple):
    """An output of a part, the value of the old graph that it replaces, in a layout."""

    value: Operand
    replaced: Value
    layout: Layout


@dataclass(slots=True)
class RowsOfReplicas:
    """The nodes of a part, which begins with `products`, and where their values have rows.

    `rows` has the dimension of the rows, and `columns` that of the products' columns, of each value
    that has them; `sums` has the sums over rows. `factors` has the factor of the rows of each node,
    None for a node without rows. The nodes in `again` stay outside, too. `ends` are the reductions.
    """

    graph: Graph
    products: Sequence[ProductOfFewRows]
    rows: dict[Operand, int] = field(default_factory=dict)
    columns: dict[Operand, int] = field(default_factory=dict)
    sums: set[Operand] = field(default_factory=set)
    factors: dict[Node, int | None] = field(default_factory=dict)
    again: set[Node] = field(default_factory=set)
    ends: set[Node] = field(default_factory=set)

    @property
    def first(self) -> Node:
        """Return the first of the products."""
        return self.products[0].node

    def find(self) -> bool:
        """Find the part behind its products; return whether its sums may be in it."""
        for node, _, rows, columns in self.products:
            (product,), factors = node.results, factors_of(node)
            assert factors is not None
            self.factors[node] = rows
            self.rows[product] = factors.results[0].index(rows)
            self.columns[product] = factors.results[0].index(columns)
        nodes = self.graph.nodes
        for node in nodes[nodes.index(self.first) + 1 :]:
            if node in self.factors:
                continue
            if self.sums.isdisjoint(node.operands):
                self._join(node)
            elif not self._join_sums(node):
                return False
        for node in reversed(nodes):
            if node in self.factors:
                self._compute_again(node)
        return self.sums.isdisjoint(self.graph.outputs)

    def _join(self, node: Node) -> None:
        """Add a node that is applied to rows, if it belongs to the part."""
        if not any(operand in self.rows for operand in node.operands):
            return
        factors = _factors(node)
        factor = None if factors is None else self._factor_of_rows(node, factors)
        if factors is None or factor is None or not self._fits(node, factors, factor):
            return
        has_rows = all(factor in dims for dims in factors.results)
        has_columns = any(operand in self.columns for operand in node.operands)
        row = TABLE[node.op.name]
        is_simple = has_rows and (row.is_elementwise or row.only_moves)
        if not (has_columns or (is_simple and all(map(self.is_small, node.results)))):
            return
        if has_rows:
            dimensions = (dims.index(factor) for dims in factors.results)
            self.rows |= zip(node.results, dimensions, strict=True)
        elif factors.summed.get(factor) == "sum" and self._adds_to_nothing(node):
            self.sums.update(node.results)
        else:
            return
        self.factors[node] = factor
        self._follow_columns(node, factors)

    def _adds_to_nothing(self, node: Node) -> bool:
        """Return whether a node that sums rows adds them to nothing that all replicas have."""
        return "scatter" not in node.op.name or has_zeros(node.operands[0], self.graph)

    def _factor_of_rows(self, node: Node, factors: Factors) -> int | None:
        """Return the factor of the rows of a node's operands; None if they have not one."""
        pairs = zip(factors.operands, node.operands, strict=True)
        found = {dims[self.rows[operand]] for dims, operand in pairs if operand in self.rows}
        return found.pop() if len(found) == 1 else None

    def _fits(self, node: Node, factors: Factors, factor: int) -> bool:
        """Return whether each operand has rows along a factor, or is the same on all replicas."""
        for dims, operand in zip(factors.operands, node.operands, strict=True):
            if _is_alike(operand) and operand not in self.rows:
                continue
            along = Factors.dimension(dims, factor)
            if along is None or self.rows.get(operand, along) != along:
                return False
            if operand.type.layout not in (PER_REPLICA, sharded(along)) and not _is_alike(operand):
                return False
        return True

    def is_small(self, value: Value) -> bool:
        """Return whether a value has few elements."""
        return value.type.size * _FEW <= self.first.results[0].type.size

    def _follow_columns(self, node: Node, factors: Factors) -> None:
        factor = self.factor_of_columns(node, factors)
        for dims, result in zip(factors.results, node.results, strict=True):
            if factor is not None and factor in dims:
                self.columns[result] = dims.index(factor)

    def factor_of_columns(self, node: Node, factors: Factors) -> int | None:
        """Return the factor of the columns of a node's values; None if they have none."""
        values = (*node.operands, *node.results)
        pairs = zip((*factors.operands, *factors.results), values, strict=True)
        found = (dims[self.columns[value]] for dims, value in pairs if value in self.columns)
        return next(found, None)

    def _join_sums(self, node: Node) -> bool:
        """Add a node on sums over rows; return False if it is neither linear nor the reduction."""
        if node.op in (ALL_REDUCE, REDUCE_SCATTER):
            self.ends.add(node)
            return is_over_all(node) and node.params["reducer"] in ("sum", "mean")
        factors, operands = _factors(node), node.operands
        if factors is None or any(operand in self.rows for operand in operands):
            return False
        terms = {i for i, operand in enumerate(operands) if not _is_alike(operand)}
        zeros = {i for i, operand in enumerate(operands) if is_zero(operand)}
        if any(operands[i].type.layout is not PER_REPLICA for i in terms):
            return False
        if not any(set(together) - zeros == terms for together in linear_operands(node)):
            return False
        self.factors[node] = None
        self.sums.update(node.results)
        self._follow_columns(node, factors)
        return True

    def _compute_again(self, node: Node) -> None:
        """Add the nodes that make the operands of a node which have the columns."""
        factors = _factors(node)
        assert factors is not None
        columns = self.factor_of_columns(node, factors)
        for dims, operand in zip(factors.operands, node.operands, strict=True):
            made = producer_of(operand, self.graph)
            if made is None or made in self.factors:
                continue
            has_columns = columns is not None and columns in dims
            own = _factors(made) if has_columns or _is_of_number(made) else None
            if own is None or not self._is_spread(made):
                continue
            rows = self.along(dims, node)
            factor = None if rows is None else own.results[0][rows]
            if rows is None:
                fits = all(map(_is_alike, made.operands))
            else:
                fits = factor is not None and self._fits(made, own, factor)
            if fits:
                self.factors[made] = factor
                self.again.add(made)
                if has_columns:
                    self.columns[operand] = dims.index(columns)
                if rows is not None:
                    self.rows[operand] = rows

    def _is_spread(self, node: Node) -> bool:
        """Return whether a node spreads values over the columns, or writes elements into zeros."""
        if node.op.name in SCATTERS:
            return has_zeros(node.operands[0], self.graph)
        is_norm = node.op.name in _NORMS and all(map(_is_alike, node.operands))
        return is_norm or node.op.name in _SPREADS

    def along(self, dims: Dimensions, node: Node) -> int | None:
        """Return the dimension of the rows of a node's operand or result."""
        return _dimension(dims, self.factors[node])

    def for_all_rows(self) -> PartForAllRows:
        """Return the part as it is for the rows of all replicas."""
        building = _Building(self)
        for node in self.graph.nodes:
            if node in self.factors:
                building.add(node)
        for node in self.graph.nodes:
            if node in self.ends:
                building.add_end(node)
            elif node in self.factors and node not in self.again:
                building.add_outputs(node)
        return building.part()


@dataclass(frozen=True, slots=True)
class PartForAllRows:
    """The graph that computes a part for the rows of all replicas.

    An input or an output of rows is sharded along them. `wanted` are layouts in which values should
    be computed, and `replaced` the gathers and reductions that the part does without.
    """

    graph: Graph
    inputs: Sequence[PartInput]
    outputs: Sequence[PartOutput]
    wanted: dict[Operand, Layout]
    replaced: Sequence[Node]


class _Building:
    """The graph of a part while it is built."""

    def __init__(self, found: RowsOfReplicas) -> None:
        self._found, self._graph = found, found.graph
        self._builder = Builder(NAME)
        self._inputs: dict[tuple[Operand, Layout], PartInput] = {}
        self._in_shards: dict[tuple[Value, int], Value] = {}
        self._outputs: list[PartOutput] = []
        self._values: dict[Operand, Operand] = {}
        self._wanted: dict[Operand, Layout] = {}
        self._replaced = list(found.ends)

    def add(self, node: Node) -> None:
        """Add a node of the part."""
        found, factors = self._found, _factors(node)
        assert factors is not None
        factor = found.factors[node]
        columns = found.factor_of_columns(node, factors)
        operands = [
            self._operand(operand, found.along(dims, node), _dimension(dims, columns))
            for dims, operand in zip(factors.operands, node.operands, strict=True)
        ]
        params, types = node.params, [value.type for value in node.results]
        if factor is not None:
            count = Fraction(1, self._graph.num_replicas)
            params = TABLE[node.op.name].params_of_shards(node, factors, factor, count)
            types = [
                Type(each.dtype, shard_shape(dims, each.shape, factor, count))
                for dims, each in zip(factors.results, types, strict=True)
            ]
        results = self._builder.add(node.op, operands, params, at=node, types=types)
        self._values.update(zip(node.results, results, strict=True))
        for old, new in zip(node.results, results, strict=True):
            along = found.columns.get(old)
            if along is None and node not in found.again and not found.is_small(old):
                along = found.rows.get(old)
            if along is not None and new.type.shape[along] % self._graph.num_replicas == 0:
                self._wanted[new] = over_cores(along)

    def _operand(self, operand: Operand, along: int | None, columns: int | None) -> Operand:
        """Return an operand with these dimensions of rows and of columns, if it has any."""
        found = self._found
        if type(operand) is not Value:
            return operand
        if operand in self._values and (operand in found.sums or found.rows.get(operand) == along):
            return self._values[operand]
        if along is not None:
            full = operand.type.resized(along, operand.type.shape[along] * self._graph.num_replicas)
            return self._input(operand, full, over_cores(along))
        if not _is_alike(operand):
            return self._input(operand, operand.type, partial("sum"))
        made = producer_of(operand, self._graph)
        if made is None or not self._is_needed_here_alone(made):
            return self._input(operand, operand.type, MIRRORED)
        if made not in self._replaced:
            self._replaced.append(made)
        axis = ALL_GATHER.of(made).axis
        value = self._input(made.operands[0], operand.type, over_cores(axis))
        return value if columns in (None, axis) else self._in_columns(value, columns)

    def _in_columns(self, value: Value, columns: int) -> Value:
        """Return weights in shards along their columns."""
        if value.type.shape[columns] % self._graph.num_replicas:
            return value
        key = value, columns
        if key not in self._in_shards:
            params = SplittingOverCores(columns, num_cores=self._graph.num_replicas)
            at = self._found.first.source
            (self._in_shards[key],) = self._builder.add(SPLIT_OVER_CORES, (value,), params, at=at)
        return self._in_shards[key]

    def _input(self, operand: Operand, type: Type, layout: Layout) -> Value:
        key = operand, layout
        if key not in self._inputs:
            value = Value(type.with_layout(MIRRORED))
            self._inputs[key] = PartInput(value, operand, layout)
        return self._inputs[key].value

    def _is_needed_here_alone(self, made: Node) -> bool:
        """Return whether a node gathers what only the part and lookups of rows use."""
        if made.op is not ALL_GATHER or not is_over_all(made):
            return False
        return self._is_used_here_alone(made.results[0])

    def _is_used_here_alone(self, value: Value) -> bool:
        return value not in self._graph.outputs and all(
            self._looks_up_few(node, value) or self._is_here_alone(node)
            for node in users(self._graph)[value]
        )

    def _is_here_alone(self, node: Node) -> bool:
        found = self._found
        is_here = node in found.factors
        return is_here and (node not in found.again or self._is_used_here_alone(node.results[0]))

    def _looks_up_few(self, node: Node, table: Value) -> bool:
        """Return whether a node looks up few rows, which are sent in place of the table."""
        rows = self._graph.num_replicas * node.results[0].type.bytes
        return node.op.name == GATHER and node.operands[0] is table and 2 * rows <= table.type.bytes

    def add_end(self, node: Node) -> None:
        """Add what a reduction of a sum over rows returns."""
        value = self._values[node.operands[0]]
        if node.params["reducer"] == "mean":
            scaling = Scaling(1 / self._graph.num_replicas)
            (value,) = self._builder.add(SCALE, (value,), scaling, at=node)
        layout = MIRRORED
        if node.op is REDUCE_SCATTER:
            layout = over_cores(REDUCE_SCATTER.of(node).axis)
            self._wanted.setdefault(value, layout)
        self._outputs.append(PartOutput(value, node.results[0], layout))

    def add_outputs(self, node: Node) -> None:
        """Add the results of a node that are used outside, which have rows."""
        found = self._found
        for result in node.results:
            using = users(self._graph).get(result, ())
            is_used = result in self._graph.outputs or any(n not in found.factors for n in using)
            if is_used and result in found.rows:
                layout = over_cores(found.rows[result])
                self._outputs.append(PartOutput(self._values[result], result, layout))

    def part(self) -> PartForAllRows:
        """Return the part."""
        inputs = tuple(self._inputs.values())
        graph = Graph(
            NAME,
            Stage.SPMD,
            1,
            tuple(each.value for each in inputs),
            tuple(self._builder.nodes),
            tuple(each.value for each in self._outputs),
            num_cores=self._graph.num_replicas,
        )
        return PartForAllRows(graph, inputs, self._outputs, self._wanted, self._replaced)


def _factors(node: Node) -> Factors | None:
    if node.graphs:
        return None
    is_of_numbers = node.op.name in ELEMENTWISE and not node.results[0].type.shape
    return Factors(((),) * len(node.operands), ((),)) if is_of_numbers else factors_of(node)


def _dimension(dims: Dimensions, factor: int | None) -> int | None:
    return None if factor is None else Factors.dimension(dims, factor)


def _is_of_number(node: Node) -> bool:
    """Return whether a node broadcasts one number."""
    return node.op.name == "jax.broadcast_in_dim" and type(node.operands[0]) is not Value


def _is_alike(operand: Operand) -> bool:
    """Return whether an operand is the same on all replicas."""
    return type(operand) is not Value or operand.type.layout is MIRRORED
