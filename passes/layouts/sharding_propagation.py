"""The dimension along which each value of a program is sharded, if any.

A variable that is stored sharded has a sharded dimension. From there sharded dimensions are
propagated over the factors of operations (`graphdist.ir.factors`): both operands of an addition are
sharded along the same dimension, a transpose along the permuted one, and the slice that a loop
scans one dimension earlier. A value keeps the first dimension that reaches it. Large values
propagate their dimension first, because a vector of statistics that is broadcast over a matrix must
not decide how the matrix is sharded. If the operands of an operation have different sharded
dimensions, the operand that differs is converted.

Only mirrored values can be sharded, along dimensions that the number of replicas divides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from graphdist.ir.definitions import Definitions, ValueKind, definitions
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.operation_table import factors_of
from graphdist.ir.ops import ALL_GATHER
from graphdist.ir.types import MIRRORED


def propagate_sharding(
    program: Definitions, stages: Iterable[Iterable[tuple[Value, int]]], count: int
) -> Mapping[Operand, int]:
    """Return the dimensions along which values may be sharded over `count` replicas.

    `stages` has values with given dimensions. The dimensions of one stage are propagated through
    the program before those of the next stage.
    """
    found: dict[Operand, int] = {}
    order = itertools.count()  # among values of equal size, the first in the queue comes first
    for given in stages:
        pending = [(-value.type.bytes, next(order), value, along) for value, along in given]
        heapify(pending)
        while pending:
            _, _, value, dimension = heappop(pending)
            if value in found or not _divides(value, dimension, count):
                continue
            found[value] = dimension
            for other, along in _alike(program, value, dimension):
                if type(other) is Value and along >= 0 and other not in found:
                    heappush(pending, (-other.type.bytes, next(order), other, along))
    _set_last(program, found)
    return found


def _set_last(program: Definitions, found: dict[Operand, int]) -> None:
    """Give the result of each carry the dimension of the carry."""
    for value in program.passing:
        definition = program.of[value]
        if definition.kind is ValueKind.LAST:
            found.pop(value, None)
            (carry,) = definition.parents
            if carry in found:
                found[value] = found[carry]


def is_scanned(program: Definitions, value: Value) -> bool:
    """Return whether a loop scans a value, or a value that is sharded with it."""
    if not program.has_slices or not value.type.shape:
        return False
    alike = propagate_sharding(program, [[(value, 0)]], 1)
    return any(
        dimension == 0 and program.of[child].kind is ValueKind.SLICE
        for each, dimension in alike.items()
        for child in program.children.get(each, ())
    )


def _divides(value: Value, dimension: int, count: int) -> bool:
    size = value.type.shape[dimension]
    return value.type.layout is MIRRORED and size > 0 and size % count == 0


def _alike(program: Definitions, value: Value, dimension: int) -> Iterator[tuple[Operand, int]]:
    """Yield the operands that are sharded together with a value, each with its dimension."""
    definition = program.of[value]
    for child in program.children.get(value, ()):
        yield child, dimension + program.of[child].shift
    if definition.kind is ValueKind.COMPUTED:
        assert definition.node is not None
        yield from _by_factor(definition.node, value, dimension)
    else:
        for parent in definition.parents:
            yield parent, dimension - definition.shift
    for node in program.nodes.get(value, ()):
        yield from _by_factor(node, value, dimension)


def _by_factor(node: Node, value: Value, dimension: int) -> Iterator[tuple[Operand, int]]:
    """Yield the operands and results of a node that share the factor of a value's dimension."""
    if any(operand.type.layout is not MIRRORED for operand in node.operands):
        return
    factors = factors_of(node)
    if factors is None:
        return
    values = (*node.operands, *node.results)
    pairs = list(zip(values, (*factors.operands, *factors.results), strict=True))
    of_value = {dimensions[dimension] for each, dimensions in pairs if each is value}
    for factor in of_value - {None}:
        for other, dimensions in pairs:
            if other is not value and factor in dimensions:
                yield other, dimensions.index(factor)


def of_sharded_variables(graph: Graph) -> set[Operand]:
    """Return the mirrored values that are computed from sharded variables."""
    found: set[Operand] = set()
    for value, definition in definitions(graph).of.items():
        is_gathered = definition.node is not None and definition.node.op is ALL_GATHER
        parents = (parent for parent in definition.parents if type(parent) is Value)
        if value.type.layout is MIRRORED and (is_gathered or not found.isdisjoint(parents)):
            found.add(value)
    return found
