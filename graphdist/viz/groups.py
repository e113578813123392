"""The group in which each node is drawn: a path, beginning with the outermost group.

1. The path is the node's named scope (`jax.named_scope`, a module's name) if the node has one.
   Otherwise the path is the user's functions on the node's call stack, without the calls that all
   nodes share. If no call remains, the path is the user's line.
2. A node in the backward pass of the scope `a/b` has the path `backward/a/b`. A node of `a/b` that
   is computed again (`jax.checkpoint`) has `recomputed` in its path.
3. A node without a known line is in the group of the pass that made it. If no pass made the node
   (code within JAX did), it is in the group of its first operand, or else of its first user.
4. A node in the body of a loop or branch is in a group below the loop or branch. The identity of
   the loop or branch is that group's name, because names of nodes change from pass to pass.
5. A group with more than `CROWD` direct members is divided by the user's lines, and a line with
   more than `CROWD` members by order. So no group is too large to lay out when it is opened.
6. The groups of a program are computed once for the graphs of all its passes: a node that a pass
   keeps stays in its group. `identities.py` says which nodes are the same.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, reduce
from itertools import count, takewhile
from typing import TypeVar

from graphdist.viz.model import Model, Record

T = TypeVar("T")
GroupPath = tuple[str | int, ...]
"""Names of groups, outermost first; an integer is the identity of a loop or branch."""

CROWD = 60
_TRANSFORM = re.compile(r"(jvp|transpose|vmap|pmap|jit|linearize|shard_map)\((.*)\)")
_RECOMPUTED = "rematted_computation"


def own_paths(models: Sequence[Model]) -> Iterator[list[GroupPath]]:
    """Yield the paths of each model's records, without the loops and branches around a record."""
    shared = _shared([record for model in models for record in model.records])
    for model in models:
        paths = [_own(record, shared) for record in model.records]
        lost = [at for at, record in enumerate(model.records) if goes_with_neighbours(record)]
        for at in lost:
            paths[at] = _of_neighbour(model.records, paths, at, model.records[at].inputs)
        for at in reversed(lost):
            if not paths[at]:
                paths[at] = _of_neighbour(model.records, paths, at, model.users[at])
        yield paths


def goes_with_neighbours(record: Record) -> bool:
    """Return whether a node has neither scope, line nor pass, so that it joins a neighbour."""
    facts = record.facts
    return record.node is not None and not (facts.frames or scope_path(facts.scope) or facts.origin)


def _of_neighbour(
    records: list[Record], paths: list[GroupPath], at: int, neighbours: list[int]
) -> GroupPath:
    """Return the path of the first of `neighbours` that is in the same graph as the record `at`.

    Without such a neighbour, return the path of record `at`.
    """
    for neighbour in neighbours:
        if records[neighbour].node is not None and records[neighbour].parent == records[at].parent:
            return paths[neighbour]
    return paths[at]


@cache
def scope_path(scope: str) -> GroupPath:
    """Return a named scope as a path, with JAX's marks of transformations made readable.

    >>> scope_path("encoder/layer1")
    ('encoder', 'layer1')
    >>> scope_path("transpose(jvp(encoder))/layer1")
    ('backward', 'encoder', 'layer1')
    """
    path, transforms = _names(scope)
    if sum(_TRANSFORM.fullmatch(part) is not None for part in _parts(scope)) > 1:
        path = _without_repetition(path)
    if _RECOMPUTED in path:
        at = path.index(_RECOMPUTED)
        path = [*path[:at], "recomputed", *(name for name in path[at:] if name != _RECOMPUTED)]
    return ("backward", *path) if "transpose" in transforms and path else tuple(path)


def _names(scope: str) -> tuple[list[str], set[str]]:
    """Return the names in a scope, and the transformations that apply to any of the names.

    JAX writes `jvp(a/b)/c` for the scope `c` in the scope `a/b` under `jvp`.
    """
    names: list[str] = []
    transforms: set[str] = set()
    for part in _parts(scope):
        if match := _TRANSFORM.fullmatch(part):
            inner, further = _names(match[2])
            names += inner
            transforms |= {match[1], *further}
        else:
            names.append(part)
    return names, transforms


def _parts(scope: str) -> list[str]:
    """Split a scope at the slashes outside parentheses."""
    parts, depth = [""], 0
    for piece in re.split("([/()])", scope):
        depth = max(0, depth + {"(": 1, ")": -1}.get(piece, 0))
        if piece == "/" and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return [part for part in parts if part]


def _without_repetition(names: list[str]) -> list[str]:
    """Return `names` without the first of two equal sequences of names at the beginning.

    JAX writes `transpose(jvp(a))/b/jvp(a)/b/c` where it recomputes `a/b/c`.
    """
    for length in range(1, len(names) // 2 + 1):
        if names[:length] == names[length : 2 * length]:
            return names[length:]
    return names


def _shared(records: list[Record]) -> int:
    """Return the number of outermost frames that the call stacks of all records share."""
    callers = (record.facts.frames[:0:-1] for record in records if record.facts.frames)
    return len(reduce(common_prefix, callers, next(callers, ())))


def common_prefix(one: tuple[T, ...], other: tuple[T, ...]) -> tuple[T, ...]:
    """Return the longest tuple with which both tuples begin."""
    if other[: len(one)] == one:  # the usual case, and fast
        return one
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return tuple(item for item, _ in same)


def _own(record: Record, shared: int) -> GroupPath:
    facts = record.facts
    if facts.op in ("input", "variable"):
        return (f"{facts.op}s",) if record.parent < 0 else ()
    if scope := scope_path(facts.scope):
        return scope
    call = facts.frames[::-1]
    if not call:
        return (facts.origin,) if facts.origin else ()
    if len(call) <= shared + 1:
        return (record.facts.line,)
    # Two calls of one function are two groups, which differ in the line of the call.
    return tuple(
        f"{frame.function} (called in line {caller.line})"
        for caller, frame in zip(call[shared:], call[shared + 1 :], strict=False)
    )


def crowds_divided(paths: Sequence[GroupPath], records: Sequence[Record]) -> list[GroupPath]:
    """Return the paths of records, with groups of more than `CROWD` records divided further."""
    crowds = Counter(paths)
    lines = [(path, record.facts.line) for path, record in zip(paths, records, strict=True)]
    kinds: defaultdict[GroupPath, set[str]] = defaultdict(set)
    for path, line in lines:
        if line:
            kinds[path].add(line)
    by_line = [
        (*path, line) if crowds[path] > CROWD and line and len(kinds[path]) > 1 else path
        for path, line in lines
    ]
    crowds = Counter(by_line)
    indices: defaultdict[GroupPath, Iterator[int]] = defaultdict(count)
    # A part of a group is drawn in the group. What is in no group has to say what it counts.
    return [
        (*path, *_part(next(indices[path]), crowds[path], "" if path else "nodes "))
        for path in by_line
    ]


def _part(index: int, size: int, what: str) -> GroupPath:
    """Return the names of the nested parts around a member of a group, the outermost first.

    `index` is the member's position in the group, `size` the number of the group's members.
    """
    parts: list[str] = []
    width = CROWD
    while width < size:
        start = index // width * width
        parts.append(f"{what}{start + 1} to {min(start + width, size)}")
        width *= CROWD
    return tuple(reversed(parts))
