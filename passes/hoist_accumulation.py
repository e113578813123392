"""Move a reduction out of a loop that only adds up its results.

A loop that accumulates gradients over k small batches, with a reduction in each turn, sends k times
as much as needed. A reduction by sum or mean is linear. So each replica can add up its own values,
and the total is reduced after the loop. XLA does this on GPU and TPU if there is only the addition
behind the reduction, and never on CPU. A division by k or a cast stops XLA, and not this pass.

How it works. The pass looks for a carry of a scan that the body uses once, in `carry + term` or
`carry - term`. The sum must be the carry's next value and nothing else, and the term must be made
from one all_reduce by linear operations, each value used once. The carry must be mirrored: then it
begins with the same value on all replicas, and no replica has its own factor on the way. In the new
body, the operand of the reduction takes the place of its result, and the last carry is reduced. The
initial value stays on all replicas if the reduction is a mean; for a sum it stays on replica 0, and
the others begin with zeros. A running mean is a carry like these: `running_means.py` finds it.

Before:  %c = scan(%zero, %xs) { %g = all_reduce(%x)  %h = jax.mul(%g, 0.25)  %new = %c_in + %h }
After:   %p = scan(%zero, %xs) { %h = jax.mul(%x, 0.25)  %new = %c_in + %h }  %c = all_reduce(%p)

The order of additions changes, and with it the last bits of results. Sums are kept in the dtype of
the carry: with gradients in bfloat16 and a carry in float32 they are better than before. Near the
largest number of a dtype they may overflow, since the mean is taken last. Left alone: carries that
the body also reads for something else, float16 carries, narrowing casts, carries whose reduction
would send more than the loop does (a scalar broadcast into a large carry), and `while` loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from graphdist.ir.analyses import operations, producers, use_counts, walk
from graphdist.ir.builder import Builder
from graphdist.ir.flow import computed_of, reachable
from graphdist.ir.graph import Graph, Literal, Node, Operand, Value
from graphdist.ir.loops import Carry, Scan, ScanEdit
from graphdist.ir.operation_table import ADDITIONS
from graphdist.ir.ops import ALL_REDUCE, SCAN, SELECT_REPLICA
from graphdist.ir.rewrite import rewrite, substitute, with_graphs
from graphdist.ir.types import MIRRORED, PER_REPLICA
from graphdist.passes.canonicalize import canonicalize
from graphdist.passes.eliminate_dead_code import eliminate_dead_code
from graphdist.passes.linear_chains import Chain, is_linear_reduction, linear_in, reduction_behind
from graphdist.passes.running_means import RunningMean, running_mean

NAME = "hoist_accumulation"

_WIDER = {
    "f16": ("f32", "f64", "c64", "c128"),
    "bf16": ("f32", "f64", "c64", "c128"),
    "f32": ("f64", "c64", "c128"),
    "f64": ("c128",),
    "c64": ("c128",),
}
_INEXACT = ("bf16", "f32", "f64", "c64", "c128")
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
_FASTER = "a sum in the loop, divided behind it, or gd.accumulate is reduced once"
_SMALL = 64 * 2**10
"""Bytes that are sent in about the time that a collective takes to begin."""


@dataclass(frozen=True, slots=True)
class HoistAccumulation:
    """The pass."""

    def __call__(self, graph: Graph) -> Graph:
        """Return the graph with reductions that are only added up moved behind their loops."""
        return rewrite(graph, _hoist, NAME, {SCAN.name})

    def declined(self, graph: Graph) -> list[str]:
        """Return the reductions in each turn of a loop whose results are added up, and why."""
        summed = _summed(graph)
        scans = [_cleaned(node, node.operands) for node in walk(graph) if node.op is SCAN]
        return [reason for scan in scans for reason in (*_declined(scan), *_stacked(scan, summed))]


@dataclass(frozen=True)
class _Accumulation:
    """A carry that is only added to, and how the reduction got into the sum."""

    carry: Carry
    addition: Node
    term: int
    """Which operand of the addition the term is."""
    reduction: Node
    chain: Chain


def _hoist(node: Node, operands: tuple[Operand, ...], builder: Builder) -> Sequence[Operand] | None:
    scan = _cleaned(node, operands)
    found = [carry for carry in _carries(scan) if not isinstance(carry, str)]
    if not found:
        return None
    edit = ScanEdit(scan, NAME)
    for each in found:
        value, start = each.carry.value, _start(each, builder)
        edit.replace(value, start, value.type.distributed(PER_REPLICA))
    _add_nodes(edit, scan.body, found)
    results: dict[Value, Operand] = dict(zip(node.results, edit.finish(builder), strict=True))
    for each in found:
        last, reduction = each.carry.last, each.reduction
        (results[last],) = builder.add(
            ALL_REDUCE, (results[last],), reduction.params, at=reduction.source, hint=last.hint
        )
    return list(results.values())


def _start(accumulation: _Accumulation | RunningMean, builder: Builder) -> Operand:
    """Return what each replica begins with, so that the reduction makes the first value of it."""
    operand = accumulation.carry.first
    is_zero = type(operand) is Literal and operand.value == 0
    if accumulation.reduction.params["reducer"] == "mean" or is_zero:
        return operand
    params = {"replica": 0, "group_size": accumulation.reduction.params["group_size"]}
    return builder.add(SELECT_REPLICA, (operand,), params, at=accumulation.reduction.source)[0]


def _cleaned(node: Node, operands: tuple[Operand, ...]) -> Scan:
    """Return a loop, its body without dead and redundant nodes: they would count as uses."""
    (body,) = node.graphs
    if ALL_REDUCE.name in operations(body):
        node = with_graphs(node, node.operands, (eliminate_dead_code(canonicalize(body)),))
    return Scan(node, operands)


def _carries(scan: Scan) -> Iterator[_Accumulation | RunningMean | str]:
    """Yield how each carry of a loop is added to or combined, or why it is not hoisted."""
    body, length = scan.body, scan.length
    if length < 2 or "steps" in scan.node.params or ALL_REDUCE.name not in operations(body):
        return
    for carry in scan.carries:
        found = _accumulation(body, carry, length)
        mean = running_mean(body, carry) if isinstance(found, str) else None
        most_bytes = 0 if mean is None else _most_bytes(mean.reductions, length)
        is_worth_it = mean is not None and carry.value.type.bytes <= most_bytes
        yield mean if mean is not None and is_worth_it else found


def _accumulation(body: Graph, carry: Carry, length: int) -> _Accumulation | str:
    """Return how a carry is only added to, or why it is not."""
    old, new, made_by, uses = carry.value, carry.following, producers(body), use_counts(body)
    # A carry that differs between replicas begins so, or a replica's own factor makes it differ.
    if old.type.distribution is not MIRRORED:
        return "it differs between replicas"
    if old.type.dtype not in (*_INEXACT, *_INTEGERS):
        return f"it is of dtype {old.type.dtype}"
    addition = made_by.get(new) if type(new) is Value else None
    if addition is None or addition.op.name not in ADDITIONS or old not in addition.operands:
        return "what becomes of it is not it plus or minus one term"
    if uses[old] > 1 or uses[addition.results[0]] > 1:
        return "the loop reads it for something else"
    term = 1 - addition.operands.index(old)
    if addition.op.name == "jax.sub" and term == 0:
        return "it is subtracted from what is added"

    def followed(operand: Operand) -> Node | None:
        if type(operand) is not Value or uses[operand] > 1:
            return None
        return made_by.get(operand)

    made = reduction_behind(addition.operands[term], followed, _linear_in)
    if made is None:
        return "what is added is not made of one reduction, used once, by linear operations"
    most = _most_bytes(made[:1], length)
    if old.type.bytes > most:
        return f"its {old.type.bytes:,} bytes are more than the {most:,} that the loop reduces"
    return _Accumulation(carry, addition, term, *made)


def _most_bytes(reductions: Sequence[Node], length: int) -> int:
    """Return how large a carry may be that is reduced in place of what a loop reduces."""
    return max(sum(made.operands[0].type.bytes for made in reductions) * length, _SMALL)


def _declined(scan: Scan) -> Iterator[str]:
    """Yield why carries of a loop that depend on a reduction there are left alone."""
    body = scan.body
    reductions = list(filter(is_linear_reduction, body.nodes))
    for carry, found in zip(scan.carries, _carries(scan), strict=False):
        if not isinstance(found, str):
            continue
        reduction = _behind(carry.following, body, reductions)
        if reduction is not None:
            reduced = [operand for operand in reduction.operands if type(operand) is Value]
            is_of_carry = carry.value in reachable(computed_of(body), reduced)  # training steps
            advice = "" if is_of_carry else f"; {_FASTER}"
            yield f"{_at(reduction)} into a carry of a loop: {found}{advice}"


def _summed(graph: Graph) -> set[Operand]:
    """Return the values that are added up along their first dimension, maybe converted before."""
    summed = {
        node.operands[0]
        for node in walk(graph)
        if node.op.name == "jax.reduce_sum" and 0 in cast(Sequence[int], node.params["axes"])
    }
    conversions = [node for node in walk(graph) if node.op.name == "jax.convert_element_type"]
    return summed | {node.operands[0] for node in conversions if node.results[0] in summed}


def _stacked(scan: Scan, summed: set[Operand]) -> Iterator[str]:
    """Yield the reductions of which a loop stacks the results, to be added up behind it."""
    reductions = list(filter(is_linear_reduction, scan.body.nodes))
    if not reductions or scan.length < 2:
        return
    for output, result in scan.stacked:
        reduction = _behind(output, scan.body, reductions)
        if reduction is not None and result in summed:
            yield f"{_at(reduction)} into a stack that is added up: it runs in each turn; {_FASTER}"


def _at(reduction: Node) -> str:
    return f"{reduction.op.name} at {reduction.source}"


def _behind(operand: Operand, body: Graph, reductions: Sequence[Node]) -> Node | None:
    """Return a reduction that an output depends on, if there is one."""
    pending, seen = [operand], set[Operand]()
    while pending:
        operand = pending.pop()
        node = producers(body).get(operand) if type(operand) is Value else None
        if node is None or operand in seen:
            continue
        if node in reductions:
            return node
        seen.add(operand)
        pending.extend(node.operands)
    return None


def _linear_in(node: Node) -> Sequence[int]:
    """Return the places of the operands that may be added up in place of the result."""
    result = node.results[0].type
    if node.op.name == "jax.convert_element_type":
        return (0,) if result.dtype in _WIDER.get(node.operands[0].type.dtype, ()) else ()
    if result.dtype not in (*_INEXACT, *_INTEGERS):
        return ()
    sizes = [operand.type.size for operand in node.operands]
    is_product = node.op.name == "jax.mul"
    return [i for i in linear_in(node) if sizes[i] == result.size or not is_product]


def _add_nodes(edit: ScanEdit, body: Graph, found: Sequence[_Accumulation | RunningMean]) -> None:
    """Add the nodes of the body, with each replica adding up its own."""
    additions = {each.addition: each for each in found if isinstance(each, _Accumulation)}
    combined = {node for each in found if isinstance(each, RunningMean) for node in each.reductions}
    environment, builder = edit.environment, edit.inside
    for node in body.nodes:
        accumulation = additions.get(node)
        if node in combined:
            environment[node.results[0]] = substitute(environment, node.operands)[0]
        elif accumulation is None:
            edit.keep_node(node)
        else:
            (term,) = substitute(environment, accumulation.reduction.operands)
            for linear, place in reversed(accumulation.chain):
                term = _again(linear, place, term, environment, builder)
            environment[node.results[0]] = _again(
                node, accumulation.term, term, environment, builder
            )


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
