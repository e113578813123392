"""What a worker reads from variables on servers: the full value, or rows that its step looks up.

A variable is read by rows if its only uses are lookups of rows along dimension 0, and these rows
have fewer bytes than the variable. If the step joins variables along dimension 0 to a table, the
table is read like one variable. Of all other variables the full value is read. The values that are
read are inputs of the worker's graph. A separate graph computes the indices of the rows, and runs
before the worker's graph.

Before:  (%t = @t, %x) %i = jax.reshape(%x)  %r = jax.gather(%t, %i)  %y = jax.neg(%r)
After:   (%x) %i = jax.reshape(%x)  return %i
         (%x, %t) %y = jax.neg(%t)

Left alone, since their indices cannot be computed before: lookups whose indices depend on a
variable, on an effect or on other replicas; lookups inside loops and branches; and lookups with
per-replica indices on a worker with several replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from graphdist.ir.analyses import has_effect, producers, users, values_behind
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Operands, Value
from graphdist.ir.jax_parameters import fill_value, mode, parameter
from graphdist.ir.op_parameters import Reshaping
from graphdist.ir.ops import RESHAPE
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, Type, is_integer
from graphdist.passes.cleanup.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.servers.cut_step import ServerRead

NAME = "cut_updates"


def with_reads(graph: Graph) -> tuple[Graph, Graph | None, tuple[ServerRead, ...]]:
    """Return the worker's graph, the graph of row indices, and the reads.

    The worker's graph takes the read values after its arguments. The graph of row indices is None
    if no rows are looked up.
    """
    return _Reads(graph).apart()


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The rows that a node looks up: the indices of the rows, and the element of rows out of range.

    If `fill` is None, an index out of range reads the nearest row.
    """

    indices: Value
    fill: float | bool | None


class _Reads:
    """The reads of one graph, whose first inputs are its variables."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.variables: dict[Operand, GraphVariable] = dict(
            zip(graph.inputs, graph.variables, strict=False)
        )
        self.arguments = graph.inputs[len(graph.variables) :]
        self.lookups: dict[Node, _Lookup] = {}
        self.tables: dict[Operand, Operands] = {}
        """The values whose only uses are lookups, with the variables of which they consist."""
        for node in graph.nodes:
            if self._joins_rows(node):
                self._record(node.results[0], node.operands)
        for value in graph.inputs[: len(graph.variables)]:
            self._record(value, (value,))

    def apart(self) -> tuple[Graph, Graph | None, tuple[ServerRead, ...]]:
        """Return the worker's graph, the graph of its indices, and its reads."""
        read: dict[Value, ServerRead] = {}
        for value, variable in zip(self.graph.inputs, self.graph.variables, strict=False):
            using = users(self.graph)[value]
            is_by_rows = all(node in self.lookups or self._is_table(node) for node in using)
            if value in self.graph.outputs or not is_by_rows:
                source = using[0].source if using else UNKNOWN
                read[value] = ServerRead((variable,), value.type, source)
        copier = Copier(NAME)
        known: dict[tuple[Operand, Value, str], Value] = {}
        for node in self.graph.nodes:
            if node in self.lookups:
                lookup, table, (rows,) = self.lookups[node], node.operands[0], node.results
                key = table, lookup.indices, str(lookup.fill)
                if key not in known:
                    shards = tuple(self.variables[shard] for shard in self.tables[table])
                    known[key] = Value(rows.type, shards[0].name)
                    read[known[key]] = ServerRead(
                        shards, rows.type, node.source, is_of_rows=True, fill=lookup.fill
                    )
                copier.put(node.results, (known[key],))
            elif not self._is_table(node):
                copier.copy(node)
        inputs = (*self.arguments, *read)
        worker = copier.changed(self.graph).replace(inputs=inputs, variables=())
        wanted = [(indices, read[value].source) for (_, indices, _), value in known.items()]
        indices = self._of_indices(wanted) if wanted else None
        return eliminate_dead_code(worker), indices, tuple(read.values())

    def _of_indices(self, wanted: Sequence[tuple[Value, Source]]) -> Graph:
        """Return the graph that computes the indices of rows from the arguments."""
        builder, returned = Builder(NAME), list[Value]()
        needed = values_behind(self.graph, [indices for indices, _ in wanted])
        builder.nodes.extend(n for n in self.graph.nodes if not needed.isdisjoint(n.results))
        for indices, source in wanted:
            if not indices.type.shape:  # the index of a single row
                (indices,) = builder.add(RESHAPE, [indices], Reshaping((1, 1)), at=source)
            returned.append(indices)
        return replace(
            self.graph.replace(inputs=self.arguments, nodes=tuple(builder.nodes), variables=()),
            name=f"{self.graph.name}_rows",
            outputs=tuple(returned),
            returns_per_replica=(False,) * len(returned),
        )

    def _joins_rows(self, node: Node) -> bool:
        """Return whether a node joins variables by their rows."""
        is_joined = node.op.name == "jax.concatenate" and parameter(node, "dimension") == 0
        return is_joined and all(operand in self.variables for operand in node.operands)

    def _is_table(self, node: Node) -> bool:
        return any(result in self.tables for result in node.results)

    def _record(self, table: Value, shards: Operands) -> None:
        """Record a table that is read by rows, with its lookups."""
        if found := self._lookups_of(table):
            self.tables[table] = shards
            self.lookups.update(found)

    def _lookups_of(self, table: Value) -> Mapping[Node, _Lookup]:
        """Return the lookups of a table by node; {} if the worker reads the entire table."""
        using = users(self.graph)[table]
        found = {node: lookup for node in using if (lookup := _lookup(node, table)) is not None}
        if table in self.graph.outputs or len(found) < len(using):
            return {}
        rows = {lookup.indices: lookup.indices.type.size for lookup in found.values()}
        of_row = table.type.shaped(table.type.shape[1:])
        if sum(rows.values()) * of_row.bytes >= table.type.bytes:
            return {}
        return found if all(map(self._is_computed_before, rows)) else {}

    def _is_computed_before(self, indices: Value) -> bool:
        """Return whether the worker can compute indices before it reads variables."""
        if indices.type.layout is not MIRRORED and self.graph.num_replicas > 1:
            return False
        made = producers(self.graph)
        return not any(
            value in self.variables
            or (value in made and (has_effect(made[value]) or made[value].op.is_collective))
            for value in values_behind(self.graph, (indices,))
        )


