"""The dimension of weights in which a product of few rows has its columns.

`replicas_as_cores` computes such a product on shards of the columns. Weights that are stored in
other shards would be exchanged in each step, and so would their gradient. So they are stored in
shards of their columns if these are more than what the product sums over, such as the words of a
vocabulary. The second product of a layer sums over the columns of the first, and its weights stay
in shards of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.definitions import definitions
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import factors_of
from graphdist.ir.types import MIRRORED
from graphdist.passes.layouts.sharding_propagation import propagate_sharding

Reads: TypeAlias = Mapping[str, Sequence[Value]]

SAVING_OF_ROWS = 2
"""Rows are sent in place of tables or weights if they have so many times fewer bytes."""

FEWEST_IN_COLUMNS = 2**23
"""Weights are stored in shards of their columns if they have so many bytes more than the rows."""

_PRODUCT = "jax.dot_general"


def column_dimension(name: str, reads: Reads, graph: Graph) -> int | None:
    """Return the dimension in which a variable has columns, or one alike does; None if none does.

    `reads` has the values that are read of each variable.
    """
    products = _products_of_few_rows(graph)
    values = reads.get(name, ())
    if not products or not values or graph.num_groups > 1:
        return None
    for dimension in range(1, len(values[0].type.shape)):
        alike = _alike(name, dimension, reads, graph)
        if any(alike.get(weights, -1) in columns for weights, columns in products.items()):
            return dimension
    return None


def _alike(name: str, dimension: int, reads: Reads, graph: Graph) -> Mapping[Operand, int]:
    """Return what is sharded with a variable, such as its slots, with all that is read of these."""
    found = {name: dimension}
    while True:
        given = [(value, along) for each, along in found.items() for value in reads.get(each, ())]
        alike = propagate_sharding(definitions(graph), [given], graph.mesh.group_size)
        more = {
            each: alike[value]
            for each, values in reads.items()
            for value in values
            if each not in found and value in alike
        }
        if not more:
            return alike
        found |= more


@kept_analysis
def _products_of_few_rows(graph: Graph) -> dict[Operand, set[int]]:
    """Return the weights of products of few rows, with the dimensions of their columns."""
    found: dict[Operand, set[int]] = {}
    for node in walk(graph):
        if node.op.name == _PRODUCT:
            for weights, columns in _weights(node, graph.num_replicas):
                found.setdefault(weights, set()).add(columns)
    return found


def _weights(node: Node, num_replicas: int) -> Iterator[tuple[Operand, int]]:
    """Yield the operand of a product that has the weights of few rows, with its columns."""
    factors = factors_of(node)
    if factors is None:
        return
    for index, dims in enumerate(factors.operands):
        weights, rows = node.operands[index], node.operands[1 - index]
        gathered = num_replicas * rows.type.bytes
        if SAVING_OF_ROWS * gathered + FEWEST_IN_COLUMNS > weights.type.bytes:
            continue
        if weights.type.layout is not MIRRORED or rows.type.layout is MIRRORED:
            continue
        of_rows, shape = factors.operands[1 - index], weights.type.shape
        summed = prod(size for of, size in zip(dims, shape, strict=True) if of in factors.summed)
        for dimension, of in enumerate(dims):
            if of not in (None, *of_rows) and shape[dimension] > summed:
                yield weights, dimension
