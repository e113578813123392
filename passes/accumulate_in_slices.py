"""Add up slices of gradients in a loop over microbatches, in place of gradients in full.

`hoist_accumulation.py` moves the reduction of accumulated gradients behind their loop, where it is
sent once. Meanwhile each replica adds up gradients in full, four bytes a parameter: more than all
it stores, if parameters are stored in slices. So where the sums of a loop take more than
`most_bytes`, each step reduce_scatters what it adds, and the loop carries slices. The gradients of
k microbatches are sent k times.

Before:  %c = scan(%c0, %xs) { %new = jax.add(%c_in, %g) }   %s = reduce_scatter(%c) {axis=0, ..}
After:   %s0 = own_slice(%c0)  %s = scan(%s0, %xs) { %t = reduce_scatter(%g) {axis=0, ..}
                                                     %new = jax.add(%s_in, %t) }

It is the reverse of the other pass, so the same carries move: those that the body uses once, in
`carry + term` or `carry - term`, and that nothing but one reduce_scatter by sum or mean uses behind
the loop. They must begin with a value that all replicas share, or that one replica has of a sum.
The order of additions changes, and with it the last bits of results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import producers, use_counts, users
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.loops import Carry, Scan, ScanEdit
from graphdist.ir.ops import OWN_SLICE, REDUCE_SCATTER, SCAN, SELECT_REPLICA, num_copies_of
from graphdist.ir.rewrite import map_nested, substitute
from graphdist.ir.types import MIRRORED, own_slice

NAME = "accumulate_in_slices"
_ADDITIONS = ("jax.add", "jax.add_any", "jax.sub")


@dataclass(frozen=True, slots=True)
class _Sum:
    """A carry that is only added to, and the reduce_scatter of its last value."""

    carry: Carry
    addition: Node
    term: int
    """Which operand of the addition is added."""
    scatter: Node


@dataclass(frozen=True, slots=True)
class AccumulateInSlices:
    """The pass; sums of so many bytes may be carried in full."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with sums of loops carried in slices where they are too large."""
        graph = map_nested(graph, self)
        loops = {
            node: found
            for node in graph.nodes
            if node.op is SCAN and (found := self._sums(node, graph))
        }
        if not loops:
            return graph
        gone = {carried.scatter for sums in loops.values() for carried in sums}
        builder = Builder(NAME)
        environment: dict[Operand, Operand] = {}
        for node in graph.nodes:
            operands = substitute(environment, node.operands)
            if node in loops:
                scan = Scan(node, operands)
                results = _rebuilt(scan, loops[node], environment, graph, builder)
                environment.update(zip(node.results, results, strict=True))
                for carried in loops[node]:
                    environment[carried.scatter.results[0]] = environment[carried.carry.last]
            elif node not in gone:
                environment.update(
                    zip(node.results, builder.keep(node, operands, node.graphs), strict=True)
                )
        outputs = substitute(environment, graph.outputs)
        return graph.replace(nodes=tuple(builder.nodes), outputs=outputs)

    def _sums(self, node: Node, graph: Graph) -> list[_Sum]:
        """Return the sums of a loop that can be carried in slices, if they take too much."""
        scan = Scan(node)
        sums = [_sum(carry, scan.body, graph) for carry in scan.carries]
        found = [carried for carried in sums if carried is not None]
        bytes = sum(carried.carry.last.type.bytes for carried in found)
        return found if bytes > self.most_bytes else []


def _sum(carry: Carry, body: Graph, graph: Graph) -> _Sum | None:
    behind = users(graph).get(carry.last, ())
    is_scattered = len(behind) == 1 and behind[0].op is REDUCE_SCATTER
    if not is_scattered or use_counts(graph)[carry.last] != 1:
        return None
    output, value = carry.following, carry.value
    addition = producers(body).get(output) if type(output) is Value else None
    if addition is None or addition.op.name not in _ADDITIONS or value not in addition.operands:
        return None
    term = 1 - addition.operands.index(value)
    is_subtracted = addition.op.name == "jax.sub" and term == 0
    counts = use_counts(body)
    if is_subtracted or counts[value] != 1 or counts[addition.results[0]] != 1:
        return None
    if addition.operands[term].type.shape != value.type.shape:
        return None
    if _shared_start(carry.first, behind[0], graph) is None:
        return None
    return _Sum(carry, addition, term, behind[0])


def _shared_start(start: Operand, scatter: Node, graph: Graph) -> Operand | None:
    """Return the value that the reduction makes of what each replica begins with; None: unknown."""
    if scatter.params["reducer"] == "mean":
        return start if start.type.distribution is MIRRORED else None
    if type(start) is Literal:
        return start if start.value == 0 else None
    made = producers(graph).get(cast(Value, start))
    return made.operands[0] if made is not None and made.op is SELECT_REPLICA else None


def _rebuilt(
    scan: Scan,
    sums: Sequence[_Sum],
    outside: Mapping[Operand, Operand],
    graph: Graph,
    builder: Builder,
) -> tuple[Value, ...]:
    """Add the loop with sums in slices."""
    edit = ScanEdit(scan, NAME)
    for carried in sums:
        start = _shared_start(carried.carry.first, carried.scatter, graph)
        assert start is not None
        made = producers(graph).get(cast(Value, start))
        (start,) = substitute(outside, (start,))
        slice = _slice_of(start, made, carried.scatter, builder)
        edit.replace(carried.carry.value, slice, carried.scatter.results[0].type)
    additions = {carried.addition: carried for carried in sums}
    for node in scan.body.nodes:
        added = additions.get(node)
        if added is None:
            edit.keep_node(node)
            continue
        operands = list(substitute(edit.environment, node.operands))
        scatter = added.scatter
        (operands[added.term],) = edit.inside.add(
            REDUCE_SCATTER, (operands[added.term],), scatter.params, at=scatter.source
        )
        types, hint = [scatter.results[0].type], node.results[0].hint
        (edit.environment[node.results[0]],) = edit.inside.add(
            node.op, operands, node.params, at=node.source, types=types, hint=hint
        )
    return edit.finish(builder)


def _slice_of(start: Operand, made: Node | None, scatter: Node, builder: Builder) -> Operand:
    """Return the replica's slice of what a sum begins with; `made` is the node that makes it."""
    of_slice = {name: value for name, value in scatter.params.items() if name != "reducer"}
    axis, count = (cast(int, of_slice[name]) for name in ("axis", "group_size"))
    type = own_slice(start.type, axis, count, num_copies_of(of_slice))
    if isinstance(start, Literal):
        return Literal.of(start.value, type)
    if made is not None and made.op.name == "jax.broadcast_in_dim":
        (number,) = made.operands
        if isinstance(number, Literal) and not number.type.shape:
            params = {**made.params, "shape": type.shape}
            return builder.add(made.op, (number,), params, at=made.source, types=[type])[0]
    return builder.add(OWN_SLICE, (start,), of_slice, at=scatter.source)[0]
