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

Left alone: loops of fewer than three iterations, and gathers of values that an iteration computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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

    def add(self, stack: Operand, step: Operand, builder: Builder) -> Operand:
        """Add the gather of the slice of `stack` that iteration `step` uses."""
        taken = builder.add(TAKE_STEP, (stack, step), at=self.chain[-1])
        return apply_chain(self.chain, taken[0], builder)


def gather_ahead(graph: Graph) -> Graph:
    """Return the graph in which loops gather slices of stacks one iteration ahead."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    return rewrite(graph, _rule, NAME, {SCAN.name})


def _rule(node: Node, operands: Operands, builder: Builder) -> Answer:
    scan = Scan(node, operands)
    last = scan.length - 1
    gathers = list(_gathers(scan)) if scan.length >= _FEWEST_ITERATIONS else []
    if not gathers:
        return None
    edit = ScanEdit(scan, NAME)
    following = np.arange(scan.length) + (-1 if scan.params.reverse else 1)
    held = Holding(np.clip(following, 0, last).astype(np.int32))
    (indices,) = builder.add(CONSTANT, (), held, at=node.source)
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
