"""Nodes that are found one after the other, in the order of their graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from graphdist.ir.graph import Node


class NodesInOrder:
    """A queue of nodes: each is taken once, in the order of `place`, or against it."""

    def __init__(
        self, place: Mapping[Node, int], nodes: Iterable[Node], *, is_reversed: bool = False
    ) -> None:
        self._place, self._sign = place, -1 if is_reversed else 1
        self._pending: list[int] = []
        self._nodes: dict[int, Node] = {}
        self.add(nodes)

    def add(self, nodes: Iterable[Node]) -> None:
        """Add nodes, which stand behind the latest."""
        for node in nodes:
            place = self._sign * self._place[node]
            if place not in self._nodes:
                self._nodes[place] = node
                heappush(self._pending, place)

    def __iter__(self) -> Iterator[Node]:
        while self._pending:
            yield self._nodes[heappop(self._pending)]
