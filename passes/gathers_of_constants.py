"""Gather what every step of a loop takes once in front of the loop, or in each step of it.

A loop over microbatches takes all parameters in each step. Gathered once, they are sent once, and
are in memory in full as long as the loop runs; gathered in each step, they are sent k times, and
are in memory while the step uses them. So they are gathered in front of the loop up to `most_bytes`
of memory, the smallest first, since a collective has a cost of its own; the others in each step. A
loop that says `gather="once"`, or "each", is obeyed.

Before:  %w_all = all_gather(%w)   %c = scan(%w_all, %c0, %xs) { .. %w_in : f32[8,4] mirrored .. }
After:   %c = scan(%w, %c0, %xs) { %w_all = all_gather(%w_in)  .. }  if it is too large; else
         the other way round

Left alone: `while` loops, whose number of steps nobody knows, and gathers of values that a step
computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.ir.rewrite import Rewriter, rewrite

NAME = "gathers_of_constants"


@dataclass(frozen=True, slots=True)
class GathersOfConstants:
    """The pass; gathered values of so many bytes may be in memory as long as a loop runs."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with constants of loops gathered where the memory allows it."""

        def rule(
            node: Node, operands: tuple[Operand, ...], rewriter: Rewriter
        ) -> Sequence[Operand] | None:
            loop = _Loop(node, operands, rewriter)
            kept = self._kept(loop)
            moving_in = [value for value, gather in loop.outside.items() if gather not in kept]
            moving_out = [gather for gather in loop.inside if gather in kept]
            if not moving_in and not moving_out:
                return None
            return loop.rebuilt(moving_in, moving_out)

        return rewrite(graph, rule, NAME, {SCAN.name})

    def _kept(self, loop: _Loop) -> set[Node]:
        """Return the gathers that stand in front of a loop, or are to."""
        gathers = dict.fromkeys([*loop.outside.values(), *loop.inside])
        if (told := loop.node.params.get("gather")) is not None:
            return set(gathers) if told == "once" else set()
        kept, bytes = set(), 0
        for gather in sorted(gathers, key=lambda gather: gather.results[0].type.bytes):
            bytes += gather.results[0].type.bytes
            if bytes > self.most_bytes:
                break
            kept.add(gather)
        return kept


class _Loop:
    """One scan, with the gathers of its constants in front of it and in its body."""

    def __init__(self, node: Node, operands: tuple[Operand, ...], rewriter: Rewriter) -> None:
        self.node, self.scan, self.rewriter = node, Scan(node, operands), rewriter
        constants = {value: operand for operand, value in self.scan.constants}
        found = {
            value: rewriter.definition(operand, ALL_GATHER.name)
            for value, operand in constants.items()
        }
        self.outside = {value: gather for value, gather in found.items() if gather is not None}
        """The gather in front of the loop that makes a constant, by the input of the body."""
        self.inside = {
            inner: constants[value]
            for inner in self.scan.body.nodes
            if inner.op is ALL_GATHER and (value := cast(Value, inner.operands[0])) in constants
        }
        """The constant that a node of the body gathers."""

    def rebuilt(self, moving_in: Sequence[Value], moving_out: Sequence[Node]) -> Sequence[Operand]:
        """Add the loop with constants gathered in it, and others gathered in front of it."""
        edit = ScanEdit(self.scan, NAME)
        for value in moving_in:
            gather = self.outside[value]
            slice = edit.replace(value, gather.operands[0])
            (edit.environment[value],) = edit.inside.add(
                ALL_GATHER, (slice,), gather.params, at=gather.source, hint=value.hint
            )
        for gather in moving_out:
            (result,) = gather.results
            (full,) = self.rewriter.add(
                ALL_GATHER,
                (self.inside[gather],),
                gather.params,
                at=gather.source,
                hint=result.hint,
            )
            edit.environment[result] = edit.add_constant(full, result.hint)
        edit.keep_nodes(without=moving_out)
        return edit.finish(self.rewriter)
