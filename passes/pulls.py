"""What a worker reads of variables on servers: in full, or the rows that its step looks up.

A variable whose only uses are lookups of rows along dimension 0 is read by rows, where these have
fewer bytes than the variable. So are the shards of a table, which the step joins and looks rows up
in: as if they were one. Anything else is read in full.

Before:  (%t = @t, %x) %i = jax.reshape(%x)  %r = jax.gather(%t, %i)
After:   (%t = @t, %x) %i = jax.reshape(%x)  %r = pull(%t, %i) {bytes=60}

The worker computes the row numbers first, asks for the rows, and then runs the rest: numbers that
depend on a variable, on an effect or on other replicas are left alone, as are lookups inside loops
and branches, and the lookups of a worker whose replicas each have rows of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import nan
from typing import cast

from graphdist.ir.analyses import has_effect, producers
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, GraphVariable, Literal, Node, Operand, Value
from graphdist.ir.jax_parameters import (
    concatenated_along,
    fill_value,
    gather_dimensions,
    mode,
    slice_sizes,
)
from graphdist.ir.op_parameters import Pulling, Reshaping
from graphdist.ir.ops import PULL, RESHAPE
from graphdist.ir.rewrite import substitute
from graphdist.ir.source import UNKNOWN, Source
from graphdist.ir.types import MIRRORED, Type

NAME = "cut_updates"


def with_pulls(half: Graph) -> Graph:
    """Return a worker's half in which every read of a variable is a `pull`."""
    return _Reads(half).pulled()


@dataclass(frozen=True, slots=True)
class RowLookup:
    """A lookup of rows of variables that are one table, in order, and how many rows each has.

    `row` is the type of one row; `fill` is in rows that are not there, None: the nearest.
    """

    variables: tuple[str, ...]
    num_rows: tuple[int, ...]
    row: Type
    fill: float | int | bool | None


@dataclass(frozen=True, slots=True)
class RowReads:
    """A worker's half with its row numbers apart.

    `numbers` takes the arguments of the step and returns the row numbers of each lookup. `worker`
    takes the variables `reads`, the rows of each lookup, and the arguments.
    """

    numbers: Graph
    worker: Graph
    reads: tuple[str, ...]
    lookups: tuple[RowLookup, ...]


