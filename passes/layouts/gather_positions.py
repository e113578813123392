"""Chooses where sharded values are gathered, so that the fewest bytes are sent.

An operation that cannot run on shards takes unsharded operands. Among the values between the shards
and these operands, a minimum cut finds the values with the fewest bytes. These are gathered, and
the values computed from them are unsharded. So a parameter is gathered in the dtype in which it is
used, and once for all its uses. A gather in a loop counts once per iteration.

A stack that a loop scans is gathered in the loop, one slice per iteration. The constants of a loop
are gathered in the loop, too, except small ones, which are gathered once before it. A value that
passes a barrier, as with `jax.checkpoint`, is gathered after the barrier.

`priced_positions` describes the chosen position of each gather and the other positions. A gathered
value is sent once in each iteration of the loops around the gather, and is in memory while it is
used. A gather before the loop would keep the unsharded stack in memory. A gather before a
conversion sends the value in the dtype from which it is converted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from graphdist.ir.analyses import walk
from graphdist.ir.definitions import ValueKind, definitions
from graphdist.ir.graph import Graph, Node, Operand, Value
from graphdist.ir.loops import Scan
from graphdist.ir.minimum_cut import connected_values, minimum_cut
from graphdist.ir.operation_table import row_of
from graphdist.ir.ops import ALL_GATHER, SCAN
from graphdist.passes.layouts.placed_values import (
    PASSED_IN,
    PlacedValues,
    is_cheap,
    is_full_reduction,
    text_of,
)
from graphdist.passes.layouts.sharding_propagation import is_scanned

Region: TypeAlias = dict[Value, tuple[Value, ...]]
"""Derived values, each with its derived operands."""

_STORED_UNSHARDED = 8
"""A variable that is stored unsharded, and gathered at the end of each step, costs this many times
less than its bytes. So a variable whose full value is used, in any dtype, is stored unsharded. A
variable of which only a norm is used is stored sharded."""
_SMALLEST_COST = 16
"""The least cost of a variable that is stored unsharded. A scalar made of it must cost less."""


def region_of(
    roots: AbstractSet[Value], placed: PlacedValues, let_in: AbstractSet[Value]
) -> Region:
    """Return the derived values from which the unsharded `roots` may be computed.

    A value without derived operands has to be gathered. `let_in` has the inputs of loops that are
    gathered in front of the loop, and the results of barriers that are gathered in front of the
    barrier.
    """
    region: Region = {}
    pending = list(roots)
    while pending:
        value = pending.pop()
        if value not in region:
            is_made = _is_made_of_unsharded(value, placed, let_in)
            parents = filter(placed.is_derived, placed.program.of[value].parents)
            region[value] = tuple(dict.fromkeys(parents)) if is_made else ()
            pending += region[value]
    return region


def _is_made_of_unsharded(value: Value, placed: PlacedValues, let_in: AbstractSet[Value]) -> bool:
    """Return whether a value may be computed from its unsharded parents, without a gather."""
    definition = placed.program.of[value]
    kind = definition.kind
    if kind is ValueKind.COMPUTED:
        return not is_full_reduction(definition.node)
    is_small = value.type.bytes < placed.rules.smallest or definition.times == 1
    if kind is ValueKind.BRANCH_INPUT or (kind is ValueKind.SLICE and is_small):
        return True
    is_passed = kind in PASSED_IN or kind is ValueKind.BEHIND_BARRIER
    return value in let_in or (is_passed and value in placed.of_inputs)


def gathered_of(region: Region, roots: AbstractSet[Value], placed: PlacedValues) -> set[Value]:
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
    is_reduced = is_full_reduction(definition.node)
    is_sum = value in placed.terms or (is_reduced and value not in placed.sharded)
    once = value.type.bytes * (2 if is_sum else 1)
    return max(1, (once + placed.rules.smallest) * definition.times)


def _before_moves(value: Value, region: Region, placed: PlacedValues) -> Value:
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
    """Return whether a value behind a barrier is made from shards that do not pass the barrier."""
    is_behind = placed.program.of[value].kind is ValueKind.BEHIND_BARRIER
    is_taken = value in placed.sharded or value in placed.gathered
    return is_behind and is_taken and placed.is_derived(value) and not placed.needs_barrier(value)


def _is_there_unsharded(operand: Operand, placed: PlacedValues) -> bool:
    """Return whether a value is unsharded in any case, or cheap to compute from a value that is."""
    while type(operand) is Value and operand not in placed.unsharded:
        definition = placed.program.of[operand]
        made_of = list(filter(placed.is_derived, definition.parents))
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
        definition = placed.program.of[operand]
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
        node = definition.node
        if definition.kind is not ValueKind.CARRY or value not in placed.sharded or node is None:
            continue
        behind = placed.spread([value], placed.results_of)
        sent = sum(_bytes_sent(each, placed) for each in placed.gathered if each in behind)
        is_less = _bytes_sent(value, placed) < sent * Scan(node).length
        if is_less and is_made_unsharded(definition.parents[1], placed, value):
            found.add(value)
    return found


def let_in(placed: PlacedValues) -> set[Value]:
    """Return the inputs of loops, and the results of barriers, that are gathered in front of them.

    An input of a loop is gathered in front of the loop if its operand is unsharded there in any
    case. All constants of a loop are if the program says so. If the program does not say, the
    smallest constants are, up to `most_bytes`.
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
        if scan.params.gather is not None:
            found.update(values if scan.params.gather == "once" else ())
            continue
        held = 0
        for value in sorted(values, key=lambda value: value.type.bytes):
            held += value.type.bytes
            if held > placed.rules.most_bytes:
                break
            found.add(value)
    return found


