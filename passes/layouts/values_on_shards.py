"""Which values can be computed on shards.

The first shards are those of variables that are stored sharded, and of reductions that may be
reduce_scatters. Each operation that the table allows (`graphdist.ir.operation_table`) is applied to
the shards of its operands, and loops and branches take and return shards. A sum along the sharded
dimension gives a *term* on each replica, and an all_reduce adds up the terms.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from graphdist.ir.definitions import Definition, ValueKind, definitions
from graphdist.ir.flow import diverges
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.ops import ALL_GATHER, WHILE
from graphdist.ir.types import MIRRORED, numpy_dtype
from graphdist.passes.layouts.placed_values import PlacedValues, is_cheap, is_full_reduction


def find_values_on_shards(placed: PlacedValues, without: AbstractSet[Value]) -> None:
    """Find the values that can be computed on shards; repeat until no carry of a loop changes."""
    count = -1
    while count != len(placed.derived):
        count = len(placed.derived)
        for value, definition in placed.program.of.items():
            if value in placed.derived or value in without:
                continue
            if _is_derived(value, definition, placed):
                placed.derived[value] = None
                if _is_of_inputs(definition, placed):
                    placed.of_inputs.add(value)


def _is_derived(value: Value, definition: Definition, placed: PlacedValues) -> bool:
    node, dimension = definition.node, placed.dimension.get(value)
    if definition.kind is ValueKind.COMPUTED:
        assert node is not None
        return _is_computed(value, node, placed)
    if definition.kind is ValueKind.INPUT:
        return dimension is not None and value in placed.sharded_inputs
    # A branch that not all replicas run may have no collectives.
    if dimension is None or node is None or node.op is WHILE or diverges(node):
        return False
    parents = filter(placed.is_derived, definition.parents)
    return any(placed.dimension[parent] + definition.shift == dimension for parent in parents)


def _is_of_inputs(definition: Definition, placed: PlacedValues) -> bool:
    """Return whether a derived value depends on `placed.sharded_inputs` alone."""
    if definition.kind in (ValueKind.CARRY, ValueKind.LAST):
        return False
    derived = set(filter(placed.is_derived, definition.parents))
    is_input = definition.kind is ValueKind.INPUT
    return is_input or (bool(derived) and derived <= placed.of_inputs)


def _is_computed(value: Value, node: Node, placed: PlacedValues) -> bool:
    """Return whether a node can be applied to shards.

    A result that is a sum over shards is added to `placed.terms`.
    """
    if value in placed.dimension and (_gathers(node, placed) or is_full_reduction(node)):
        return True
    along = [placed.derived_along(operand) for operand in node.operands]
    if all(dimension is None for dimension in along):
        return False
    factors = placed.factors_of(node)
    if factors is None:
        return False
    held = {
        dimensions[dimension]
        for dimensions, dimension in zip(factors.operands, along, strict=True)
        if dimension is not None
    }
    found = placed.factor(value)
    if found is not None and found[1] in held:
        # A product of operands sharded along different factors would gather one of the operands.
        return len(held) == 1 or is_cheap(node)
    if len(held) != 1 or len(node.results) > 1:
        return False
    (factor,) = held
    reducer = None if factor is None else factors.summed.get(factor)
    if factor is None or reducer is None or not placed.divides(node, factors, factor):
        return False
    if reducer == "sum" and not _may_be_added_up(value, placed):
        return False
    placed.terms[value] = factors, factor
    return True


def _gathers(node: Node, placed: PlacedValues) -> bool:
    """Return whether a node gathers shards along the dimension of its result in `placed`."""
    if node.op is not ALL_GATHER:
        return False
    params = ALL_GATHER.of(node)
    return placed.dimension[node.results[0]] == params.axis and params.mesh == placed.rules.mesh


def _may_be_added_up(value: Value, placed: PlacedValues) -> bool:
    """Return whether a sum may be computed as the sum of partial sums, rounded to its dtype."""
    dtype = numpy_dtype(value.type.dtype)
    is_narrow_float = dtype.kind not in "biu" and dtype.itemsize < 4
    return placed.rules.reorders and not is_narrow_float


def of_sharded_variables(graph: Graph) -> set[Operand]:
    """Return the mirrored values that are computed from sharded variables."""
    found: set[Operand] = set()
    for value, definition in definitions(graph).of.items():
        is_gathered = definition.node is not None and definition.node.op is ALL_GATHER
        parents = (parent for parent in definition.parents if type(parent) is Value)
        if value.type.layout is MIRRORED and (is_gathered or not found.isdisjoint(parents)):
            found.add(value)
    return found
