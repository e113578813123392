"""What each pass changed in a program, what it saved, and what it declined: `stage.explain()`.

The explanation is computed from the graphs before and after each pass, so that passes need not
count what they save.

Bytes moved are the bytes that a device sends in a step if every collective runs on a ring
(`graphdist.ir.collective_bytes`). Bytes held are the bytes of the variables between steps. A
pass may have a function `declined`, which says why the pass did not make a possible change, and a
function `chosen`, which says what other choices would cost. For a step with parameter servers, the
measures are those of the worker's graph, and the worker's reads and updates are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any  # Any: JSON

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import executions
from graphdist.ir.graph import Graph
from graphdist.passes.manager import Pass, PassRecord
from graphdist.passes.servers.cut_step import CutStep
from graphdist.report.amounts import size_text
from graphdist.report.json_records import json_of


@dataclass(frozen=True, slots=True)
class Measure:
    """The cost of a graph per device and step: nodes, collectives by kind, bytes moved and held."""

    nodes: int
    collectives: Mapping[str, int]
    moved: int
    held: int


@dataclass(frozen=True, slots=True)
class PassEffect:
    """One pass: the measures before and after it, its choices, and why it declined changes."""

    name: str
    changed: bool
    before: Measure
    after: Measure
    declined: tuple[str, ...]
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """One request of a step: a read or an update of variables of one server.

    `bytes` is the number of bytes sent. For a read of rows, `bytes` is the largest possible number,
    because a row that is read twice is sent once. `server` is None if the server is unknown.
    """

    kind: str
    """One of "read", "read rows" and "update"."""
    variables: tuple[str, ...]
    bytes: int
    server: int | None
    place: str
    """The user's line."""

    def __str__(self) -> str:
        first, *others = map(repr, self.variables)
        name = first + (f" with {', '.join(others)}" if others else "")
        size = size_text(self.bytes)
        what = {
            "read": f"{name} is read: {size}",
            "read rows": f"rows of {name} are read: at most {size}",
            "update": f"{name} is updated: {size} sent",
        }[self.kind]
        server = "" if self.server is None else f"server {self.server}: "
        return f"{server}{what}, {self.place}"


@dataclass(frozen=True)
class Explanation:
    """The effects of a program's passes, in order. `print` shows the effects as a table."""

    name: str
    target: str
    steps: tuple[PassEffect, ...]
    servers: tuple[ServerRequest, ...] = ()
    """The reads and updates that the step requests from parameter servers."""
    options: tuple[str, ...] = ()
    """The options of the compiler that were chosen for the graph, with the reasons."""

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "name": self.name,
            "target": self.target,
            "passes": json_of(self.steps),
            "servers": json_of(self.servers),
            "options": json_of(self.options),
        }

    def __str__(self) -> str:
        changed = sum(step.changed for step in self.steps)
        lines = [f"{self.name} on {self.target}: {changed} of {len(self.steps)} passes changed it"]
        lines += [f"{'':<30}{'nodes':>8}{'moved a step':>15}{'held':>12}   collectives"]
        if self.steps:
            lines.append(_row("traced", self.steps[0].before))
        for step in self.steps:
            if step.changed:
                saved = savings(step)
                lines.append(_row(step.name, step.after))
                lines += [f"    saved: {', '.join(saved)}"] if saved else []
                lines += [f"    chosen: {choice}" for choice in step.chosen]
            elif step.declined:
                lines.append(step.name)
            lines += [f"    declined: {reason}" for reason in step.declined]
        lines += self.options
        if self.servers:
            lines.append(_traffic(self.servers))
        return "\n".join([*lines, *(f"    {request}" for request in self.servers)])

    __repr__ = __str__  # in a REPL and in a notebook


def _traffic(requests: Sequence[ServerRequest]) -> str:
    read = size_text(sum(request.bytes for request in requests if request.kind != "update"))
    sent = size_text(sum(request.bytes for request in requests if request.kind == "update"))
    most = "at most " if any(request.kind == "read rows" for request in requests) else ""
    return f"parameter servers: a worker reads {most}{read} a step, sends {sent}"


def _row(name: str, measure: Measure) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in measure.collectives.items())
    return (
        f"{name:<30}{measure.nodes:>8,}{size_text(measure.moved):>15}"
        f"{size_text(measure.held):>12}   {kinds or 'none'}"
    )


def savings(step: PassEffect) -> list[str]:
    """Describe the savings of a pass per device."""
    before, after = step.before, step.after
    fewer = sum(before.collectives.values()) - sum(after.collectives.values())
    moved, held = before.moved - after.moved, before.held - after.held
    savings = {
        f"{fewer} collective{'s' * (fewer > 1)} a step less": fewer,
        f"{size_text(moved)} a step not moved": moved,
        f"{size_text(held)} not held": held,
    }
    return [text for text, amount in savings.items() if amount > 0]


def explanation(
    target: str,
    traced: Graph,
    pipeline: Sequence[Pass],
    history: Sequence[PassRecord],
    options: tuple[str, ...] = (),
) -> Explanation:
    """Return the effects of a pipeline's passes. `history` has the graphs that they returned."""
    graphs = pairwise([traced, *(record.graph for record in history)])
    steps = tuple(
        PassEffect(
            graph_pass.name,
            changed=after is not before,
            before=graph_measure(before),
            after=graph_measure(after),
            declined=tuple(getattr(graph_pass.run, "declined", _nothing)(before)),
            chosen=tuple(getattr(graph_pass.run, "chosen", _nothing)(before)),
        )
        for graph_pass, (before, after) in zip(pipeline, graphs, strict=True)
    )
    cut = history[-1].cut if history else None
    requests = [] if cut is None else [*_reads(cut), *_updates(cut)]
    requests.sort(key=lambda request: -1 if request.server is None else request.server)
    return Explanation(traced.name, target, steps, tuple(requests), options)


def _reads(cut: CutStep) -> Iterator[ServerRequest]:
    for read in cut.reads:
        kind = "read rows" if read.is_of_rows else "read"
        names = tuple(variable.name for variable in read.variables)
        yield ServerRequest(kind, names, read.type.bytes, read.server, str(read.source))


def _updates(cut: CutStep) -> Iterator[ServerRequest]:
    """Yield the updates. A value that several updates send to a server counts in the first only."""
    sent: dict[int | None, set[int]] = {}
    for update in cut.updates:
        of_server = sent.setdefault(update.server, set())
        taken = zip(update.sent, update.taken, strict=True)
        size = sum(value.type.bytes for index, value in taken if index not in of_server)
        of_server.update(update.sent)
        yield ServerRequest("update", update.variables, size, update.server, str(update.source))


def _nothing(graph: Graph) -> Sequence[str]:
    return ()


@kept_analysis
def graph_measure(graph: Graph) -> Measure:
    """Return the cost of a graph per device and step."""
    kinds: Counter[str] = Counter()
    moved = 0.0
    for node, times, every in executions(graph):
        if node.op.is_collective:
            kinds[node.op.name] += ceil(times / every)
            moved += times / every * collective_of(node).bytes_sent
    held = sum(variable.held(graph.mesh).bytes for variable in graph.variables)
    return Measure(len(walk(graph)), dict(sorted(kinds.items())), round(moved), held)
