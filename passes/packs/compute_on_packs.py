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

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias, TypeVar

from graphdist.ir.analyses import places, producers, users
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_REDUCE, PACK, UNPACK, is_over_all, reducer_of
from graphdist.ir.rewrite import Copier
from graphdist.ir.source import Source, joined_source
from graphdist.ir.types import Type
from graphdist.passes.packs.bucket_collectives import add_packed
from graphdist.passes.packs.pack_limits import PackLimits

NAME = "compute_on_packs"

Row: TypeAlias = Operands
Key: TypeAlias = tuple[Hashable, ...]
T = TypeVar("T")

_BROADCAST = "jax.broadcast_in_dim"


@dataclass(frozen=True, slots=True)
class ComputeOnPacks:
    """The pass for one target, whose limits say which collectives may be packed."""

    limits: PackLimits

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with packs computed from packs where that is possible."""
        rows = _Rows(graph, self.limits)
        packs = [node for node in graph.nodes if node.op is PACK and len(node.operands) > 1]
        plans = {pack: rows.plan(pack.operands) for pack in packs}
        # Those that can be computed from packs of which at most one is new.
        chosen = {
            pack: plan for pack, plan in plans.items() if plan.kind in ("computed", "reduced")
        }
        return _Rewriting(graph, chosen, self.limits).run() if chosen else graph


def _key(operand: Operand) -> Hashable:
    """Return a key that differs for different operands, also for the literals 0.0 and -0.0."""
    if isinstance(operand, Literal):
        return repr(operand.value), operand.type
    return operand


def _row_key(row: Row) -> Key:
    return tuple(map(_key, row))


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """How a row becomes one value: the kind of the value, and from what it is made."""

    kind: str
    row: Row
    nodes: Sequence[Node] = ()
    """The nodes that compute the values of the row."""
    operands: Sequence[_Plan] = ()
    """The plans of the operands' rows, if the value is computed."""
    packed: frozenset[Key] = frozenset()
    """The rows that have to be packed, without reduced rows."""


def _packed(row: Row) -> _Plan:
    return _Plan("packed", row, packed=frozenset((_row_key(row),)))


@dataclass(slots=True)
class _Rows:
    """The plans of rows, each made once."""

    graph: Graph
    limits: PackLimits
    plans: dict[Key, _Plan] = field(default_factory=dict)
    shared: dict[Key, _Plan] = field(default_factory=dict)
    """The plans of rows of one scalar that has to be packed."""

    def plan(self, row: Row) -> _Plan:
        """Return the plan of a row."""
        plans = self.plans
        for needed in _bottom_up(row, self._operand_rows, lambda row: _row_key(row) in plans):
            plans[_row_key(needed)] = self._planned(needed)
        return plans[_row_key(row)]

    def _planned(self, row: Row) -> _Plan:
        if _is_of_one(row) and not row[0].type.shape:
            return _Plan("same", row)
        nodes = self._producers(row)
        if nodes and nodes[0].op is UNPACK and row == nodes[0].results:
            return _packed(row) if UNPACK.of(nodes[0]).axes else _Plan("buffer", row, nodes)
        if not nodes or len(set(nodes)) < len(nodes) or not _are_alike(nodes):
            return _packed(row)
        if nodes[0].op.name == _BROADCAST and _is_broadcast_of_one(nodes):
            return _Plan("broadcast", row, nodes)
        if nodes[0].op is ALL_REDUCE and self._are_reduced_together(nodes):
            return _Plan("reduced", row, nodes)
        operands = [self._operand(operand_row, row) for operand_row in self._operand_rows(row)]
        packed = frozenset[Key]().union(*(plan.packed for plan in operands))
        if all(plan.kind == "same" for plan in operands) or len(packed) > 1:
            return _packed(row)
        return _Plan("computed", row, nodes, operands, packed)

    def _operand(self, operands: Row, row: Row) -> _Plan:
        """Return the plan of `operands`, from which `row` is computed.

        If the pieces of `row` are scalars, a value that all of them share is packed, too: an
        operation on scalars becomes one on buffers, whose only scalar operands may be literals.
        """
        plan = self.plans[_row_key(operands)]
        if plan.kind == "same" and isinstance(operands[0], Value) and not row[0].type.shape:
            return self.shared.setdefault(_row_key(operands), _packed(operands))
        return plan

    def _operand_rows(self, row: Row) -> list[Row]:
        """Return the rows from which a row of one elementwise operation is computed."""
        nodes = self._producers(row)
        if not nodes or nodes[0].op.name not in ELEMENTWISE or not _are_alike(nodes):
            return []
        rows = list(zip(*(node.operands for node in nodes), strict=True))
        return rows if all(_fits(needed_row, row) for needed_row in rows) else []

    def _producers(self, row: Row) -> list[Node]:
        """Return the nodes that compute the values of a row; none if there is another operand."""
        made_by = producers(self.graph)
        nodes = [made_by[each] for each in row if type(each) is Value and each in made_by]
        return nodes if len(nodes) == len(row) else []

    def _are_reduced_together(self, nodes: Sequence[Node]) -> bool:
        """Return whether all_reduces may become one, at the position of the last of them."""
        size = sum(node.operands[0].type.bytes for node in nodes)
        if size > self.limits.buffer_bytes or not all(map(self.limits.takes, nodes)):
            return False
        place = places(self.graph)
        used = [user for node in nodes for user in users(self.graph)[node.results[0]]]
        return max(place[node] for node in nodes) < min((place[user] for user in used), default=inf)


