"""The largest or smallest elements along a dimension of which each core has a shard.

`argmax`, `argmin` and `top_k` of logits whose vocabulary is sharded over cores need no full logits:
each core finds the best elements of its shard, the cores exchange these with their indices, and
each core finds the best of them. Shards are in the order of the cores, and of equal elements that
with the lowest index is found first on each core and among the cores. So the results are those of
one device, also where elements are equal or NaN.

Before:  %i = jax.argmax(%x) {axes=(1,), ..}             (each core has a shard of %x along 1)
After:   %a = jax.argmax(%shard) {axes=(1,), ..}         %v = take_along(%shard, %a) {axis=1}
         %as = all_gather_over_cores(%a) {axis=1}        %vs = all_gather_over_cores(%v) {axis=1}
         %w = jax.argmax(%vs) {axes=(1,), ..}            %i = take_along(%as, %w) {axis=1, ..}
"""

from __future__ import annotations

from graphdist.ir import ops
from graphdist.ir.builder import Builder
from graphdist.ir.graph import Node, Operand, Value
from graphdist.ir.jax_parameters import parameter
from graphdist.ir.op_parameters import AlongAxisOverCores, Reshaping, TakingAlong

_TOP_K = "jax.top_k"
_FEWEST_FOUND = 4
"""Cores exchange what they find if that is at most one element of so many."""


def searched_dimension(node: Node, num_cores: int) -> int | None:
    """Return the dimension along which a node finds elements, few of those that there are.

    None for other nodes, and for those that find too many to be exchanged for less than the value.
    """
    if node.op.name in ("jax.argmax", "jax.argmin"):
        (dimension,), count = parameter(node, "axes"), 1
    elif node.op.name == _TOP_K:
        dimension, count = parameter(node, "axis"), parameter(node, "k")
        dimension %= len(node.operands[0].type.shape)
    else:
        return None
    size = node.operands[0].type.shape[dimension]
    return dimension if count * num_cores * _FEWEST_FOUND <= size else None


def found_on_shards(
    node: Node, shard: Operand, dimension: int, num_cores: int, builder: Builder
) -> tuple[Value, ...]:
    """Add the search in the core's shard and among what all cores find; return the results."""
    length = shard.type.shape[dimension]
    if node.op.name == _TOP_K:
        values, indices = builder.again(node, [shard])
    else:
        (found,) = builder.again(node, [shard])
        indices = _with_dimension(found, dimension, builder, node)
        taking = TakingAlong(dimension)
        (values,) = builder.add(ops.TAKE_ALONG, (shard, indices), taking, at=node.source)
    gathering = AlongAxisOverCores(dimension, num_cores=num_cores)
    all_values, all_indices = (
        builder.add(ops.ALL_GATHER_OVER_CORES, (each,), gathering, at=node.source)[0]
        for each in (values, indices)
    )
    best = builder.again(node, [all_values])
    taking = TakingAlong(dimension, indices.type.shape[dimension], length)
    if node.op.name == _TOP_K:
        values, places = best
        results = builder.add(ops.TAKE_ALONG, (all_indices, places), taking, at=node)
        return (values, *results)
    places = _with_dimension(best[0], dimension, builder, node)
    (index,) = builder.add(ops.TAKE_ALONG, (all_indices, places), taking, at=node.source)
    return builder.add(ops.RESHAPE, (index,), Reshaping(best[0].type.shape), at=node)


def _with_dimension(value: Value, dimension: int, builder: Builder, node: Node) -> Value:
    """Return a value with another dimension, of one element."""
    shape = value.type.shape
    params = Reshaping((*shape[:dimension], 1, *shape[dimension:]))
    (reshaped,) = builder.add(ops.RESHAPE, (value,), params, at=node.source)
    return reshaped
