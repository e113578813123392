"""Describes where sharded values are gathered: the cost of each position, and of other positions.

A gathered value is sent once in each iteration of the loops around it, and is in memory while it is
used. If a loop scans a stack of layers, the loop gathers one layer per iteration; a gather before
the loop would keep the unsharded stack in memory. A gather before a conversion sends the value in
the dtype from which it is converted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from graphdist.ir.analyses import walk
from graphdist.ir.definitions import ValueKind, definitions
from graphdist.ir.graph import Graph, Node, Value
from graphdist.ir.ops import ALL_GATHER
from graphdist.passes.layouts.placed_values import PlacedValues
from graphdist.passes.layouts.sharded_updates import text_of
from graphdist.passes.layouts.sharding_propagation import is_scanned

__all__ = ["gathered_stacks", "priced_positions", "unsharded_stacks"]


def priced_positions(placed: PlacedValues) -> list[str]:
    """Return the positions of gathers, each once, with the bytes per step and the bytes held."""
    found = Counter(
        text
        for value in placed.gathered
        if value.type.shape and value.type.bytes >= placed.rules.smallest
        for text in [_position(value, placed)]
    )
    return [f"{count} x {text}" if count > 1 else text for text, count in found.items()]


def _position(value: Value, placed: PlacedValues) -> str:
    definition = placed.program.of[value]
    times, node = definition.times, definition.node
    of = f"at {node.source}" if node else f"of {value.hint}"
    where = "once" if times == 1 else f"in each of {times:g} iterations"
    text = f"{value.type.dtype}{list(value.type.shape)} {of} is gathered {where}"
    others = (f"; {where}: {cost}" for where, cost in _others(value, placed))
    return f"{text}, {_cost(value.type.bytes, times)}{''.join(others)}"


def _cost(held: float, times: float) -> str:
    return f"{held * times:,.0f} bytes per step, {held:,.0f} held"


def _others(value: Value, placed: PlacedValues) -> Iterator[tuple[str, str]]:
    """Yield the other positions of a gather with their costs, the nearest first."""
    of, child = placed.program.of, value
    while child in of:
        definition = of[child]
        parents = [parent for parent in definition.parents if placed.is_derived(parent)]
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
