"""Compute once on a packed buffer, if all its pieces are computed in the same way.

An optimizer updates each variable in the same way. If variables share a buffer
(`pack_variables.py`), their gradients are packed in the same order and reduced, and one computation
updates the entire buffer. It can replace a hundred small kernels.

Before:  %a, %b = unpack(%p)  %ra = all_reduce(%ga)  %rb = all_reduce(%gb)
         %a2 = sub(%a, %ra)  %b2 = sub(%b, %rb)  %q = pack(%a2, %b2)
After:   %a, %b = unpack(%p)  %g = pack(%ga, %gb)  %r = all_reduce(%g)  %q = sub(%p, %r)

How it works. A row is one value for each piece, such as the operands of `%q`. A row becomes one
flat value if it is

* all pieces of one buffer, in order: the buffer;
* the same literal, scalar or broadcast scalar in each place: the scalar, or its broadcast;
* results of all_reduces of one kind, small enough to be packed: one all_reduce of the packed row of
  their operands, in the place of the last of them;
* results of one elementwise operation whose operands' rows become flat values.

Any other row has to be packed. The computation of a pack may use at most one such row, whose pack
replaces the pack of the results. Reduced rows do not count, since they are packed in any case.
There is no recursion, since chains of operations may be long.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from graphdist.ir.analyses import kept_analysis, producer_of, users
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_REDUCE, PACK, UNPACK
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import Source, joined_source
from graphdist.ir.types import Type
from graphdist.passes.packs.bucket_collectives import add_packed
from graphdist.passes.packs.pack_limits import PackLimits

NAME = "compute_on_packs"

Row: TypeAlias = Operands
Key: TypeAlias = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class ComputeOnPacks:
    """The pass for one target, whose limits say which collectives may be packed."""

    limits: PackLimits

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with packs computed from packs where that is possible."""
        rows = _Rows(graph, self.limits)
        packs = [node for node in graph.nodes if node.op is PACK and len(node.operands) > 1]
        # Those that can be computed from packs of which at most one is new.
        packs = [pack for pack in packs if rows.plan(pack.operands).kind in ("computed", "reduced")]
        return _Rewriting(graph, rows).of(packs) if packs else graph


_BROADCAST = "jax.broadcast_in_dim"


