"""Look up rows where the shards of a table are, and send rows in place of the table.

A table of embeddings has many more rows than one step looks up. Its gradient is zero in all other
rows. To gather the table, or to reduce its gradient, sends every row. Here the replicas send each
other the indices of their rows, and then only these rows. Below, R is the number of replicas, and
each looks up n of the table's v rows.

Before:  %t = all_gather(%shard) {axis=0, ..} : f32[v,d]        %x = jax.gather(%t, %i) : f32[n,d]
         %g = jax.scatter-add(zeros, %i, %u) : f32[v,d]
         %s = reduce_scatter(%g) {axis=0, ..} : f32[v/R,d]
After:   %j = all_gather(%i)   %o = index_on_replica(%j)   %y = jax.gather(%shard, %o) : f32[R n,d]
         %k = keep_rows_of_replica(%y, %j)   %x = reduce_scatter(%k) {axis=0, ..} : f32[n,d]
         %w = all_gather(%u)   %h = jax.scatter-add(zeros, %o, %w)   %s = as_shard(%h) : f32[v/R,d]

How it works. A table is sharded along its rows or along another dimension, which the forward pass
and the gradient treat each in its own way:

* *Rows.* Each row is in one shard (`indexed_shards.py`), so the rows that are read are terms of a
  sum: a reduce_scatter gives each replica its own rows.
* *Columns.* Each replica reads its columns of all rows, and an all_to_all turns columns of all rows
  into all columns of a replica's rows. This sends 1/R of the bytes. Of a stack of tables, each with
  indices of its own, each replica may have some tables: it reads the rows of these.
* *Unsharded.* Only the gradient is sent. Each replica gathers the rows of all replicas and adds
  them to zeros, as TensorFlow does with `IndexedSlices`.

Several lookups of one table are changed together. A gradient may be the sum of several scatters.

A gradient that is computed in bfloat16 and reduced in float32 is sent as rows of bfloat16, and
these are added up in float32.

Left alone: a table that something else needs in full, such as the logits of tied embeddings; and
tables for which this would not send `saving` times fewer bytes, or saves less than the latency of
its collectives takes, which join no pack. Tables that groups of replicas have
in shards are gathered in full, within a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any  # Any: JAX's dimension numbers

from graphdist.ir.analyses import has_zeros, producer_of, use_counts, users
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.jax_parameters import integers, parameter
from graphdist.ir.mesh import MeshShape
from graphdist.ir.op_parameters import AlongAxis, Exchanging, Gathering, ReduceScattering, Scaling
from graphdist.ir.opaque_placeholders import Placeholder
from graphdist.ir.ops import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    AS_SHARD,
    OWN_SLICE,
    REDUCE_SCATTER,
    SCALE,
    is_over_all,
    of_groups,
)
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import MIRRORED, PER_REPLICA, Type, is_inexact
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.indexed_shards import (
    GATHER,
    indexed_dimensions,
    indexing_over_replicas,
    on_own_shard,
)

NAME = "lookups_on_shards"
_SCATTER_ADD, _SUMS = "jax.scatter-add", ("jax.add", "jax.add_any")
_CONVERT, _BROADCAST = "jax.convert_element_type", "jax.broadcast_in_dim"
_REDUCTIONS = (ALL_REDUCE.name, REDUCE_SCATTER.name)


@dataclass(frozen=True, slots=True)
class LookupsOnShards:
    """The pass; it has to send `saving` times fewer bytes, and `fewest_bytes` fewer."""

    saving: int
    fewest_bytes: int = 0

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with rows sent in place of tables."""
        made = rewrite(graph, self._rule, NAME, {GATHER, OWN_SLICE.name, *_REDUCTIONS})
        return graph if made is graph else eliminate_dead_code(made)

    def chosen(self, graph: Graph) -> list[str]:
        """Return the tables of which only rows are sent, with the bytes."""
        found = []
        for node in graph.nodes:
            table = _table(node, graph)
            if table is not None and self._saves(table):
                found.append(
                    f"{table.bytes_of_rows:,} bytes of rows in place of {table.bytes_in_full:,} of "
                    f"{table.type.dtype}{list(table.type.shape)} at {node.source}"
                )
            for nested in node.graphs:
                found += self.chosen(nested)
        return found

    def sends_rows(self, reduction: Node, graph: Graph) -> bool:
        """Return whether rows are sent in place of an array that is reduced."""
        table = _table(reduction, graph)
        return table is not None and self._saves(table)

    def _saves(self, table: _Table) -> bool:
        rows, full = table.bytes_of_rows, table.bytes_in_full
        return self.saving * rows <= full and full - rows >= self.fewest_bytes

    def _rule(self, node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        graph = rewriter.graph
        if node.op is OWN_SLICE:
            return _shard_of_scalar(node, rewriter)
        made = producer_of(node.operands[0], graph) if node.op.name == GATHER else node
        table = None if made is None else _table(made, graph)
        if made is None or table is None or not self._saves(table):
            return None
        if node.op.name == GATHER:
            return table.looked_up(node, operands, rewriter)
        return table.gradient(rewriter)


@dataclass(frozen=True, slots=True)
class _Access:
    """A node that reads rows of a table, or adds rows to one."""

    node: Node
    conversion: Node | None = None
    """The conversion that widens the rows which are added, or their sum."""

    @property
    def numbers(self) -> Any:
        """Return JAX's dimension numbers."""
        return parameter(self.node, "dimension_numbers")

    @property
    def reads(self) -> bool:
        """Return whether rows are read."""
        return self.node.op.name == GATHER

    @property
    def rows(self) -> Type:
        """Return the type of the rows that are read, or added."""
        return (self.node.results[0] if self.reads else self.node.operands[2]).type

    @property
    def sent(self) -> Operand:
        """Return the rows that are sent to be added, in their narrower dtype."""
        rows, widened = self.node.operands[2], self.conversion
        return widened.operands[0] if widened and widened.results[0] is rows else rows

    @property
    def _windows(self) -> tuple[int, ...]:
        """Return the dimensions of the rows that are also dimensions of the table."""
        return tuple(self.numbers.offset_dims if self.reads else self.numbers.update_window_dims)

    @property
    def batch(self) -> tuple[int, int] | None:
        """Return a dimension of the indices, and that of the rows, in which each row has one index.

        Return None if there is none.
        """
        dimensions = range(len(self.node.operands[1].type.shape) - 1)
        found = (each for each in dimensions if each not in self._beside)
        return next(((each, self._of_rows[each]) for each in found), None)

    @property
    def _of_rows(self) -> Sequence[int]:
        """Return the dimension of the rows for each dimension of the indices but the last."""
        return [i for i in range(len(self.rows.shape)) if i not in self._windows]

    @property
    def _beside(self) -> tuple[int, ...]:
        """Return the dimensions of the indices that are dimensions of the table, too."""
        numbers = self.numbers
        return tuple(
            numbers.start_indices_batching_dims
            if self.reads
            else numbers.scatter_indices_batching_dims
        )

    def of_indices(self, axis: int) -> int | None:
        """Return the dimension of the indices that is the table's dimension `axis`, if any."""
        beside = tuple(self.numbers.operand_batching_dims)
        return self._beside[beside.index(axis)] if axis in beside else None

    def column(self, axis: int) -> int | None:
        """Return the dimension of the rows that is the table's dimension `axis`, in full."""
        numbers, table = self.numbers, self.node.operands[0].type
        beside = self.of_indices(axis)
        if beside is not None:
            return self._of_rows[beside]
        removed = numbers.collapsed_slice_dims if self.reads else numbers.inserted_window_dims
        others = {*removed, *numbers.operand_batching_dims}
        kept = [dimension for dimension in range(len(table.shape)) if dimension not in others]
        if axis not in kept:
            return None
        column = self._windows[kept.index(axis)]
        return column if self.rows.shape[column] == table.shape[axis] else None

    def bytes_sent(self, axis: int | None, mesh: MeshShape) -> int | None:
        """Return the bytes that each replica gets, for a table in shards along `axis`.

        Return None if rows of such shards cannot be sent.
        """
        is_plain = not isinstance(self.numbers, Placeholder) and self.batch is not None
        if not is_plain or self.node.operands[1].type.layout is not PER_REPLICA:
            return None
        indices = mesh.num_replicas * self.node.operands[1].type.bytes
        rows = self.rows.bytes if self.reads else self.sent.type.bytes
        if axis is None or axis in indexed_dimensions(self.node):
            return mesh.num_replicas * rows + indices
        if mesh.num_groups > 1 or self.column(axis) is None:
            return None
        return rows + indices


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of which rows are read, or whose gradient has rows; `made` is its collective."""

    made: Node
    accesses: tuple[_Access, ...]
    mesh: MeshShape
    axis: int | None
    """The dimension along which the table is sharded."""
    bytes_of_rows: int

    @property
    def type(self) -> Type:
        """Return the type of the table in full."""
        return self.made.results[0].type if self.reads else self.made.operands[0].type

    @property
    def reads(self) -> bool:
        """Return whether the table is gathered, and not reduced."""
        return self.made.op is ALL_GATHER

    @property
    def bytes_in_full(self) -> int:
        """Return the bytes that each replica gets of the table or its gradient in full."""
        return self.type.bytes * (2 if self.made.op is ALL_REDUCE else 1)

    def looked_up(self, node: Node, operands: Operands, rewriter: Rewriter) -> Sequence[Operand]:
        """Add a lookup in the shards, and return the rows."""
        access, axis = _Access(node), self.axis
        assert axis is not None
        assert access.batch is not None
        (shard,), (_, batch) = rewriter.now(self.made.operands), access.batch
        count, column = self.mesh.num_replicas, access.column(axis)
        indices = self._indices(access, operands[1], rewriter)
        rows = access.rows.resized(batch, count * access.rows.shape[batch])
        if column is None:
            over = indexing_over_replicas(self.mesh)
            terms = on_own_shard(node, (shard, indices), axis, over, rewriter, rows)
            to_rows = ReduceScattering("sum", batch, group_size=count)
            return rewriter.add(REDUCE_SCATTER, terms, to_rows, at=node)
        sizes = [
            size // count if dimension == axis and access.of_indices(axis) is None else size
            for dimension, size in enumerate(integers(node, "slice_sizes"))
        ]
        parts = rewriter.again(
            node,
            (shard, indices),
            [rows.resized(column, rows.shape[column] // count)],
            slice_sizes=tuple(sizes),
            indices_are_sorted=False,
            unique_indices=False,
        )
        exchange = Exchanging(batch, column, group_size=count)
        return rewriter.add(ALL_TO_ALL, parts, exchange, at=node)

    def gradient(self, rewriter: Rewriter) -> Sequence[Operand]:
        """Add the reduced gradient of the rows of all replicas, and return it."""
        made, axis, count = self.made, self.axis, self.mesh.num_replicas
        zeros = producer_of(self.accesses[0].node.operands[0], rewriter.graph)
        assert zeros is not None
        type = self.type
        if axis is not None:
            type = type.resized(axis, type.shape[axis] // self.mesh.group_size)
        zero = Literal.of(0.0 if is_inexact(type.dtype) else 0, Type(type.dtype, (), MIRRORED))
        total = rewriter.again(zeros, (zero,), [type], shape=type.shape)
        for access in self.accesses:
            total = self._with_rows(access, total, rewriter)
        if axis is not None:
            along: dict[str, object] = {"axis": axis, **of_groups(self.mesh)}
            total = rewriter.add(AS_SHARD, total, AlongAxis.read(along, NAME), at=made)
        if made.params["reducer"] == "mean":
            total = rewriter.add(SCALE, total, Scaling(1 / count), at=made)
        return total

    def _with_rows(
        self, access: _Access, total: tuple[Value, ...], rewriter: Rewriter
    ) -> tuple[Value, ...]:
        """Add what puts the rows of all replicas into the gradient; return the new gradient."""
        assert access.batch is not None
        node, axis, (_, batch) = access.node, self.axis, access.batch
        count = self.mesh.num_replicas
        before, *sent = rewriter.now((node.operands[1], access.sent))
        indices = self._indices(access, before, rewriter)
        column = None if axis is None else access.column(axis)
        if column is None:
            gathering = Gathering(batch, group_size=count)
            rows = rewriter.add(ALL_GATHER, sent, gathering, at=node.source)
        else:
            exchange = Exchanging(column, batch, group_size=count)
            rows = rewriter.add(ALL_TO_ALL, sent, exchange, at=node.source)
        if access.conversion is not None:
            wide = Type(self.type.dtype, rows[0].type.shape)
            rows = rewriter.again(access.conversion, rows, [wide])
        if axis is None or column is not None:
            found = [total[0].type]
            unordered = {"indices_are_sorted": False, "unique_indices": False}
            return rewriter.again(node, (*total, indices, *rows), found, **unordered)
        over = indexing_over_replicas(self.mesh)
        return on_own_shard(node, (*total, indices, *rows), axis, over, rewriter, self.type)

    def _indices(self, access: _Access, indices: Operand, rewriter: Rewriter) -> Operand:
        """Return the indices of all replicas, which are gathered once for all accesses."""
        assert access.batch is not None
        batch, count = access.batch[0], self.mesh.num_replicas
        beside = None if self.axis is None else access.of_indices(self.axis)
        if beside is not None:
            exchange = Exchanging(beside, batch, group_size=count)
            return rewriter.add(ALL_TO_ALL, (indices,), exchange, at=access.node.source)[0]
        gathering = Gathering(batch, group_size=count)
        for node in rewriter.nodes:
            if node.op is ALL_GATHER and node.operands == (indices,) and node.params == gathering:
                return node.results[0]
        return rewriter.add(ALL_GATHER, (indices,), gathering, at=access.node.source)[0]


def _shard_of_scalar(node: Node, rewriter: Rewriter) -> Answer:
    """Return a shard of an array of one number that only gradients need in full."""
    full = producer_of(node.operands[0], rewriter.graph)
    if full is None or full.op.name != _BROADCAST or type(full.operands[0]) is Value:
        return None
    using = users(rewriter.graph)[full.results[0]]
    if any(each.op is not OWN_SLICE and each.op.name != _SCATTER_ADD for each in using):
        return None
    shard = node.results[0].type
    numbers = rewriter.again(full, full.operands, [shard], shape=shard.shape)
    return rewriter.add(AS_SHARD, numbers, node.params, at=node)


def _table(made: Node, graph: Graph) -> _Table | None:
    """Return the table that a collective gathers or reduces; None if its rows cannot be sent."""
    if made.op is ALL_GATHER and is_over_all(made):
        mesh, axis = MeshShape(graph.num_replicas), ALL_GATHER.of(made).axis
        accesses = _readers(made.results[0], graph)
    elif made.op is ALL_REDUCE and is_over_all(made):
        mesh, axis = MeshShape(graph.num_replicas), None
        accesses = _writers(made, graph)
    elif made.op is REDUCE_SCATTER:
        mesh, axis = REDUCE_SCATTER.of(made).mesh, REDUCE_SCATTER.of(made).axis
        accesses = _writers(made, graph)
    else:
        return None
    sent = [access.bytes_sent(axis, mesh) for access in accesses]
    if mesh.num_replicas == 1 or not sent or None in sent:
        return None
    return _Table(made, accesses, mesh, axis, sum(filter(None, sent)))


def _readers(table: Value, graph: Graph) -> tuple[_Access, ...]:
    """Return what reads rows of a table; nothing if something else needs the table."""
    nodes = users(graph)[table]
    is_read = all(node.op.name == GATHER and node.operands[0] is table for node in nodes)
    is_all = is_read and use_counts(graph)[table] == len(nodes)
    return tuple(map(_Access, nodes)) if is_all else ()


def _writers(reduction: Node, graph: Graph) -> tuple[_Access, ...]:
    """Return what adds rows to zeros, if the sum of the results is reduced; else nothing."""
    total = reduction.operands[0]
    conversion = _conversion(total, graph)
    if conversion is not None and use_counts(graph).get(total) == 1:
        total = conversion.operands[0]
    else:
        conversion = None
    nodes = list(_summands(total, graph))
    found = [node for node in nodes if node is not None and _adds_to_zeros(node, graph)]
    if reduction.params["reducer"] not in ("sum", "mean") or len(found) < len(nodes):
        return ()
    return tuple(
        _Access(node, conversion or _conversion(node.operands[2], graph)) for node in found
    )


def _adds_to_zeros(node: Node, graph: Graph) -> bool:
    if node.op.name != _SCATTER_ADD or node.results[0].type.layout is not PER_REPLICA:
        return False
    zeros = producer_of(node.operands[0], graph)
    is_spread = zeros is not None and zeros.op.name == _BROADCAST
    return is_spread and has_zeros(node.operands[0], graph)


def _conversion(operand: Operand, graph: Graph) -> Node | None:
    """Return the node that makes an operand, if it widens a value."""
    made = producer_of(operand, graph)
    if made is None or made.op.name != _CONVERT or not is_inexact(made.operands[0].type.dtype):
        return None
    return made if made.operands[0].type.bytes < made.results[0].type.bytes else None


def _summands(operand: Operand, graph: Graph) -> Iterator[Node | None]:
    """Yield the nodes that make the terms of a sum; None for a term that has another use, too."""
    made = producer_of(operand, graph) if use_counts(graph).get(operand) == 1 else None
    if made is not None and made.op.name in _SUMS:
        for each in made.operands:
            yield from _summands(each, graph)
    else:
        yield made
