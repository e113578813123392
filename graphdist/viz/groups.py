"""The group in which each node is drawn: a path, beginning with the outermost group.

1. The path is the node's named scope (`jax.named_scope`, a module's name) if it has one. Else it is
   the calls of the user's functions around it, without those that all nodes share; if none remain,
   the user's line.
2. The nodes that differentiation made of a scope are in the same scope under `backward`.
3. A node without a known line is in the group of the pass that made it. If no pass made it (code
   within JAX did), it is with its first operand, or else with its first user.
4. A node in the body of a loop or branch is in a group below that node.
5. A group with more than `CROWD` direct members is divided by the user's lines, and a line with
   more than `CROWD` members by order. So no group is too large to lay out when it is opened.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from itertools import takewhile
from os.path import basename

from graphdist.viz.model import Model, Record

__all__ = ["CROWD", "GroupPath", "paths"]

GroupPath = tuple[str, ...]

CROWD = 60
_TRANSFORM = re.compile(r"(\w+)\((.*)\)")


def paths(model: Model) -> list[GroupPath]:
    """Return the path of the group of each record, in order.

    >>> from graphdist.ir.parser import parse
    >>> from graphdist.viz.model import model_of
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> paths(model_of(graph))
    [('inputs',), (), ()]
    """
    shared = _shared(model.records)
    found: list[GroupPath] = []
    for record in model.records:
        outer = _below(model.records, found, record)
        found.append(outer + _own(record, shared))
    lost = [number for number, record in enumerate(model.records) if _is_lost(record)]
    for number in lost:
        found[number] = _beside(model.records, found, number, model.records[number].inputs)
    for number in reversed(lost):
        if model.records[number].parent < 0 and not found[number]:
            found[number] = _beside(model.records, found, number, model.users[number])
    return _thinned(model.records, found)


def _is_lost(record: Record) -> bool:
    facts = record.facts
    return record.node is not None and not (facts.frames or facts.scope or facts.origin)


def _beside(
    records: list[Record], found: list[GroupPath], number: int, neighbours: list[int]
) -> GroupPath:
    """Return the path of a record's first neighbour that is a node of the same graph."""
    for neighbour in neighbours:
        if (
            records[neighbour].node is not None
            and records[neighbour].parent == records[number].parent
        ):
            return found[neighbour]
    return found[number]


@cache
def scope_path(scope: str) -> GroupPath:
    """Return a named scope as a path, with JAX's marks of transformations made readable.

    >>> scope_path("encoder/layer1")
    ('encoder', 'layer1')
    >>> scope_path("transpose(jvp(encoder))/layer1")
    ('backward', 'encoder', 'layer1')
    """
    parts: list[str] = []
    backward = False
    for part in filter(None, scope.split("/")):
        inner = part
        while match := _TRANSFORM.fullmatch(inner):
            backward |= match[1] == "transpose"
            inner = match[2]
        parts += [inner] * bool(inner)
    return ("backward", *parts) if backward and parts else tuple(parts)


def _shared(records: list[Record]) -> int:
    """Return how many outermost frames all nodes share."""
    callers = (
        facts.frames[:0:-1] for facts in [record.facts for record in records] if facts.frames
    )
    shared = next(callers, ())
    for call in callers:
        if call[: len(shared)] != shared:
            same = takewhile(lambda pair: pair[0] == pair[1], zip(shared, call, strict=False))
            shared = tuple(frame for frame, _ in same)
    return len(shared)


def _below(records: list[Record], found: list[GroupPath], record: Record) -> GroupPath:
    """Return the path that a node of a nested graph is grouped below; () at the top."""
    if record.parent < 0:
        return ()
    parent = records[record.parent]
    return (*found[record.parent], f"{parent.facts.op} {parent.id}")


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
        return (_line(record),)
    # Two calls of one function are two groups: the line of the call tells them apart.
    return tuple(
        f"{frame.function} (called in line {caller.line})"
        for caller, frame in zip(call[shared:], call[shared + 1 :], strict=False)
    )


def _thinned(records: list[Record], found: list[GroupPath]) -> list[GroupPath]:
    crowds = Counter(found)
    lines = [(path, _line(record)) for path, record in zip(found, records, strict=True)]
    kinds: defaultdict[GroupPath, set[str]] = defaultdict(set)
    for path, line in lines:
        if line:
            kinds[path].add(line)
    by_line = [
        (*path, line) if crowds[path] > CROWD and line and len(kinds[path]) > 1 else path
        for path, line in lines
    ]
    crowds = Counter(by_line)
    seen: Counter[GroupPath] = Counter()
    thin: list[GroupPath] = []
    for path in by_line:
        seen[path] += 1
        thin.append((*path, *_part(seen[path] - 1, crowds[path])))
    return thin


def _line(record: Record) -> str:
    frames = record.facts.frames
    return _place(frames[0].file, frames[0].line) if frames else ""


@cache
def _place(file: str, line: int) -> str:
    return f"{basename(file)}:{line}"


def _part(number: int, size: int) -> GroupPath:
    """Return the nested parts to which a member of a crowd of `size` belongs, the largest first."""
    parts: list[str] = []
    width = CROWD
    while width < size:
        start = number // width * width
        parts.append(f"{start + 1} to {min(start + width, size)}")
        width *= CROWD
    return tuple(reversed(parts))