def priced_positions(placed: PlacedValues) -> list[str]:
    """Return the positions of gathers, each once, with the bytes per step and the bytes held."""
    found = Counter(
        _position(value, placed)
        for value in placed.derived  # in the order of the program
        if value in placed.gathered and value.type.shape
        if value.type.bytes >= placed.rules.smallest
    )
    return [f"{count} x {text}" if count > 1 else text for text, count in found.items()]


def _position(value: Value, placed: PlacedValues) -> str:
    definition = placed.program.of[value]
    times, node = definition.times, definition.node
    of = f"at {node.source}" if node else f"of {value.hint}"
    where = "once" if times == 1 else f"in each of {times:g} iterations"
    text = f"{value.type.dtype}{list(value.type.shape)} {of} is gathered {where}"
    others = (f"; {where}: {cost}" for where, cost in _other_positions(value, placed))
    return f"{text}, {_cost(value.type.bytes, times)}{''.join(others)}"


def _cost(held: float, times: float) -> str:
    return f"{held * times:,.0f} bytes per step, {held:,.0f} held"


def _other_positions(value: Value, placed: PlacedValues) -> Iterator[tuple[str, str]]:
    """Yield the other positions of a gather with their costs, the nearest first."""
    of, child = placed.program.of, value
    while child in of:
        definition = of[child]
        parents = list(filter(placed.is_derived, definition.parents))
        parent = parents[0] if len(parents) == 1 else None
        if type(parent) is not Value:
            return
        if definition.kind in (ValueKind.SLICE, ValueKind.CONSTANT):
            held = parent.type._replace(dtype=value.type.dtype).bytes
            yield "in front of the loop", _cost(held, of[parent].times)
            return
        if definition.kind not in (ValueKind.COMPUTED, ValueKind.BEHIND_BARRIER):
            return
        if parent.type.dtype != child.type.dtype:
            yield f"as {parent.type.dtype}", _cost(parent.type.bytes, of[parent].times)
        child = parent


def unsharded_stacks(placed: PlacedValues) -> Iterator[str]:
    """Yield the stacks of layers that are gathered at once, though loops scan them."""
    for value in placed.program.of:
        length = value.type.shape[0] if value.type.shape else 1
        is_large = value.type.bytes >= placed.rules.smallest * length
        if value in placed.gathered and is_large and is_scanned(placed.program, value):
            yield (
                f"{value.type.bytes:,} bytes, {value.type}, are gathered at once, not layer by "
                f"layer: {text_of(placed.because.get(value, ''))}; in the loop over the layers it "
                f"would take one at a time"
            )


def gathered_stacks(graph: Graph, smallest: int) -> list[Node]:
    """Return the gathers whose results are scanned by loops and have at least `smallest` bytes."""
    gathers = (node for node in walk(graph) if node.op is ALL_GATHER)
    large = [node for node in gathers if node.results[0].type.bytes >= smallest]
    return [node for node in large if is_scanned(definitions(graph), node.results[0])]
