"""A minimum cut of a dataflow: the values of fewest bytes of which some others can be computed.

It is the dual of a maximum flow, which is found by augmenting paths of fewest edges (Edmonds and
Karp 1972, "Theoretical improvements in algorithmic efficiency for network flow problems"). Each
value is an edge from its entry to its exit, with the bytes of the value as its capacity. Exits are
joined without a limit to the entries of what a value is computed of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

__all__ = ["minimum_cut"]

V = TypeVar("V", bound=Hashable)

_Vertex: TypeAlias = tuple[object, str]
_Residual: TypeAlias = dict[_Vertex, dict[_Vertex, float]]

_START: _Vertex = ("", "start")
_END: _Vertex = ("", "end")
_UNLIMITED = float("inf")


def minimum_cut(
    wanted: Iterable[V], made_of: Mapping[V, Sequence[V]], bytes_of: Mapping[V, float]
) -> set[V]:
    """Return the values of fewest bytes in all that stand between `wanted` and the sources.

    `made_of` has what each value is computed of; a source is computed of nothing. A wanted value
    may be cut itself. Of several minimum cuts it is the one nearest to the wanted values.

    >>> made_of = {"narrow": ["wide"], "rounded": ["wide"], "wide": []}
    >>> sorted(minimum_cut(["narrow", "rounded"], made_of, {"wide": 4, "narrow": 1, "rounded": 2}))
    ['narrow', 'rounded']
    >>> sorted(minimum_cut(["narrow", "wide"], made_of, {"wide": 4, "narrow": 1, "rounded": 2}))
    ['wide']
    """
    wanted = list(wanted)
    residual: _Residual = {_START: {(value, "entry"): _UNLIMITED for value in wanted}}
    for value in made_of:
        _join(residual, (value, "entry"), (value, "exit"), bytes_of[value])
        for operand in made_of[value]:
            _join(residual, (value, "exit"), (operand, "entry"), _UNLIMITED)
        if not made_of[value]:
            _join(residual, (value, "exit"), _END, _UNLIMITED)
    reached = _reached(residual)
    while _END in reached:
        _augment(residual, reached)
        reached = _reached(residual)
    return {v for v in made_of if (v, "entry") in reached and (v, "exit") not in reached}


def _join(residual: _Residual, start: _Vertex, end: _Vertex, capacity: float) -> None:
    residual.setdefault(start, {})[end] = capacity
    residual.setdefault(end, {}).setdefault(start, 0)


def _reached(residual: _Residual) -> dict[_Vertex, _Vertex]:
    """Return from where each vertex is reached first, by paths that can take more."""
    reached: dict[_Vertex, _Vertex] = {_START: _START}
    pending: deque[_Vertex] = deque([_START])
    while pending and _END not in reached:
        start = pending.popleft()
        for end, capacity in residual[start].items():
            if capacity > 0 and end not in reached:
                reached[end] = start
                pending.append(end)
    return reached


def _augment(residual: _Residual, reached: Mapping[_Vertex, _Vertex]) -> None:
    path: list[_Vertex] = [_END]
    while path[-1] != _START:
        path.append(reached[path[-1]])
    edges = [(start, end) for end, start in pairwise(path)]
    capacity = min(residual[start][end] for start, end in edges)
    for start, end in edges:
        residual[start][end] -= capacity
        residual[end][start] = residual[end].get(start, 0) + capacity