def _key(operand: Operand) -> Hashable:
    """Return a key that differs for different operands, also for the literals 0.0 and -0.0."""
    if isinstance(operand, Literal):
        return repr(operand.value), operand.type
    return operand


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a row becomes one value: the kind of the value, and its parts."""

    kind: str
    operand: Operand | None = None
    nodes: Sequence[Node] = ()
    operands: Sequence[Row] = ()
    packed: frozenset[Key] = frozenset()
    """The rows that have to be packed, without reduced rows."""


@dataclass(slots=True)
class _Rows:
    """The plans of rows, each made once."""

    graph: Graph
    limits: PackLimits
    plans: dict[Key, _Plan] = field(default_factory=dict)

    def plan(self, row: Row) -> _Plan:
        """Return the plan of a row."""
        for needed in _bottom_up(row, self._operand_rows, self.plans):
            self.plans[_row_key(needed)] = self._planned(needed)
        return self.plans[_row_key(row)]

    def _planned(self, row: Row) -> _Plan:
        as_it_stands = _Plan("packed", packed=frozenset((_row_key(row),)))
        if len({_key(operand) for operand in row}) == 1 and not row[0].type.shape:
            return _Plan("same", row[0])
        nodes = self._producers(row)
        if nodes and nodes[0].op is UNPACK and row == nodes[0].results:
            is_flat = not UNPACK.of(nodes[0]).axes
            return _Plan("buffer", nodes[0].operands[0]) if is_flat else as_it_stands
        if not nodes or len(set(nodes)) < len(nodes) or not _are_alike(nodes):
            return as_it_stands
        first = nodes[0]
        if first.op.name == _BROADCAST and _is_broadcast_of_one(nodes):
            return _Plan("broadcast", first.operands[0], nodes)
        if first.op is ALL_REDUCE and self._are_reduced_together(nodes):
            return _Plan("reduced", nodes=nodes, operands=_operand_rows(nodes))
        operands = self._operand_rows(row)
        plans = [self.of_operand(operand_row, row) for operand_row in operands]
        packed = frozenset[Key]().union(*(plan.packed for plan in plans))
        if all(plan.kind == "same" for plan in plans) or len(packed) > 1:
            return as_it_stands
        return _Plan("computed", nodes=nodes, operands=operands, packed=packed)

    def of_operand(self, operands: Row, row: Row) -> _Plan:
        """Return the plan of `operands`, from which `row` is computed.

        If the pieces of `row` are scalars, a value that all of them share is packed, too: an
        operation on scalars becomes one on buffers, whose only scalar operands may be literals.
        """
        plan = self.plans[_row_key(operands)]
        if plan.kind == "same" and isinstance(plan.operand, Value) and not row[0].type.shape:
            return _Plan("packed", packed=frozenset((_row_key(operands),)))
        return plan

    def _operand_rows(self, row: Row) -> list[Row]:
        """Return the rows from which a row of one elementwise operation is computed."""
        nodes = self._producers(row)
        if not nodes or nodes[0].op.name not in ELEMENTWISE or not _are_alike(nodes):
            return []
        rows = _operand_rows(nodes)
        return rows if all(_fits(needed_row, row) for needed_row in rows) else []

    def _producers(self, row: Row) -> list[Node]:
        """Return the nodes that compute the values of a row; none if there is another operand."""
        nodes = [made for operand in row if (made := producer_of(operand, self.graph)) is not None]
        return nodes if len(nodes) == len(row) else []

    def _are_reduced_together(self, nodes: Sequence[Node]) -> bool:
        """Return whether all_reduces may become one, at the position of the last of them."""
        size = sum(node.operands[0].type.bytes for node in nodes)
        if size > self.limits.buffer_bytes or not all(map(self.limits.takes, nodes)):
            return False
        place = _places(self.graph)
        used = [user for node in nodes for user in users(self.graph)[node.results[0]]]
        return max(place[node] for node in nodes) < min((place[user] for user in used), default=inf)


def _fits(operands: Row, row: Row) -> bool:
    """Return whether each operand has the shape of its piece, or all are one scalar."""
    if all(a.type.shape == b.type.shape for a, b in zip(operands, row, strict=True)):
        return len({operand.type.dtype for operand in operands}) == 1
    is_same = len({_key(operand) for operand in operands}) == 1
    return is_same and not operands[0].type.shape and all(operand.type.shape for operand in row)


def _row_key(row: Row) -> Key:
    return tuple(map(_key, row))


def _operand_rows(nodes: Sequence[Node]) -> list[Row]:
    return list(zip(*(node.operands for node in nodes), strict=True))


def _are_alike(nodes: Sequence[Node]) -> bool:
    """Return whether nodes are the same operation on operands that may differ in shape."""
    first = nodes[0]
    if any(node.op is not first.op for node in nodes):
        return False
    if first.op.name == _BROADCAST:
        return True
    return (first.op is ALL_REDUCE or first.op.name in ELEMENTWISE) and all(
        len(node.operands) == len(first.operands)
        and node.results[0].type.dtype == first.results[0].type.dtype
        and node.params == first.params
        for node in nodes[1:]
    )


def _bottom_up(
    row: Row, rows_of: Callable[[Row], Sequence[Row]], done: Container[Key]
) -> Iterator[Row]:
    """Yield each row after all rows that it needs. The caller adds the yielded rows to `done`."""
    pending = [row]
    while pending:
        current = pending[-1]
        if _row_key(current) in done:
            pending.pop()
        elif missing := [needed for needed in rows_of(current) if _row_key(needed) not in done]:
            pending += missing
        else:
            yield current


def _is_broadcast_of_one(nodes: Sequence[Node]) -> bool:
    scalar = nodes[0].operands[0]
    operands = {tuple(map(_key, node.operands)) for node in nodes}
    return not scalar.type.shape and operands == {(_key(scalar),)}


@kept_analysis
def _places(graph: Graph) -> Mapping[Node, int]:
    return {node: place for place, node in enumerate(graph.nodes)}


class _Rewriting:
    """The new graph while it is built: its nodes, and the new values of rows and of old values."""

    def __init__(self, graph: Graph, rows: _Rows) -> None:
        self.graph, self.rows = graph, rows
        self.copier = Copier(NAME)
        self.made: dict[Key, Operand] = {}
        self.packed: dict[Key, Operand] = {}

    def of(self, packs: Sequence[Node]) -> Graph:
        """Return the graph with these packs computed from packs."""
        chosen, reduced = set(packs), self._reduced(packs)
        for node in self.graph.nodes:
            if node in reduced:
                row = _row_key(reduced[node])
                nodes = self.rows.plans[row].nodes
                self.made[row] = add_packed(self.copier, nodes, self.rows.limits)
            elif node in chosen:
                self.copier.put(node.results, (self._value(node.operands, node.source),))
            elif not (node.op is ALL_REDUCE and node.results[0] in self.together):
                self.copier.copy(node)
        return self.copier.changed(self.graph)

    def _reduced(self, packs: Sequence[Node]) -> dict[Node, Row]:
        """Return the rows to be reduced, by the last all_reduce of each."""
        self.together: set[Operand] = set()
        found: dict[Node, Row] = {}
        place = _places(self.graph)
        pending: list[Row] = [node.operands for node in packs]
        seen: set[Key] = set()
        while pending:
            row = pending.pop()
            key = _row_key(row)
            if key in seen:
                continue
            seen.add(key)
            plan = self.rows.plans[key]
            if plan.kind == "computed":
                pending += plan.operands
            elif plan.kind == "reduced" and self.together.isdisjoint(row):
                self.together.update(row)
                found[max(plan.nodes, key=place.__getitem__)] = row
        return found

    def _value(self, row: Row, at: Source) -> Operand:
        """Return the flat value of a row. Nodes that compute it are added if they are missing."""
        for needed in _bottom_up(row, self._made_before, self.made):
            key = _row_key(needed)
            self.made[key] = self._made(needed, self.rows.plans[key], at)
        return self.made[_row_key(row)]

    def _made_before(self, row: Row) -> list[Row]:
        """Return the rows from whose flat values a row is computed, without new packs."""
        plan = self.rows.plans[_row_key(row)]
        needed = plan.operands if plan.kind == "computed" else ()
        return [each for each in needed if self.rows.of_operand(each, row).kind != "packed"]

    def _operand(self, operands: Row, row: Row, at: Source) -> Operand:
        key, plan = _row_key(operands), self.rows.of_operand(operands, row)
        if plan.kind != "packed":
            return self.made[key]
        if key not in self.packed:
            self.packed[key] = self._made(operands, plan, at)
        return self.packed[key]

    def _made(self, row: Row, plan: _Plan, at: Source) -> Operand:
        size = sum(operand.type.size for operand in row)
        if plan.kind in ("same", "buffer"):
            assert plan.operand is not None
            return self.copier.now((plan.operand,))[0]
        if plan.kind in ("packed", "reduced"):  # "reduced": another row's all_reduce has its pieces
            return self.copier.add(PACK, self.copier.now(row), at=at)[0]
        first = plan.nodes[0]
        source = joined_source(tuple(node.source for node in plan.nodes))
        type = Type(row[0].type.dtype, (size,))
        if plan.kind == "broadcast":
            assert plan.operand is not None
            scalar = self.copier.now((plan.operand,))
            params = {**first.params, "shape": (size,), "broadcast_dimensions": ()}
            return self.copier.add(first.op, scalar, params, at=source, types=(type,))[0]
        operands = [self._operand(needed_row, row, at) for needed_row in plan.operands]
        types = None if first.op.rule else (type,)
        return self.copier.add(first.op, operands, first.params, at=source, types=types)[0]
