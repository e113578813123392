"""The bytes in memory while the nodes run in order, on one replica.

They are counted as by `graphdist.ir.analyses.peak_bytes`: a value is held from its node to its last
use, an input from the start, an output to the end. XLA fuses, reuses buffers and reorders.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from graphdist.ir.analyses import peak_bytes
from graphdist.ir.graph import Graph, Value
from graphdist.viz.model import Model

__all__ = ["Timeline", "memory_timeline"]


@dataclass(frozen=True)
class Timeline:
    """The bytes held while each node of the outermost graph runs, and the values at the peak.

    `steps` are positions of records and bytes; `live` are names and bytes, the largest first.
    """

    steps: list[tuple[int, int]]
    peak: int
    peak_step: int
    live: list[tuple[str, int]]


def memory_timeline(model: Model) -> Timeline:
    """Return the bytes held node by node.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.viz.model import model_of
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> memory_timeline(model_of(graph)).steps
    [(1, 24)]
    """
    graph = model.graph
    last: dict[Value, int] = dict.fromkeys(graph.inputs, -1)
    for position, node in enumerate(graph.nodes):
        for operand in node.operands:
            if isinstance(operand, Value):
                last[operand] = position
        for result in node.results:
            last[result] = position
    last.update((output, len(graph.nodes)) for output in graph.outputs if isinstance(output, Value))
    dying: Counter[int] = Counter()
    size = {value: value.type.bytes for value in last}
    for value, position in last.items():
        dying[position] += size[value]
    alive = sum(size[value] for value in graph.inputs)
    steps: list[tuple[int, int]] = []
    peak, peak_step = alive, -1
    alive -= dying[-1]
    for position, node in enumerate(graph.nodes):
        for value in node.results:
            alive += size[value]
        extra = max(map(_held_inside, node.graphs), default=0) if node.graphs else 0
        steps.append((model.position_of[node], alive + extra))
        if alive + extra > peak:
            peak, peak_step = alive + extra, position
        alive -= dying[position]
    return Timeline(steps, peak, peak_step, _live(model, last, peak_step))


def _held_inside(nested: Graph) -> int:
    """Return the bytes that a nested graph holds at its peak beyond its inputs."""
    return peak_bytes(nested) - sum(value.type.bytes for value in nested.inputs)


def _live(model: Model, last: dict[Value, int], at: int) -> list[tuple[str, int]]:
    born: dict[Value, int] = dict.fromkeys(model.graph.inputs, -1)
    for position, node in enumerate(model.graph.nodes[: at + 1]):
        born.update(dict.fromkeys(node.results, position))
    live = [
        (model.names[value], value.type.bytes)
        for value in born
        if last[value] >= at and value.type.bytes
    ]
    return sorted(live, key=lambda entry: -entry[1])