def row_reads(half: Graph) -> RowReads:
    """Return a half in which the results of row pulls are inputs."""
    count = len(half.variables)
    names = dict(zip(half.inputs, (variable.name for variable in half.variables), strict=False))
    pulls = [node for node in half.nodes if node.op is PULL and len(node.operands) > 1]
    tables = [node.operands[:-1] for node in pulls]
    looked_up = {shard for table in tables for shard in table}
    read = [value for value in half.inputs[:count] if value not in looked_up]
    rows = [result for node in pulls for result in node.results]
    arguments = half.inputs[count:]
    worker = Graph(
        half.name,
        half.stage,
        half.num_replicas,
        (*read, *rows, *arguments),
        tuple(node for node in half.nodes if node not in pulls),
        half.outputs,
        (),
        half.returns_per_replica,
    )
    numbers = tuple(node.operands[-1] for node in pulls)
    needed = behind(half, numbers)
    asked = Graph(
        f"{half.name}_rows",
        half.stage,
        half.num_replicas,
        arguments,
        tuple(node for node in half.nodes if not needed.isdisjoint(node.results)),
        numbers,
        (),
        (False,) * len(numbers),
    )
    fills = (PULL.of(node).fill for node in pulls)
    lookups = tuple(
        RowLookup(
            tuple(names[cast(Value, shard)] for shard in table),
            tuple(shard.type.shape[0] for shard in table),
            table[0].type.shaped(table[0].type.shape[1:]),
            fill,
        )
        for table, fill in zip(tables, fills, strict=True)
    )
    return RowReads(asked, worker, tuple(names[value] for value in read), lookups)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The rows that a node looks up: their numbers, and the number in rows that are not there."""

    numbers: Value
    fill: float | bool | None


class _Reads:
    """The reads of one half."""

    def __init__(self, half: Graph) -> None:
        self.half = half
        self.variables: dict[Operand, GraphVariable] = dict(
            zip(half.inputs, half.variables, strict=False)
        )
        self.builder = Builder(NAME)
        self.environment: dict[Operand, Operand] = {}
        self.tables: dict[Operand, tuple[Operand, ...]] = {}
        """The values that are looked up alone, with the variables that they are made of."""

    def pulled(self) -> Graph:
        lookups: dict[Node, _Lookup] = {}
        for node in self.half.nodes:
            if self._is_table(node):
                self._note(node.results[0], node.operands, lookups)
        for value in self.half.inputs[: len(self.half.variables)]:
            self._note(value, (value,), lookups)
            users = [node for node in self.half.nodes if value in node.operands]
            is_read = value in self.half.outputs or not all(
                node in lookups or self._is_taken_apart(node) for node in users
            )
            if is_read:
                self.environment[value] = self._pull((value,), None, self._first_use(value))
        known: dict[tuple[Operand, Value, str], Operand] = {}
        for node in self.half.nodes:
            operands = substitute(self.environment, node.operands)
            if node in lookups:
                lookup = lookups[node]
                key = node.operands[0], lookup.numbers, str(lookup.fill)
                if key not in known:
                    known[key] = self._pull(self.tables[node.operands[0]], lookup, node.source)
                self.environment[node.results[0]] = known[key]
            elif not self._is_taken_apart(node):
                results = self.builder.keep(node, operands, node.graphs)
                self.environment.update(zip(node.results, results, strict=True))
        outputs = substitute(self.environment, self.half.outputs)
        return self.half.replace(nodes=tuple(self.builder.nodes), outputs=outputs)

    def _is_table(self, node: Node) -> bool:
        """Return whether a node joins variables by their rows."""
        is_joined = node.op.name == "jax.concatenate" and concatenated_along(node) == 0
        return is_joined and all(operand in self.variables for operand in node.operands)

    def _is_taken_apart(self, node: Node) -> bool:
        return any(result in self.tables for result in node.results)

    def _note(
        self, table: Value, shards: tuple[Operand, ...], lookups: dict[Node, _Lookup]
    ) -> None:
        """Note a table that is read by rows, with its lookups."""
        if found := self._lookups(table):
            self.tables[table] = shards
            lookups.update(found)

    def _pull(self, table: tuple[Operand, ...], lookup: _Lookup | None, at: Source) -> Operand:
        variables = [self.variables[shard] for shard in table]
        operands, size, fill = list(table), table[0].type.bytes, None
        if lookup is not None:
            (numbers,) = substitute(self.environment, (lookup.numbers,))
            if not numbers.type.shape:  # of a slice of one row
                (numbers,) = self.builder.add(RESHAPE, [numbers], Reshaping((1, 1)), at=at)
            operands.append(numbers)
            size, fill = numbers.type.size * _bytes_of_row(table[0].type), lookup.fill
        servers = {variable.server for variable in variables}
        params = Pulling(size, fill, servers.pop() if len(servers) == 1 else None)
        return self.builder.add(PULL, operands, params, at=at, hint=variables[0].name)[0]

    def _first_use(self, value: Operand) -> Source:
        users = (node.source for node in self.half.nodes if value in node.operands)
        return next(users, UNKNOWN)

    def _lookups(self, value: Value) -> Mapping[Node, _Lookup]:
        """Return the lookups of a table; none if it is read in full."""
        users = [node for node in self.half.nodes if value in node.operands]
        found = {node: lookup for node in users if (lookup := _lookup(node, value)) is not None}
        if value in self.half.outputs or len(found) < len(users):
            return {}
        rows = {lookup.numbers: lookup.numbers.type.size for lookup in found.values()}
        if sum(rows.values()) * _bytes_of_row(value.type) >= value.type.bytes:
            return {}
        return found if all(map(self._is_computed_before, rows)) else {}

    def _is_computed_before(self, numbers: Value) -> bool:
        """Return whether the worker can compute row numbers before it has read anything."""
        if numbers.type.distribution is not MIRRORED and self.half.num_replicas > 1:
            return False
        made = producers(self.half)
        return not any(
            value in self.variables
            or (value in made and (has_effect(made[value]) or made[value].op.is_collective))
            for value in behind(self.half, (numbers,))
        )


def behind(graph: Graph, values: Iterable[Operand]) -> set[Operand]:
    """Return all values that some values are computed of, these included."""
    made = producers(graph)
    pending, found = list(values), set[Operand]()
    while pending:
        value = pending.pop()
        if value in found or not isinstance(value, Value):
            continue
        found.add(value)
        if value in made:
            pending += made[value].operands
    return found


def _bytes_of_row(type: Type) -> int:
    return type.shaped(type.shape[1:]).bytes


def _lookup(node: Node, table: Value) -> _Lookup | None:
    """Return what a node looks up of a table; None if it does anything else with it."""
    first, *others = node.operands
    if first is not table or table in others:
        return None
    find = {"jax.gather": _of_gather, "jax.dynamic_slice": _of_slice}.get(node.op.name)
    return None if find is None else find(node, table.type)


def _of_gather(node: Node, table: Type) -> _Lookup | None:
    numbers = node.operands[1]
    dimensions, at_the_ends = gather_dimensions(node), mode(node)
    leading = len(numbers.type.shape) - 1
    takes_rows = (
        isinstance(numbers, Value)
        and tuple(dimensions.collapsed_slice_dims) == tuple(dimensions.start_index_map) == (0,)
        and not dimensions.operand_batching_dims
        and tuple(dimensions.offset_dims) == tuple(range(leading, leading + len(table.shape) - 1))
        and slice_sizes(node) == (1, *table.shape[1:])
        and numbers.type.shape[-1] == 1
    )
    if not takes_rows or at_the_ends not in ("CLIP", "PROMISE_IN_BOUNDS", "FILL_OR_DROP"):
        return None
    assert isinstance(numbers, Value)
    fills = at_the_ends == "FILL_OR_DROP"
    return _Lookup(numbers, _fill(table.dtype, fill_value(node)) if fills else None)


def _of_slice(node: Node, table: Type) -> _Lookup | None:
    number, *starts = node.operands[1:]
    is_row = slice_sizes(node) == (1, *table.shape[1:])
    begins = all(isinstance(start, Literal) and start.value == 0 for start in starts)
    return _Lookup(number, None) if is_row and begins and isinstance(number, Value) else None


def _fill(dtype: str, given: float | bool | None) -> float | bool:
    """Return the number in a row that is not there: JAX's own, where none is given."""
    if given is not None:
        return given
    if dtype == "bool":
        return True
    if dtype[0] in "iu":
        bits = int(dtype[1:])
        return 2**bits - 1 if dtype[0] == "u" else -(2 ** (bits - 1))
    return nan
