"""Add rows to a table, in place of an array of the table's size that is zero in all other rows.

The gradient of a lookup is such an array: JAX adds rows to zeros. It is often added to something of
its size: gradient descent adds it to the table itself, microbatches add up their gradients in a
loop, and tied embeddings have the gradient of the logits besides. Here the rows are added to that
at once, so that the zeros, the addition and their memory are not needed.

Before:  %g = jax.scatter-add(zeros, %i, %u) : f32[v,d]   %m = jax.mul(-0.1, %g)
         %n = jax.add(%t, %m)
After:   %m = jax.mul(-0.1, %u)   %n = jax.scatter-add(%t, %i, %m)

How it works. Between the scatter and the addition each operation may multiply by a number, or take
its operand for a shard (`as_shard`). It is applied to the rows. The sum of several scatters becomes
several scatters into one array.

Left alone: arrays of 16 bits, in which a sum of small rows would be lost if each is rounded when it
is added; arrays that have another use, such as a gradient of which the norm is taken; and arrays of
less than `fewer` times as many elements as the rows, since a scatter waits for the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.ir.graph import Graph, Node, Operand, Operands, Value, is_zero
from graphdist.ir.op_parameters import Scaling
from graphdist.ir.ops import AS_SHARD, SCALE
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.layouts.elementwise_chains import add_resized

NAME = "add_rows_to_tables"
ADDITIONS = {"jax.add": (0, 1), "jax.add_any": (0, 1), "jax.sub": (1,)}
"""The additions, and the operands that may be rows added to zeros."""
_SCATTER_ADD, _BROADCAST = "jax.scatter-add", "jax.broadcast_in_dim"
_PRECISE = ("f32", "f64")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that are added to zeros, and what is then done with the array."""

    scatters: tuple[Node, ...]
    chain: tuple[Node, ...]

    @property
    def size(self) -> int:
        """Return the number of elements of all rows."""
        return sum(scatter.operands[2].type.size for scatter in self.scatters)


@dataclass(frozen=True, slots=True)
class AddRowsToTables:
    """The pass; the rows have `fewer` times fewer elements than the table."""

    fewer: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with rows added to what their array was added to."""
        made = rewrite(graph, self._rule, NAME, set(ADDITIONS))
        return graph if made is graph else eliminate_dead_code(made)

    def _rule(self, node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
        if node.results[0].type.dtype not in _PRECISE:
            return None
        for index in ADDITIONS[node.op.name]:
            table, array = operands[1 - index], operands[index]
            rows = _rows(array, rewriter)
            if rows is None or type(table) is not Value or table.type.shape != array.type.shape:
                continue
            count = len(rewriter.nodes)
            if self.fewer * rows.size <= array.type.size:
                added = _added(rows, table, node, rewriter)
                if added.type == node.results[0].type:
                    return (added,)
            rewriter.take_back(count)
        return None


def _rows(array: Operand, rewriter: Rewriter) -> _Rows | None:
    """Return the rows of which an array is made, if nothing else uses what is between them."""
    scatters: list[Node] = []
    chain: list[Node] = []
    while not (scatters and _is_zero(array, rewriter)):
        made = rewriter.definition(array)
        if made is None or rewriter.uses(array) > 1:
            return None
        is_scatter = made.op.name == _SCATTER_ADD
        before = made.operands[0] if is_scatter else multiplied_by_number(made)
        if before is None or (scatters and not is_scatter):
            return None
        (scatters if is_scatter else chain).append(made)
        array = before
    return _Rows(tuple(reversed(scatters)), tuple(reversed(chain)))


def _is_zero(operand: Operand, rewriter: Rewriter) -> bool:
    made = rewriter.definition(operand, _BROADCAST)
    return made is not None and is_zero(made.operands[0])


def multiplied_by_number(node: Node) -> Operand | None:
    """Return the array that a node multiplies by a number, or takes for a shard."""
    if node.op in (AS_SHARD, SCALE) or node.op.name == "jax.neg":
        return node.operands[0]
    first, second, *_ = (*node.operands, None, None)
    if first is None or second is None:
        return None
    if node.op.name in ("jax.mul", "jax.div") and not second.type.shape:
        return first
    return second if node.op.name == "jax.mul" and not first.type.shape else None


def _added(rows: _Rows, table: Operand, addition: Node, rewriter: Rewriter) -> Operand:
    """Add the scatters into the table, of rows on which the chain is done."""
    for scatter in rows.scatters:
        _, indices, updates = scatter.operands
        for node in rows.chain:
            updates = _applied(node, updates, rewriter)
        if addition.op.name == "jax.sub":
            (updates,) = rewriter.add(SCALE, (updates,), Scaling(-1.0), at=addition.source)
        (table,) = rewriter.again(scatter, (table, indices, updates))
    is_shard = addition.results[0].type.sharded_along is not None
    shards = (node for node in rows.chain if node.op is AS_SHARD)
    for node in shards if is_shard else ():
        (table,) = rewriter.again(node, (table,))
    return table


def _applied(node: Node, rows: Operand, rewriter: Rewriter) -> Operand:
    """Do with rows what a node of the chain does with the array."""
    if node.op is AS_SHARD:
        return rows
    array = multiplied_by_number(node)
    operands = [rows if each is array else each for each in node.operands]
    return add_resized(node, operands, rows.type, rewriter)
