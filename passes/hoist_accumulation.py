"""Reduce once after a loop what a loop only adds up, in place of once a turn.

Accumulating gradients over k small batches with a reduction in the loop sends k times what is
needed. A reduction by sum or mean is linear, so the replicas can each add up their own and reduce
the total. XLA does it on GPU and TPU if nothing but the addition stands between, and on CPU never;
a division by k or a cast is enough to stop it there, and is no obstacle here.

How it works. A carry of a scan is only accumulated if its one use in the body is in `carry + term`
or `carry - term`, which is nothing but the carry's next value, and the term is made of one
all_reduce by linear operations, each value used once. It is the same on every replica, so that it
begins alike and no factor on the way is a replica's own. Then the body adds what the reduction
took, with the same operations applied, and the reduction is of the last carry. The carry begins
with what it began with: on all replicas under a mean, on the first alone under a sum.

Before:  %c = scan(%zero, %xs) { %g = all_reduce(%x)  %h = jax.mul(%g, 0.25)  %new = %c_in + %h }
After:   %p = scan(%zero, %xs) { %h = jax.mul(%x, 0.25)  %new = %c_in + %h }  %c = all_reduce(%p)

It changes the order of additions, and with it the last bits of results. Sums are kept in the dtype
of the carry: with gradients in bfloat16 and a carry in float32 they are better than before; near
the largest number of a dtype they may overflow, since the mean is taken last. Left alone: carries
the body reads for something else, float16 carries, narrowing casts, and `while` loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import producers, users
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.ops import ALL_REDUCE, RESHAPE, SCALE, SCAN, SELECT_REPLICA
from graphdist.ir.rewrite import rewrite, substitute
from graphdist.ir.types import MIRRORED, PER_REPLICA
from graphdist.passes.linear_chains import Chain, reduction_behind

NAME = "hoist_accumulation"

_ADDITIONS = ("jax.add", "jax.sub", "jax.add_any")
_FIRST_OPERAND = (RESHAPE.name, SCALE.name, "jax.neg", "jax.div", "jax.reshape", "jax.transpose")
_WIDTH = {"bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128}


def hoist_accumulation(graph: Graph) -> Graph:
    """Return the graph with reductions that are only added up moved behind their loops."""
    return rewrite(graph, _hoist, NAME, {SCAN.name})


@dataclass(frozen=True)
class _Accumulation:
    """A carry that is only added to: its place, and how the reduction got into the sum."""

    place: int
    addition: Node
    term: int
    """Which operand of the addition the term is."""
    reduction: Node
    chain: Chain


def _hoist(node: Node, operands: tuple[Operand, ...], builder: Builder) -> Sequence[Operand] | None:
    (body,) = node.graphs
    num_consts = cast(int, node.params["num_consts"])
    if cast(int, node.params["length"]) < 2:
        return None
    found = [
        accumulation
        for place in range(cast(int, node.params["num_carry"]))
        if (accumulation := _accumulation(body, num_consts, place)) is not None
    ]
    if not found:
        return None
    start = list(operands)
    for one in found:
        start[num_consts + one.place] = _start(start[num_consts + one.place], one, builder)
    results = list(builder.keep(node, tuple(start), (_local(body, num_consts, found),)))
    for one in found:
        (results[one.place],) = builder.add(
            ALL_REDUCE,
            (results[one.place],),
            one.reduction.params,
            at=one.reduction.source,
            hint=node.results[one.place].hint,
        )
    return results


def _start(operand: Operand, one: _Accumulation, builder: Builder) -> Operand:
    """Return what each replica begins with, so that the reduction makes the operand of it."""
    is_zero = type(operand) is Literal and operand.value == 0
    if one.reduction.params["reducer"] == "mean" or is_zero:
        return operand
    params = {"replica": 0, "group_size": one.reduction.params["group_size"]}
    return builder.add(SELECT_REPLICA, (operand,), params, at=one.reduction.source)[0]


def _accumulation(body: Graph, num_consts: int, place: int) -> _Accumulation | None:
    """Return how a carry is only added to, if it is."""
    carry, new = body.inputs[num_consts + place], body.outputs[place]
    # One that differs between replicas begins so, or a factor of each replica's own makes it so.
    if carry.type.distribution is not MIRRORED:
        return None
    if carry.type.dtype not in _WIDTH or type(new) is not Value or not _is_used_once(body, carry):
        return None
    addition = producers(body).get(new)
    if addition is None or addition.op.name not in _ADDITIONS:
        return None
    if users(body)[new] or body.outputs.count(new) > 1 or carry not in addition.operands:
        return None
    term = 1 - addition.operands.index(carry)
    if addition.op.name == "jax.sub" and term == 0:
        return None
    made = _reduction_of(body, addition.operands[term])
    return None if made is None else _Accumulation(place, addition, term, *made)


def _reduction_of(body: Graph, operand: Operand) -> tuple[Node, Chain] | None:
    """Return the reduction that a term is made of, and how."""

    def made_by(operand: Operand) -> Node | None:
        if type(operand) is not Value or not _is_used_once(body, operand):
            return None
        return producers(body).get(operand)

    return reduction_behind(operand, made_by, _linear_in)


def _is_used_once(body: Graph, value: Value) -> bool:
    """Return whether one node uses a value, once, and the body does not return it."""
    using = users(body)[value]
    return (
        len(using) == 1 and using[0].operands.count(value) == 1 and value not in body.outputs
    ) or (not using and body.outputs.count(value) == 1)


def _linear_in(node: Node) -> Sequence[int]:
    """Return the places of the operands that may be added up in place of the result."""
    name, result = node.op.name, node.results[0].type
    if name == "jax.mul":
        places: Sequence[int] = (0, 1)
    elif name in _FIRST_OPERAND:
        places = (0,)
    elif name == "jax.convert_element_type":
        operand = node.operands[0].type
        places = (0,) if _WIDTH.get(operand.dtype, 999) <= _WIDTH.get(result.dtype, 0) else ()
    else:
        places = ()
    return [place for place in places if node.operands[place].type.size == result.size]


def _local(body: Graph, num_consts: int, found: Sequence[_Accumulation]) -> Graph:
    """Return the body with each replica adding up its own."""
    inputs = list(body.inputs)
    environment: dict[Operand, Operand] = {}
    for one in found:
        old = inputs[num_consts + one.place]
        new = Value(old.type.distributed(PER_REPLICA), old.hint)
        inputs[num_consts + one.place] = environment[old] = new
    additions = {one.addition: one for one in found}
    builder = Builder(NAME)
    for node in body.nodes:
        accumulation = additions.get(node)
        if accumulation is not None:
            term = accumulation.reduction.operands[0]
            (term,) = substitute(environment, (term,))
            for linear, place in reversed(accumulation.chain):
                term = _again(linear, place, term, environment, builder)
            environment[node.results[0]] = _again(
                node, accumulation.term, term, environment, builder
            )
            continue
        results = builder.keep(node, substitute(environment, node.operands), node.graphs)
        if results is not node.results:
            environment.update(zip(node.results, results, strict=True))
    outputs = substitute(environment, body.outputs)
    return body.replace(inputs=tuple(inputs), nodes=tuple(builder.nodes), outputs=outputs)


def _again(
    node: Node,
    place: int,
    operand: Operand,
    environment: dict[Operand, Operand],
    builder: Builder,
) -> Operand:
    """Add a node like another, with another operand in one place."""
    operands = list(substitute(environment, node.operands))
    operands[place] = operand
    types = None if node.op.rule else [node.results[0].type]
    hint = node.results[0].hint
    return builder.add(node.op, operands, node.params, at=node.source, types=types, hint=hint)[0]
