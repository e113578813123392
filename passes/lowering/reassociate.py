"""Move constant factors and broadcasts behind reductions, and join factors.

A reduction by sum or mean is linear, so

* a constant factor, a sign or a broadcast of the operand can be applied to the result instead. A
  reduction before a broadcast sends fewer bytes, and a factor after the reduction can be joined
  with factors there. A mirrored factor, a reshape or a transpose moves only together with a
  broadcast. Otherwise a transpose of a gradient, which costs nothing in the product that computes
  the gradient, would cost a copy after the reduction (8 layers of 1024 on 2 CPU devices: a step
  takes 1.3 times as long);
* several constant factors become one: 1/n of a mean, 1/k of an accumulation and 1/scale of a scaled
  loss cost one multiplication;
* the dot product of all elements of two values, `jnp.vdot`, needs no flattened operands.

Before:  %c = jax.mul(%y, 0.5)  %b = all_reduce(%c)  %d = jax.mul(%b, 0.5)
After:   %b = all_reduce(%y)  %d = scale(%b) {factor=0.25}

The pass changes how results are rounded, in their last bits, and
`gd.function(allow_reassociation=False)` turns it off. A factor below 1 that moves behind a sum no
longer keeps the sum in range: turn the pass off if values come near the largest number of their
dtype, 3e38 in float32 and bfloat16. Left alone: float16, whose range is small; values that have
other uses; conversions to a wider dtype, without which the sum would lose bits that the user asked
for; and reductions by max and min.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from graphdist.ir.analyses import operations
from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands
from graphdist.ir.jax_parameters import is_plain
from graphdist.ir.op_parameters import Scaling
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import ALL_REDUCE, SCALE
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import MIRRORED
from graphdist.passes.layouts.placed_values import is_full_reduction

NAME = "reassociate"

_FACTORS = ("jax.mul", "jax.div", "jax.neg", SCALE.name)
_DTYPES = ("f32", "f64", "bf16", "c64", "c128")
_PRODUCT = "jax.dot_general"
_LOOKED_AT = {ALL_REDUCE.name, _PRODUCT, *_FACTORS}
_SMALLEST, _LARGEST = 2.0**-126, 2.0**127
"""The range of factors: normal numbers in float32 and in bfloat16."""


def reassociate(graph: Graph) -> Graph:
    """Return the graph with fewer reductions and factors, equal up to rounding."""
    if ALL_REDUCE.name not in operations(graph):
        return graph
    return rewrite(graph, _rule, NAME, _LOOKED_AT)


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the operands that replace the node's results; None to keep the node."""
    name = node.op.name
    if node.results[0].type.dtype not in _DTYPES:
        return None
    if name in _FACTORS:
        return _join_factors(node, operands, rewriter)
    if name == _PRODUCT:
        return _multiply_unflattened(node, operands, rewriter)
    if is_full_reduction(node):
        return _move_behind(node, operands[0], rewriter)
    return None


def _multiply_unflattened(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the dot product of two flattened values, computed without flattening them.

    The unflattened values may be sharded along a dimension that the flattened ones do not have.
    """
    made = [rewriter.definition(operand, "jax.reshape") for operand in operands]
    values = [reshape.operands[0] for reshape in made if reshape is not None and is_plain(reshape)]
    shapes = {value.type.shape for value in values}
    if node.results[0].type.shape or len(values) < 2 or len(shapes) != 1:
        return None
    dimensions = tuple(range(len(*shapes)))
    return rewriter.again(node, values, dimension_numbers=((dimensions, dimensions), ((), ())))


def _single(operand: Operand, rewriter: Rewriter) -> Node | None:
    """Return the node that makes the operand; None if the operand has several uses."""
    return rewriter.definition(operand) if rewriter.uses(operand) == 1 else None


def _move_behind(reduction: Node, operand: Operand, rewriter: Rewriter) -> Answer:
    """Reduce the operand of a chain of linear operations, and apply the chain to the result."""
    moved = []
    while (node := _single(operand, rewriter)) is not None:
        place = _only_varying(node)
        if place is None or node.operands[place].type.size > node.results[0].type.size:
            break
        moved.append((node, place))
        operand = node.operands[place]
    moved = moved[: _worth_moving(moved)]
    if not moved:
        return None
    node, place = moved[-1]
    reduced = (node.operands[place],)
    results = rewriter.add(ALL_REDUCE, reduced, reduction.params, at=reduction.source)
    for node, place in reversed(moved):
        operands = (*node.operands[:place], *results, *node.operands[place + 1 :])
        results = rewriter.again(node, operands)
    return results


def _join_factors(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Replace two multiplications by constants by one multiplication by their product."""
    outer = _factor(node, operands)
    made = None if outer is None else _single(outer[1], rewriter)
    inner = None if made is None else _factor(made, made.operands)
    if outer is None or inner is None:
        return None
    product = outer[0] * inner[0]
    is_normal = _SMALLEST <= abs(product) <= _LARGEST
    return rewriter.add(SCALE, inner[1:], Scaling(product), at=node) if is_normal else None


def _worth_moving(chain: Sequence[tuple[Node, int]]) -> int:
    """Return the number of operations to move.

    They are the operations up to the last broadcast or, without a broadcast, the leading constant
    factors.
    """
    broadcasts = [
        count
        for count, (node, place) in enumerate(chain, 1)
        if node.operands[place].type.size < node.results[0].type.size
    ]
    factors = takewhile(lambda link: _factor(link[0], link[0].operands), chain)
    return broadcasts[-1] if broadcasts else len(list(factors))


def _only_varying(node: Node) -> int | None:
    """Return the index of the only operand that is not mirrored, if a reduction may move before it.

    The node must be linear in this operand alone, and keep the operand's dtype. Products and other
    operations that are not cheap do not move.
    """
    varying = [i for i, each in enumerate(node.operands) if each.type.layout is not MIRRORED]
    row = row_of(node)
    if row is None or not row.is_cheap or len(varying) != 1 or len(node.results) != 1:
        return None
    keeps_dtype = node.operands[varying[0]].type.dtype == node.results[0].type.dtype
    return varying[0] if keeps_dtype and tuple(varying) in row.linear_in(node) else None


def _factor(node: Node, operands: Sequence[Operand]) -> tuple[float, Operand] | None:
    """Return the constant by which a node multiplies an operand, and the operand."""
    name = node.op.name
    if name == "jax.neg":
        return -1.0, operands[0]
    if node.op is SCALE:
        return float(SCALE.of(node).factor), operands[0]
    dtype = node.results[0].type.dtype
    if name not in ("jax.mul", "jax.div") or any(each.type.dtype != dtype for each in operands):
        return None
    *rest, last = operands if type(operands[-1]) is Literal else reversed(operands)
    if type(last) is not Literal or isinstance(last.value, complex) or not last.value:
        return None
    if name == "jax.mul":
        return float(last.value), rest[0]
    return (1 / last.value, rest[0]) if last is operands[1] else None
