"""A minimum cut of a dataflow: the values of fewest bytes on all paths from starts to ends.

The cut is the dual of a maximum flow, which is found by augmenting paths of fewest edges (Edmonds
and Karp 1972, "Theoretical improvements in algorithmic efficiency for network flow problems"). Each
value is an edge from its entry to its exit, with the bytes of the value as its capacity. Edges of
unlimited capacity lead from the exit of a value to the entries of the values that follow it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

from graphdist.ir.flow import reachable

V = TypeVar("V", bound=Hashable)

_Vertex: TypeAlias = tuple[object, str]
_Residual: TypeAlias = dict[_Vertex, dict[_Vertex, float]]

_START: _Vertex = ("", "start")
_END: _Vertex = ("", "end")
_UNLIMITED = float("inf")


def connected_values(made_of: Mapping[V, Sequence[V]]) -> Iterator[set[V]]:
    """Yield the connected components of the dataflow, as sets of values.

    >>> [sorted(values) for values in connected_values({"sum": ["term"], "term": [], "other": []})]
    [['sum', 'term'], ['other']]
    """
    beside: dict[V, list[V]] = {value: list(operands) for value, operands in made_of.items()}
    for value, operands in made_of.items():
        for operand in operands:
            beside[operand].append(value)
    seen: set[V] = set()
    for value in made_of:
        if value not in seen:
            found = reachable(beside, [value])
            seen |= found
            yield found


def minimum_cut(
    starts: Iterable[V],
    edges: Mapping[V, Sequence[V]],
    bytes_of: Mapping[V, float],
    ends: Collection[V] | None = None,
    *,
    nearest_to_ends: bool = False,
) -> set[V]:
    """Return the values of fewest total bytes that separate `starts` from the ends.

    `edges` maps each value to the values that follow it. If `ends` is None, the ends are the values
    that no value follows. The cut may contain starts and ends. Of several minimum cuts, the one
    nearest to the starts is returned, or with `nearest_to_ends` the one nearest to the ends.

    >>> made_of = {"narrow": ["wide"], "rounded": ["wide"], "wide": []}
    >>> sorted(minimum_cut(["narrow", "rounded"], made_of, {"wide": 4, "narrow": 1, "rounded": 2}))
    ['narrow', 'rounded']
    >>> sorted(minimum_cut(["narrow", "wide"], made_of, {"wide": 4, "narrow": 1, "rounded": 2}))
    ['wide']
    """
    residual: _Residual = {_START: {(value, "entry"): _UNLIMITED for value in starts}}
    for value, following in edges.items():
        _join(residual, (value, "entry"), (value, "exit"), bytes_of[value])
        for other in following:
            _join(residual, (value, "exit"), (other, "entry"), _UNLIMITED)
        if not following if ends is None else value in ends:
            _join(residual, (value, "exit"), _END, _UNLIMITED)
    reached = _reached(residual)
    while _END in reached:
        _augment(residual, reached)
        reached = _reached(residual)
    if nearest_to_ends:
        reaching = _reaching(residual)
        return {v for v in edges if (v, "exit") in reaching and (v, "entry") not in reaching}
    return {v for v in edges if (v, "entry") in reached and (v, "exit") not in reached}


def _join(residual: _Residual, start: _Vertex, end: _Vertex, capacity: float) -> None:
    residual.setdefault(start, {})[end] = capacity
    residual.setdefault(end, {}).setdefault(start, 0)


def _reached(residual: _Residual) -> dict[_Vertex, _Vertex]:
    """Return the vertices reachable from the source in the residual graph, and their predecessors.

    The search stops when it reaches the sink.
    """
    reached: dict[_Vertex, _Vertex] = {_START: _START}
    pending: deque[_Vertex] = deque([_START])
    while pending and _END not in reached:
        start = pending.popleft()
        for end, capacity in residual[start].items():
            if capacity > 0 and end not in reached:
                reached[end] = start
                pending.append(end)
    return reached


def _reaching(residual: _Residual) -> set[_Vertex]:
    """Return the vertices from which the sink is reachable in the residual graph."""
    before: dict[_Vertex, list[_Vertex]] = {}
    for start, ends in residual.items():
        for end, capacity in ends.items():
            if capacity > 0:
                before.setdefault(end, []).append(start)
    return reachable(before, [_END])


def _augment(residual: _Residual, reached: Mapping[_Vertex, _Vertex]) -> None:
    path: list[_Vertex] = [_END]
    while path[-1] != _START:
        path.append(reached[path[-1]])
    edges = [(start, end) for end, start in pairwise(path)]
    capacity = min(residual[start][end] for start, end in edges)
    for start, end in edges:
        residual[start][end] -= capacity
        residual[end][start] = residual[end].get(start, 0) + capacity
