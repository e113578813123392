"""The bytes in memory while the nodes run in order, on one replica.

They are counted by `graphdist.ir.analyses.held_values`. XLA fuses, reuses buffers and reorders.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdist.ir.analyses import held_values
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
    held = held_values(model.graph)
    positions = (model.position_of[node] for node in model.graph.nodes)
    steps = list(zip(positions, held.during, strict=True))
    live = [(model.names[value], value.type.bytes) for value in held.alive if value.type.bytes]
    return Timeline(steps, held.peak, held.position, sorted(live, key=lambda entry: -entry[1]))
