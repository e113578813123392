"""Gather in each step of a loop what the next step takes, while this one computes.

A step of a loop over layers begins with a gather of its weights, and nothing can be computed before
the first has come. So the loop carries gathered weights: each step gathers the weights of the next,
which depend on nothing that it computes, and an accelerator sends while it computes. One more
gathered layer is in memory. The first is gathered in front of the loop; the last step gathers its
own again, which nothing uses: 1/L more bytes are sent for L steps. (Prefetch of fully sharded data
parallel, Zhao et al. 2023, "PyTorch FSDP", section 3.3.2, here for loops, forward and backward.)

Before:  %y = scan(%x, %w) { %all = all_gather(%slice)  .. %all .. }
After:   %first = all_gather(take_step(%w, 0))
         %y = scan(%w, %first, %x, [1, 2, .., L-1, L-1]) {
           %next = all_gather(take_step(%w_in, %i))  .. %all_in ..  return %next, .. }

How it works. A gather is made ahead if its operand is made of one stack that the loop takes apart,
by operations that compute each element by itself. The stack becomes a constant of the loop, and the
numbers of the next steps are a stack of their own, backwards for a reversed loop.

Left alone: loops of fewer than three steps, and gathers of values that a step computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from graphdist.ir.analyses import operations, producers
from graphdist.ir.builder import Builder
from graphdist.ir.elementwise import ELEMENTWISE
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, CONSTANT, SCAN, TAKE_STEP
from graphdist.ir.rewrite import rewrite, substitute
from graphdist.ir.types import MIRRORED, Type
from graphdist.passes.stacks import first_stack, num_carry_of

NAME = "gather_ahead"
_FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True)
class _Gather:
    """A gather of a slice that a step takes of a stack, with the nodes between."""

    place: int
    """The place of the stack among the operands of the loop."""
    chain: tuple[Node, ...]
    """From the first operation on the slice to the gather."""

    @property
    def result(self) -> Value:
        """Return the gathered value."""
        return self.chain[-1].results[0]


def gather_ahead(graph: Graph) -> Graph:
    """Return the graph with what loops gather of stacks gathered one step ahead."""
    if not {SCAN.name, ALL_GATHER.name} <= operations(graph):
        return graph
    return rewrite(graph, _rule, NAME, {SCAN.name})


def _rule(node: Node, operands: tuple[Operand, ...], builder: Builder) -> Sequence[Operand] | None:
    length = cast(int, node.params["length"])
    gathers = list(_gathers(node)) if length >= _FEWEST_STEPS else []
    if not gathers:
        return None
    (body,) = node.graphs
    is_reverse = bool(node.params["reverse"])
    steps = np.arange(-1, length - 1) if is_reverse else np.arange(1, length + 1)
    following = np.clip(steps, 0, length - 1).astype(np.int32)
    (numbers,) = builder.add(CONSTANT, (), {"value": following}, at=node.source)
    start = Literal.of(length - 1 if is_reverse else 0, Type("i32", ()))
    places = sorted({gather.place for gather in gathers})
    stacks = [operands[place] for place in places]
    first = [
        _gathered(gather, stacks[places.index(gather.place)], start, builder) for gather in gathers
    ]
    num_consts, num_carry = cast(int, node.params["num_consts"]), num_carry_of(node)
    begin = num_consts + num_carry
    params = {
        **node.params,
        "num_consts": num_consts + len(stacks),
        "num_carry": num_carry + len(first),
    }
    taken = (
        *operands[:num_consts],
        *stacks,
        *operands[num_consts:begin],
        *first,
        *operands[begin:],
        numbers,
    )
    ahead = _body_ahead(body, gathers, places, stacks, num_consts, num_carry)
    results = builder.add(SCAN, taken, params, (ahead,), at=node.source)
    return (*results[:num_carry], *results[num_carry + len(first) :])


def _gathers(node: Node) -> Iterator[_Gather]:
    """Yield the gathers of a loop's body that can be made ahead."""
    (body,) = node.graphs
    made_by = producers(body)
    begin = first_stack(node)
    stacked = {value: place for place, value in enumerate(body.inputs[begin:], begin)}
    for gather in body.nodes:
        if gather.op is not ALL_GATHER:
            continue
        chain = [gather]
        operand = gather.operands[0]
        while operand not in stacked:
            made = made_by.get(operand) if type(operand) is Value else None
            values = [] if made is None else [v for v in made.operands if type(v) is Value]
            if made is None or made.op.name not in ELEMENTWISE or len(values) != 1:
                break
            chain.insert(0, made)
            (operand,) = values
        else:
            yield _Gather(stacked[operand], tuple(chain))


def _gathered(gather: _Gather, stack: Operand, step: Operand, builder: Builder) -> Operand:
    """Add the gather of what a step takes of a stack."""
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


def _body_ahead(
    body: Graph,
    gathers: Sequence[_Gather],
    places: Sequence[int],
    stacks: Sequence[Operand],
    num_consts: int,
    num_carry: int,
) -> Graph:
    """Return the body that takes gathered values, and gathers the values of the next step."""
    builder = Builder(NAME)
    begin = num_consts + num_carry
    hints = [body.inputs[place].hint for place in places]
    consts = [Value(stack.type, hint) for stack, hint in zip(stacks, hints, strict=True)]
    carried = [Value(gather.result.type, gather.result.hint) for gather in gathers]
    number = Value(Type("i32", (), MIRRORED), "next_step")
    inputs = (
        *body.inputs[:num_consts],
        *consts,
        *body.inputs[num_consts:begin],
        *carried,
        *body.inputs[begin:],
        number,
    )
    following = [
        _gathered(gather, consts[places.index(gather.place)], number, builder) for gather in gathers
    ]
    environment: dict[Operand, Operand] = {
        gather.result: value for gather, value in zip(gathers, carried, strict=True)
    }
    made = {gather.chain[-1] for gather in gathers}
    for node in body.nodes:
        if node not in made:
            results = builder.keep(node, substitute(environment, node.operands), node.graphs)
            environment.update(zip(node.results, results, strict=True))
    outputs = substitute(environment, body.outputs)
    return body.replace(
        inputs=inputs,
        nodes=tuple(builder.nodes),
        outputs=(*outputs[:num_carry], *following, *outputs[num_carry:]),
    )