def _lookup(node: Node, table: Value) -> _Lookup | None:
    """Return a node's lookup in a table; None if the node uses the table in another way."""
    first, *others = node.operands
    if first is not table or table in others:
        return None
    find = {"jax.gather": _of_gather, "jax.dynamic_slice": _of_slice}.get(node.op.name)
    return None if find is None else find(node, table.type)


def _of_gather(node: Node, table: Type) -> _Lookup | None:
    indices = node.operands[1]
    dimensions, at_the_ends = parameter(node, "dimension_numbers"), mode(node)
    leading = len(indices.type.shape) - 1
    takes_rows = (
        isinstance(indices, Value)
        and tuple(dimensions.collapsed_slice_dims) == tuple(dimensions.start_index_map) == (0,)
        and not dimensions.operand_batching_dims
        and tuple(dimensions.offset_dims) == tuple(range(leading, leading + len(table.shape) - 1))
        and parameter(node, "slice_sizes") == (1, *table.shape[1:])
        and indices.type.shape[-1] == 1
    )
    if not takes_rows or at_the_ends not in ("CLIP", "PROMISE_IN_BOUNDS", "FILL_OR_DROP"):
        return None
    assert isinstance(indices, Value)
    fills = at_the_ends == "FILL_OR_DROP"
    return _Lookup(indices, _fill(table.dtype, fill_value(node)) if fills else None)


def _of_slice(node: Node, table: Type) -> _Lookup | None:
    index, *starts = node.operands[1:]
    is_row = parameter(node, "slice_sizes") == (1, *table.shape[1:])
    begins = all(isinstance(start, Literal) and start.value == 0 for start in starts)
    return _Lookup(index, None) if is_row and begins and isinstance(index, Value) else None


def _fill(dtype: str, given: float | bool | None) -> float | bool:
    """Return the element of a row out of range: `given`, or else JAX's default."""
    if given is not None:
        return given
    if dtype == "bool":
        return True
    if is_integer(dtype):
        bits = int(dtype[1:])
        return 2**bits - 1 if dtype[0] == "u" else -(2 ** (bits - 1))
    return nan
