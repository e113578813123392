"""In each iteration of a loop, gather the weights of the next iteration.

Without this pass, an iteration of a loop over layers first gathers its weights, and cannot compute
before the weights arrive. With the pass, the loop carries gathered weights: each iteration gathers
the weights of the next iteration. These do not depend on the iteration's own results, so an
accelerator sends them while it computes. Memory holds one more gathered layer. The weights of the
first iteration are gathered before the loop. The last iteration gathers its own weights again,
which nothing uses: a loop of L iterations sends 1/L more bytes. (This is the prefetch of fully
sharded data parallel, Zhao et al. 2023, "PyTorch FSDP", section 3.3.2, here for the loops of the
forward and the backward pass.)

Before:  %y = scan(%x, %w) { %all = all_gather(%slice)  .. %all .. }
After:   %first = all_gather(take_step(%w, 0))
         %y = scan(%w, %first, %x, [1, 2, .., L-1, L-1]) {
           %next = all_gather(take_step(%w_in, %i))  .. %all_in ..  return %next, .. }

How it works. A gather moves to the previous iteration if its operand is computed from a slice of a
scanned stack by elementwise operations. The stack becomes a constant of the loop, and the indices
of the next iterations are scanned, in reverse for a reversed loop.

What an iteration gathers for itself and for the next may take `most_bytes` together. If it would
take more, only the gathers move that an iteration runs first: the others have the computation
before them to overlap with.

Left alone: loops of fewer than three iterations, and gathers of values that an iteration computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from graphdist.ir.analyses import operations, producer_of
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value
from graphdist.ir.loops import Scan, ScanEdit, Taken
from graphdist.ir.op_parameters import Holding
from graphdist.ir.ops import ALL_GATHER, CONSTANT, SCAN, TAKE_STEP
from graphdist.ir.rewrite import Answer, rewrite
from graphdist.ir.types import Type
from graphdist.passes.layouts.elementwise_chains import apply_chain, elementwise_operand

NAME = "gather_ahead"
_FEWEST_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class _Gather:
    """A gather of a slice of a scanned stack, with the nodes between the slice and the gather."""

    scanned: Taken
    """The stack, and the body's input for its slices."""
    chain: tuple[Node, ...]
    """The nodes from the first operation on the slice to the gather."""

    @property
    def bytes(self) -> int:
        """Return the bytes of the gathered value."""
        return self.chain[-1].results[0].type.bytes

    def add(self, stack: Operand, step: Operand, builder: Builder) -> Operand:
        """Add the gather of the slice of `stack` that iteration `step` uses."""
        taken = builder.add(TAKE_STEP, (stack, step), at=self.chain[-1])
        return apply_chain(self.chain, taken[0], builder)


@dataclass(frozen=True, slots=True)
class GatherAhead:
    """The pass; gathered values of two iterations may take `most_bytes` at once."""

    most_bytes: int

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph in which loops gather slices of stacks one iteration ahead."""
        if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
            return graph
        return rewrite(graph, self._rule, NAME, {SCAN.name})

    def _rule(self, node: Node, operands: Operands, builder: Builder) -> Answer:
        scan = Scan(node, operands)
        gathers = self._that_fit(scan) if scan.length >= _FEWEST_ITERATIONS else []
        return _gathered_ahead(scan, gathers, builder) if gathers else None

    def _that_fit(self, scan: Scan) -> list[_Gather]:
        """Return the first gathers of an iteration that fit beside all gathered values."""
        gathers = list(_gathers(scan))
        left = self.most_bytes - _held(scan)
        ends = accumulate(gather.bytes for gather in gathers)
        return [gather for gather, end in zip(gathers, ends, strict=True) if end <= left]


def _held(scan: Scan) -> int:
    """Return the bytes of what an iteration gathers; twice those of what it gathers ahead."""
    ahead = {carry.following for carry in scan.carries}
    gathered = (node.results[0] for node in scan.body.nodes if node.op is ALL_GATHER)
    return sum(value.type.bytes * (2 if value in ahead else 1) for value in gathered)


def _gathered_ahead(scan: Scan, gathers: Sequence[_Gather], builder: Builder) -> Answer:
    last = scan.length - 1
    edit = ScanEdit(scan, NAME)
    following = np.arange(scan.length) + (-1 if scan.params.reverse else 1)
    held = Holding(np.clip(following, 0, last).astype(np.int32))
    (indices,) = builder.add(CONSTANT, (), held, at=scan.node.source)
    index = edit.add_scanned(indices, "next_step")
    first = Literal.of(last if scan.params.reverse else 0, Type("i32", ()))
    stacks = {slice: (stack, slice.hint) for stack, slice in (each.scanned for each in gathers)}
    constants = {slice: edit.add_constant(*stack) for slice, stack in stacks.items()}
    for gather in gathers:
        (stack, slice), (result,) = gather.scanned, gather.chain[-1].results
        carry = edit.add_carry(gather.add(stack, first, builder), result.hint)
        edit.follow(carry, gather.add(constants[slice], index, edit.inside))
        edit.environment[result] = carry
    edit.keep_nodes(without={gather.chain[-1] for gather in gathers})
    return edit.finish(builder)


def _gathers(scan: Scan) -> Iterator[_Gather]:
    """Yield the gathers of a loop's body that can move to the previous iteration."""
    scanned: dict[Operand, Taken] = {taken.value: taken for taken in scan.scanned}
    for gather in scan.body.nodes:
        if gather.op is ALL_GATHER:
            chain = [gather]
            operand: Operand | None = gather.operands[0]
            while type(operand) is Value and operand not in scanned:
                made = producer_of(operand, scan.body)
                if made is None or (operand := elementwise_operand(made)) is None:
                    break
                chain.insert(0, made)
            if operand in scanned:
                yield _Gather(scanned[operand], tuple(chain))
