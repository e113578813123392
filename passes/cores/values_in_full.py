"""Which operations take values of all cores in full: what `explain()` says of the split over cores.

A value in shards is gathered for an operation that has no rule for the dimension of the shards.
Each core then computes the operation in full. Gathers for products are not listed: they send fewer
bytes than the sums behind the products would.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphdist.ir import ops
from graphdist.ir.analyses import users, walk
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.kernel_shards import kernel_factors
from graphdist.ir.kernels import KERNEL
from graphdist.ir.operation_table import factors_of

_FEWEST_BYTES = 2**20
"""The smallest value that is listed, in bytes."""


def values_in_full(graph: Graph) -> list[str]:
    """Return the operations that take large values in full, those of the largest values first."""
    graphs = [graph, *(nested for node in walk(graph) for nested in node.graphs)]
    found = {text: size for each in graphs for text, size in _found(each)}
    return sorted(found, key=lambda text: -found[text])


def _found(graph: Graph) -> Iterator[tuple[str, int]]:
    for node in graph.nodes:
        if node.op is ops.ALL_GATHER_OVER_CORES:
            (value,), along = node.results, ops.ALL_GATHER_OVER_CORES.of(node).axis
            size = value.type.bytes
            for user in _without_rule(graph, value, along) if size >= _FEWEST_BYTES else ():
                name, place = user.op.name.removeprefix("jax."), user.source
                yield (
                    f"{size:,} bytes, {value.type.with_layout(None)}: {name} ({place}) takes them "
                    f"in full on each core, since it has no rule for shards of dimension {along}",
                    size,
                )


def _without_rule(graph: Graph, value: Value, along: int) -> Iterator[Node]:
    """Yield what uses a value, or a value that is computed element by element from it."""
    pending, users_of = [value], users(graph)
    while pending:
        value = pending.pop()
        for user in users_of.get(value, ()):
            factors = kernel_factors(user) if user.op.name == KERNEL else factors_of(user)
            if user.graphs or user.op.is_collective:
                continue
            index = user.operands.index(value)
            if factors is None or factors.operands[index][along] is None:
                yield user
            elif factors.operands[index] == factors.results[0]:
                pending.append(user.results[0])
