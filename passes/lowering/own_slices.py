"""Send less if each replica uses only its own slice of a collective's result.

XLA keeps these collectives on every backend.

* A replica's own slice of an all_gather is the operand of the all_gather on this replica.
* If nothing but the own slice of an all_reduce is used, a reduce_scatter computes it with half the
  bytes.
* An all_gather of the result of a reduce_scatter is an all_reduce.
* A conversion and then an all_gather give the same as the all_gather and then the conversion. This
  pass writes the second form, and `place_conversions.py` chooses between the two.

Before:  %all = all_gather(%x) {axis=0, ..} : f32[8]   %mine = dynamic_slice(%all, replica_id * 4)
After:   %mine is %x

With R replicas, a slice is a replica's own if it is one of R equal slices along one dimension, and
begins at the replica's id times the slice's length. `lax.dynamic_slice_in_dim` and NumPy's indexing
make such slices.

Left alone: all_reduces whose result has other uses, slices of an all_gather along another dimension
than the gathered one, and reductions by max or min, for which there is no reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from graphdist.ir.graph import Graph, Literal, Node, Operand, Operands, Value, is_zero
from graphdist.ir.op_parameters import Reducing
from graphdist.ir.ops import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, REPLICA_ID, is_over_all
from graphdist.ir.rewrite import Answer, Rewriter, rewrite
from graphdist.ir.types import sharded

NAME = "own_slices"

_CONVERT = "jax.convert_element_type"
_NUMBERS = ("i32", "u32", "i64", "u64")
"""The dtypes that represent every replica's id and its products with lengths."""


def own_slices(graph: Graph) -> Graph:
    """Return the graph without collectives that send more than each replica needs."""
    return rewrite(graph, _rule, NAME, {ALL_GATHER.name, "jax.dynamic_slice"})


def _rule(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    """Return the operands that replace the node's results; None to keep the node."""
    if node.op is ALL_GATHER:
        return _gathered(node, operands[0], rewriter)
    return _sliced(node, operands, rewriter)


def _gathered(node: Node, operand: Operand, rewriter: Rewriter) -> Answer:
    conversion = rewriter.definition(operand, _CONVERT)
    if conversion is not None and conversion.params.get("sharding") is None:
        return _converted_after(node, conversion, rewriter)
    scatter = rewriter.definition(operand, REDUCE_SCATTER.name)
    params = ALL_GATHER.of(node)
    joined = sharded(params.axis, params.mesh.axis)
    if scatter is None or scatter.results[0].type.layout is not joined:
        return None
    # If the shard has other uses, the reduce_scatter stays, and an all_reduce would come on top.
    if rewriter.uses(operand) > 1:
        return None
    scattered = REDUCE_SCATTER.of(scatter)
    total = Reducing(scattered.reducer, group_size=scattered.mesh.num_replicas)
    return rewriter.add(ALL_REDUCE, scatter.operands, total, at=node)


def _converted_after(gather: Node, conversion: Node, rewriter: Rewriter) -> Answer:
    """Gather a value before it is converted; `place_conversions.py` may change the order again."""
    made = rewriter.add(ALL_GATHER, conversion.operands, gather.params, at=gather.source)
    (full,) = gather.results
    types, at = [full.type], conversion.source
    return rewriter.add(conversion.op, made, conversion.params, at=at, types=types, hint=full.hint)


def _sliced(node: Node, operands: Operands, rewriter: Rewriter) -> Answer:
    full, *starts = operands
    made = rewriter.definition(full, ALL_GATHER.name, ALL_REDUCE.name)
    if made is None or not is_over_all(made):
        return None
    group_size = cast(int, made.params["group_size"])
    axis = _own_axis(full, node.results[0], starts, group_size, rewriter)
    if axis is None:
        return None
    if made.op is ALL_GATHER:
        return made.operands if made.params["axis"] == axis else None
    if rewriter.uses(full) > 1 or made.params["reducer"] not in ("sum", "mean"):
        return None
    params, hint = {**made.params, "axis": axis}, node.results[0].hint
    return rewriter.add(REDUCE_SCATTER, made.operands, params, at=made.source, hint=hint)


def _own_axis(
    full: Operand, part: Value, starts: Sequence[Operand], group_size: int, rewriter: Rewriter
) -> int | None:
    """Return the dimension along which `part` is the replica's own slice of `full`, else None."""
    for axis, length in enumerate(part.type.shape):
        is_equal = part.type.resized(axis, length * group_size).shape == full.type.shape
        if is_equal and _factor_of_number(starts[axis], rewriter) == length:
            return axis
    return None


def _factor_of_number(operand: Operand, rewriter: Rewriter) -> int | None:
    """Return k if the operand is k times the replica's id.

    There is no recursion, since chains of operations may be long. A loop collects the factors from
    the operand back to the id.
    """
    factors: list[int | None] = []  # None: the product of the later factors must not be negative
    node = rewriter.definition(operand)
    while node is not None and operand.type.dtype in _NUMBERS:
        if node.op is REPLICA_ID:
            return _product(factors)
        multiplied = _multiplied(node, rewriter)
        if multiplied is None:
            return None
        operand, factor = multiplied
        factors.append(factor)
        node = rewriter.definition(operand)
    return None


def _product(factors: Sequence[int | None]) -> int | None:
    """Return the product, from the last factor to the first; None if a check for its sign fails.

    >>> _product([2, None, 3]), _product([-2, None, 3]), _product([2, None, -3])
    (6, -6, None)
    """
    product = 1
    for factor in reversed(factors):
        if factor is None and product < 0:
            return None
        product *= 1 if factor is None else factor
    return product


def _multiplied(node: Node, rewriter: Rewriter) -> tuple[Operand, int | None] | None:
    """Return the operand that a node multiplies, and the factor.

    The factor is None if the node returns its operand unchanged unless the operand is negative, as
    `x if x >= 0 else x + n` does, which NumPy's indexing writes.
    """
    if node.op.name == _CONVERT:
        return node.operands[0], 1
    if node.op.name == "jax.mul":
        first, second = node.operands
        value, literal = (second, first) if type(first) is Literal else (first, second)
        return (value, int(cast(int, literal.value))) if type(literal) is Literal else None
    if node.op.name == "jax.select_n" and len(node.operands) == 3:
        predicate, value, _ = node.operands
        test = rewriter.definition(predicate, "jax.lt")
        if test is not None and test.operands[0] is value and is_zero(test.operands[1]):
            return value, None
    return None
