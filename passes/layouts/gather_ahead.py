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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from graphdist.ir.analyses import operations, producers
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.loops import Scan, ScanEdit
from graphdist.ir.op_parameters import Holding
from graphdist.ir.operation_table import ELEMENTWISE
from graphdist.ir.ops import ALL_GATHER, CONSTANT, SCAN, TAKE_STEP
from graphdist.ir.rewrite import rewrite
from graphdist.ir.types import Type

NAME = "gather_ahead"
_FEWEST_ITERATIONS = 3


@dataclass(frozen=True, slots=True)
class _Gather:
    """A gather of a slice of a scanned stack, with the nodes between the slice and the gather."""

    stack: Operand
    """The operand that the loop scans."""
    slice: Value
    """The body's input for the slices of the stack."""
    chain: tuple[Node, ...]
    """The nodes from the first operation on the slice to the gather."""

    @property
    def result(self) -> Value:
        """Return the gathered value."""
        return self.chain[-1].results[0]


def gather_ahead(graph: Graph) -> Graph:
    """Return the graph in which loops gather slices of stacks one iteration ahead."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    return rewrite(graph, _rule, NAME, {SCAN.name})


def _rule(node: Node, operands: tuple[Operand, ...], builder: Builder) -> Sequence[Operand] | None:
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
    stacks = {gather.slice: gather.stack for gather in gathers}
    constants = {slice: edit.add_constant(stack, slice.hint) for slice, stack in stacks.items()}
    for gather in gathers:
        hint = gather.result.hint
        carry = edit.add_carry(_gathered(gather, gather.stack, first, builder), hint)
        edit.follow(carry, _gathered(gather, constants[gather.slice], index, edit.inside))
        edit.environment[gather.result] = carry
    edit.keep_nodes(without={gather.chain[-1] for gather in gathers})
    return edit.finish(builder)


def _gathers(scan: Scan) -> Iterator[_Gather]:
    """Yield the gathers of a loop's body that can move to the previous iteration."""
    made_by = producers(scan.body)
    scanned: dict[Operand, Operand] = {value: stack for stack, value in scan.scanned}
    for gather in scan.body.nodes:
        if gather.op is not ALL_GATHER:
            continue
        chain = [gather]
        operand = gather.operands[0]
        while operand not in scanned:
            made = made_by.get(operand) if type(operand) is Value else None
            values = [] if made is None else [v for v in made.operands if type(v) is Value]
            if made is None or made.op.name not in ELEMENTWISE or len(values) != 1:
                break
            chain.insert(0, made)
            (operand,) = values
        else:
            yield _Gather(scanned[operand], cast(Value, operand), tuple(chain))


def _gathered(gather: _Gather, stack: Operand, step: Operand, builder: Builder) -> Operand:
    """Add the gather of the slice of `stack` that iteration `step` uses."""
    at = gather.chain[-1].source
    (value,) = cast(
        "tuple[Operand]", builder.add(TAKE_STEP, (stack, step), at=at, hint=gather.result.hint)
    )
    for node in gather.chain:
        operands = [value if type(operand) is Value else operand for operand in node.operands]
        types = None if node.op.rule else [node.results[0].type]
        hint = node.results[0].hint
        (value,) = builder.add(
            node.op, operands, node.params, at=node.source, types=types, hint=hint
        )
    return value
