"""Where values that are needed in full are gathered: where the fewest bytes are sent.

Whatever is not computed on shards and takes a derived value needs it in full. Of all values on the
way from the shards to these the ones of fewest bytes are gathered, a minimum cut, and what is
behind them is computed of the gathered ones. So a parameter is gathered in the dtype that it is
used in, and once for all that take it. A gather in a loop counts once an iteration.

What a loop scans is gathered in the loop, a slice at a time, and so are the constants of a loop but
for the smallest, which are gathered once in front of it. What passes a barrier, as behind
`jax.checkpoint`, is gathered behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import cast

from graphdist.ir.analyses import walk
from graphdist.ir.definitions import Definition, ValueKind
from graphdist.ir.graph import Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.minimum_cut import connected_values, minimum_cut
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import SCAN
from graphdist.passes.placed_values import PASSED_IN, PlacedValues, is_cheap, is_reduced

_STORED_IN_FULL = 8
"""How much less it counts to store a variable in full, gathered at the end of each step, than to
gather it: converted to any dtype it is stored in full, reduced to a number it is not."""
_SMALLEST_COST = 16
"""Of a variable that is stored in full: more than of all numbers that a small one is reduced to."""


def region_of(
    roots: AbstractSet[Value], placed: PlacedValues, let_in: AbstractSet[Value]
) -> dict[Value, tuple[Value, ...]]:
    """Return the derived values of which the roots may be computed in full, and of which each is.

    One without such operands has to be gathered.
    """
    region: dict[Value, tuple[Value, ...]] = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value not in region:
            region[value] = tuple(_full_of(value, placed, let_in))
            pending += region[value]
    return region


def _full_of(value: Value, placed: PlacedValues, let_in: AbstractSet[Value]) -> Iterator[Value]:
    """Yield the derived values of which a value is computed, if it is computed in full."""
    definition = placed.program.of[value]
    node = definition.node
    if definition.kind is ValueKind.COMPUTED:
        assert node is not None
        if not is_reduced(node):
            for operand in dict.fromkeys(node.operands):
                if type(operand) is Value and operand in placed.derived:
                    yield operand
    elif _is_let_in(value, definition, placed, let_in):
        for operand in definition.parents:
            if type(operand) is Value and operand in placed.derived:
                yield operand


def _is_let_in(
    value: Value, definition: Definition, placed: PlacedValues, let_in: AbstractSet[Value]
) -> bool:
    """Return whether an input of a nested graph may be gathered outside."""
    if definition.kind is ValueKind.SLICE and (
        value.type.bytes < placed.rules.smallest or definition.times == 1
    ):
        return True
    is_passed = definition.kind in PASSED_IN or definition.kind is ValueKind.BEHIND_BARRIER
    if is_passed and value in placed.of_inputs:
        return True
    return value in let_in or definition.kind is ValueKind.BRANCH_INPUT


def gathered_of(
    region: Mapping[Value, tuple[Value, ...]], roots: AbstractSet[Value], placed: PlacedValues
) -> set[Value]:
    """Return the values of the fewest bytes to gather, so that all roots are there in full."""
    gathered: set[Value] = set()
    for values in connected_values(region):
        if len(values) == 1:
            gathered |= values
            continue
        costs = {value: _bytes_sent(value, placed) for value in values}
        made_of = {value: region[value] for value in values}
        found = minimum_cut(values & roots, made_of, costs)
        gathered |= {_before_moves(value, region, placed) for value in found}
    return gathered


def _bytes_sent(value: Value, placed: PlacedValues) -> float:
    """Return about how many bytes each replica sends to make a value full.

    A collective takes about as long to begin as `smallest` bytes take to send.
    """
    definition = placed.program.of[value]
    if not value.type.shape:
        return 1  # numbers are sent together
    if value in placed.in_shards:
        return max(_SMALLEST_COST, value.type.bytes // _STORED_IN_FULL)
    is_sum = value in placed.terms or is_reduced(definition.node)
    is_scattered = is_reduced(definition.node) and value in placed.shards
    once = value.type.bytes * (2 if is_sum and not is_scattered else 1)
    return max(1, (once + placed.rules.smallest) * definition.times)


def _before_moves(
    value: Value, region: Mapping[Value, tuple[Value, ...]], placed: PlacedValues
) -> Value:
    """Return what a value only has the elements of in other places: that is gathered as well."""
    while len(region[value]) == 1:
        definition, (operand,) = placed.program.of[value], region[value]
        row = None if definition.node is None else row_of(definition.node)
        is_move = definition.kind is ValueKind.COMPUTED and row is not None and row.only_moves
        if not (is_move or definition.kind is ValueKind.BEHIND_BARRIER):
            break
        if operand.type.bytes != value.type.bytes:
            break
        value = operand
    return value


def _is_without_barrier(value: Value, placed: PlacedValues) -> bool:
    is_behind = placed.program.of[value].kind is ValueKind.BEHIND_BARRIER
    is_taken = value in placed.shards or value in placed.gathered
    return is_behind and is_taken and placed.is_derived(value) and not placed.needs_barrier(value)


def _is_there_in_full(operand: Operand, placed: PlacedValues) -> bool:
    """Return whether a derived value is full anyway, or made at little cost of what is."""
    while type(operand) is Value and operand not in placed.full:
        definition = placed.program.of[operand]
        made_of = [parent for parent in definition.parents if placed.is_derived(parent)]
        is_computed = definition.kind is ValueKind.COMPUTED and is_cheap(definition.node)
        if not is_computed or len(made_of) != 1:
            return False
        (operand,) = made_of
    return True


def is_made_in_full(value: Operand, placed: PlacedValues, given: Value | None = None) -> bool:
    """Return whether a derived value can be computed in full of what is there in full anyway.

    What is `given` counts as if it were.
    """
    pending, seen = [value], {value}
    while pending:
        operand = pending.pop()
        if operand in placed.full or operand is given or not placed.is_derived(operand):
            continue
        definition = placed.program.of[cast(Value, operand)]
        if definition.kind is not ValueKind.COMPUTED or is_reduced(definition.node):
            return False
        pending += [parent for parent in definition.parents if parent not in seen]
        seen.update(definition.parents)
    return placed.is_derived(value)


def carried_in_full(placed: PlacedValues) -> set[Value]:
    """Return the carries of loops that send more in shards than to gather them once.

    In full, each iteration computes the next value of this one, and sends nothing.
    """
    found: set[Value] = set()
    for value in placed.derived:
        definition = placed.program.of[value]
        if definition.kind is not ValueKind.CARRY or value not in placed.shards:
            continue
        behind = placed.computed_of([value])
        sent = sum(_bytes_sent(each, placed) for each in placed.gathered if each in behind)
        if sent * _length(definition) > _bytes_sent(value, placed) and is_made_in_full(
            definition.parents[1], placed, value
        ):
            found.add(value)
    return found


def _length(definition: Definition) -> int:
    assert definition.node is not None
    return Scan(definition.node).length


def let_in(placed: PlacedValues) -> set[Value]:
    """Return what loops take, and barriers pass, that is gathered in front of them.

    What is gathered there anyway is, and of the constants of a loop those that it says, or the
    smallest.
    """
    found = {value for value in placed.program.passing if _is_without_barrier(value, placed)}
    for node in walk(placed.graph):
        if node.op is not SCAN:
            continue
        scan = Scan(node)
        for operand, value in (*scan.constants, *scan.scanned):
            if value in placed.gathered and _is_there_in_full(operand, placed):
                found.add(value)
        values = [value for _, value in scan.constants if value in placed.gathered]
        told = node.params.get("gather")
        if told is not None:
            found.update(values if told == "once" else ())
            continue
        held = 0
        for value in sorted(values, key=lambda value: value.type.bytes):
            held += value.type.bytes
            if held > placed.rules.most_bytes:
                break
            found.add(value)
    return found