def _is_of_one(row: Row) -> bool:
    return len(set(_row_key(row))) == 1


def _fits(operands: Row, row: Row) -> bool:
    """Return whether each operand has the shape of its piece, or all are one scalar."""
    if all(a.type.shape == b.type.shape for a, b in zip(operands, row, strict=True)):
        return len({operand.type.dtype for operand in operands}) == 1
    is_scalar = _is_of_one(operands) and not operands[0].type.shape
    return is_scalar and all(operand.type.shape for operand in row)


def _are_alike(nodes: Sequence[Node]) -> bool:
    """Return whether nodes are the same operation on operands that may differ in shape."""
    first = nodes[0]
    if first.op.name == _BROADCAST:
        return all(node.op is first.op for node in nodes)
    if first.op is not ALL_REDUCE and first.op.name not in ELEMENTWISE:
        return False
    count, dtype = len(first.operands), first.results[0].type.dtype
    params = _params(first)
    return all(
        node.op is first.op
        and len(node.operands) == count
        and node.results[0].type.dtype == dtype
        and _params(node) == params
        for node in nodes
    )


def _params(node: Node) -> object:
    """Return parameters to compare; two mappings of ours would be compared item by item."""
    return (reducer_of(node), is_over_all(node)) if node.op is ALL_REDUCE else node.params


def _is_broadcast_of_one(nodes: Sequence[Node]) -> bool:
    scalar = nodes[0].operands[0]
    operands = {_row_key(node.operands) for node in nodes}
    return not scalar.type.shape and operands == {(_key(scalar),)}


def _bottom_up(
    start: T, needs: Callable[[T], Sequence[T]], is_done: Callable[[T], bool]
) -> Iterator[T]:
    """Yield each item after all items that it needs, until the caller has done `start`."""
    pending = [start]
    while pending:
        was_done = is_done(pending[-1])
        if not was_done and (missing := [each for each in needs(pending[-1]) if not is_done(each)]):
            pending += missing
            continue
        item = pending.pop()
        if not was_done:
            yield item


class _Rewriting:
    """The new graph while it is built: its nodes, and the flat value of each plan."""

    def __init__(self, graph: Graph, chosen: Mapping[Node, _Plan], limits: PackLimits) -> None:
        self.graph, self.chosen, self.limits = graph, chosen, limits
        self.copier = Copier(NAME)
        self.made: dict[_Plan, Operand] = {}

    def run(self) -> Graph:
        """Return the graph with the chosen packs computed from packs."""
        reduced = self._reduced()
        together = {value for plan in reduced.values() for value in plan.row}
        for node in self.graph.nodes:
            if node in reduced:
                plan = reduced[node]
                self.made[plan] = add_packed(self.copier, plan.nodes, self.limits)
            elif node in self.chosen:
                self.copier.put(node.results, (self._value(self.chosen[node], node.source),))
            elif not (node.op is ALL_REDUCE and node.results[0] in together):
                self.copier.copy(node)
        return self.copier.changed(self.graph)

    def _reduced(self) -> dict[Node, _Plan]:
        """Return the plans of rows to be reduced, by the last all_reduce of each."""
        together: set[Operand] = set()
        found: dict[Node, _Plan] = {}
        pending, seen = list(self.chosen.values()), set[_Plan]()
        while pending:
            plan = pending.pop()
            if plan not in seen:
                seen.add(plan)
                pending += plan.operands
                if plan.kind == "reduced" and together.isdisjoint(plan.row):
                    together.update(plan.row)
                    found[max(plan.nodes, key=places(self.graph).__getitem__)] = plan
        return found

    def _value(self, plan: _Plan, at: Source) -> Operand:
        """Return the flat value of a plan. Nodes that compute it are added if they are missing."""
        for needed in _bottom_up(plan, _without_packs, self.made.__contains__):
            self.made[needed] = self._made(needed, at)
        return self.made[plan]

    def _made(self, plan: _Plan, at: Source) -> Operand:
        """Return the flat value of a plan whose operands have flat values; new packs are added."""
        if plan.kind == "same":
            return self.copier.now(plan.row[:1])[0]
        if plan.kind in ("packed", "reduced"):  # "reduced": another row's all_reduce has its pieces
            return self.copier.add(PACK, self.copier.now(plan.row), at=at)[0]
        first = plan.nodes[0]
        if plan.kind == "buffer":
            return self.copier.now(first.operands)[0]
        size = sum(operand.type.size for operand in plan.row)
        types = [Type(plan.row[0].type.dtype, (size,))]
        source = joined_source(tuple(node.source for node in plan.nodes))
        if plan.kind == "broadcast":
            scalar = self.copier.now(first.operands)
            params = {**first.params, "shape": (size,), "broadcast_dimensions": ()}
            return self.copier.add(first.op, scalar, params, at=source, types=types)[0]
        for operand in plan.operands:
            if operand not in self.made:
                self.made[operand] = self._made(operand, at)
        operands = [self.made[operand] for operand in plan.operands]
        stated = None if first.op.rule else types
        return self.copier.add(first.op, operands, first.params, at=source, types=stated)[0]


def _without_packs(plan: _Plan) -> list[_Plan]:
    """Return the plans of the operands, without those of new packs."""
    return [each for each in plan.operands if each.kind != "packed"]
