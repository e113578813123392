"""Chooses where sharded values are gathered, so that the fewest bytes are sent.

An operation that cannot run on shards takes unsharded operands. Among the values between the shards
and these operands, a minimum cut finds the values with the fewest bytes. These are gathered, and
the values computed from them are unsharded. So a parameter is gathered in the dtype in which it is
used, and once for all its uses. A gather in a loop counts once per iteration.

A stack that a loop scans is gathered in the loop, one slice per iteration. The constants of a loop
are gathered in the loop, too, except small ones, which are gathered once before it. A value that
passes a barrier, as with `jax.checkpoint`, is gathered after the barrier.
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
from graphdist.passes.layouts.placed_values import (
    PASSED_IN,
    PlacedValues,
    is_cheap,
    is_full_reduction,
)

_STORED_UNSHARDED = 8
"""A variable that is stored unsharded, and gathered at the end of each step, costs this many times
less than its bytes. So a variable whose full value is used, in any dtype, is stored unsharded. A
variable of which only a norm is used is stored sharded."""
_SMALLEST_COST = 16
"""The least cost of a variable that is stored unsharded. A scalar made of it must cost less."""


def region_of(
    roots: AbstractSet[Value], placed: PlacedValues, let_in: AbstractSet[Value]
) -> dict[Value, tuple[Value, ...]]:
    """Return the derived values from which unsharded roots may be computed, with their operands.

    A value without derived operands has to be gathered. `let_in` has the inputs of loops, and
    results of barriers, that are gathered in front of the loop or barrier.
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
    """Yield the derived operands from which a value is computed unsharded."""
    definition = placed.program.of[value]
    node = definition.node
    if definition.kind is ValueKind.COMPUTED:
        assert node is not None
        if not is_full_reduction(node):
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
    """Return whether an input of a nested graph may be gathered outside that graph."""
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
    """Return the values to gather so that all roots are unsharded and the fewest bytes are sent."""
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
    """Return about how many bytes each replica sends to make a value unsharded.

    A collective takes about as long to start as `smallest` bytes take to send.
    """
    definition = placed.program.of[value]
    if not value.type.shape:
        return 1  # scalars are sent together
    if value in placed.sharded_inputs:
        return max(_SMALLEST_COST, value.type.bytes // _STORED_UNSHARDED)
    is_sum = value in placed.terms or is_full_reduction(definition.node)
    is_scattered = is_full_reduction(definition.node) and value in placed.sharded
    once = value.type.bytes * (2 if is_sum and not is_scattered else 1)
    return max(1, (once + placed.rules.smallest) * definition.times)


def _before_moves(
    value: Value, region: Mapping[Value, tuple[Value, ...]], placed: PlacedValues
) -> Value:
    """Return the value from which `value` is made by only moving elements, or `value` itself.

    Either value costs as much to gather.
    """
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
    is_taken = value in placed.sharded or value in placed.gathered
    return is_behind and is_taken and placed.is_derived(value) and not placed.needs_barrier(value)


def _is_there_unsharded(operand: Operand, placed: PlacedValues) -> bool:
    """Return whether a derived value is unsharded anyway, or cheap to compute from such a value."""
    while type(operand) is Value and operand not in placed.unsharded:
        definition = placed.program.of[operand]
        made_of = [parent for parent in definition.parents if placed.is_derived(parent)]
        is_computed = definition.kind is ValueKind.COMPUTED and is_cheap(definition.node)
        if not is_computed or len(made_of) != 1:
            return False
        (operand,) = made_of
    return True


def is_made_unsharded(value: Operand, placed: PlacedValues, given: Value | None = None) -> bool:
    """Return whether a derived value can be computed from values that are unsharded in any case.

    The value `given` counts as unsharded.
    """
    pending, seen = [value], {value}
    while pending:
        operand = pending.pop()
        if operand in placed.unsharded or operand is given or not placed.is_derived(operand):
            continue
        definition = placed.program.of[cast(Value, operand)]
        if definition.kind is not ValueKind.COMPUTED or is_full_reduction(definition.node):
            return False
        pending += [parent for parent in definition.parents if parent not in seen]
        seen.update(definition.parents)
    return placed.is_derived(value)


def carried_unsharded(placed: PlacedValues) -> set[Value]:
    """Return the carries of loops that are better gathered once, in front of the loop.

    The iterations would send more bytes for a sharded carry. If the carry is unsharded, each
    iteration computes its next value without sending.
    """
    found: set[Value] = set()
    for value in placed.derived:
        definition = placed.program.of[value]
        if definition.kind is not ValueKind.CARRY or value not in placed.sharded:
            continue
        behind = placed.computed_of([value])
        sent = sum(_bytes_sent(each, placed) for each in placed.gathered if each in behind)
        if sent * _length(definition) > _bytes_sent(value, placed) and is_made_unsharded(
            definition.parents[1], placed, value
        ):
            found.add(value)
    return found


def _length(definition: Definition) -> int:
    assert definition.node is not None
    return Scan(definition.node).length


def let_in(placed: PlacedValues) -> set[Value]:
    """Return the inputs of loops, and results of barriers, that are gathered in front of these.

    These are values whose operand is unsharded there in any case, all constants of a loop if the
    program asks for it, and otherwise the smallest constants of a loop up to `most_bytes`.
    """
    found = {value for value in placed.program.passing if _is_without_barrier(value, placed)}
    for node in walk(placed.graph):
        if node.op is not SCAN:
            continue
        scan = Scan(node)
        for operand, value in (*scan.constants, *scan.scanned):
            if value in placed.gathered and _is_there_unsharded(operand, placed):
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
