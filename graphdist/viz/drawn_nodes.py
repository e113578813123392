"""The boxes and edges of a drawing of one graph: all nodes, or those that were chosen.

An edge leads from a node to its user. Groups may be closed: a closed group is one box.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush

from graphdist.viz.model import Model, Record

__all__ = ["Drawing", "Path", "closed_to", "drawing_of"]

Path = tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """The chosen nodes of a model, by their positions in order, and the edges between them."""

    model: Model
    positions: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    @property
    def records(self) -> list[tuple[int, Record]]:
        """Return the chosen nodes with their positions."""
        return [(position, self.model.records[position]) for position in self.positions]


def drawing_of(model: Model, chosen: Collection[int] | None = None) -> Drawing:
    """Return the drawing of some records of a model, or of all."""
    every = range(len(model.records))
    positions = tuple(every) if chosen is None else tuple(sorted(chosen))
    there = set(positions)
    edges = tuple(
        (producer, position)
        for position in positions
        for producer in model.records[position].inputs
        if producer in there
    )
    return Drawing(model, positions, edges)


def closed_to(paths: Sequence[Path], most: int) -> list[Path | None]:
    """Return for each path the closed group to draw in its place, None for a node of its own.

    Groups are opened from the outside in, small ones first, as long as there are at most `most`
    boxes.

    >>> closed_to([("a",), ("a", "b"), ("a", "b")], 2)
    [None, ('a', 'b'), ('a', 'b')]
    >>> closed_to([("a",), ("a", "b"), ("a", "b")], 1)
    [('a',), ('a',), ('a',)]
    """
    inside: defaultdict[Path, set[Path]] = defaultdict(set)  # the groups directly in a group
    alone = Counter(paths)  # its own nodes
    for path in alone:
        for depth in range(len(path)):
            inside[path[:depth]].add(path[: depth + 1])
    opened: set[Path] = {()}
    boxes = alone[()] + len(inside[()])
    waiting = [(1, alone[path] + len(inside[path]), path) for path in inside[()]]
    heapify(waiting)
    while waiting:
        depth, size, path = heappop(waiting)
        if boxes - 1 + size > most:
            continue
        boxes += size - 1
        opened.add(path)
        for group in inside[path]:
            heappush(waiting, (depth + 1, alone[group] + len(inside[group]), group))

    @cache
    def closed(path: Path) -> Path | None:
        beginnings = (path[:depth] for depth in range(1, len(path) + 1))
        return next((group for group in beginnings if group not in opened), None)

    return [closed(path) for path in paths]
