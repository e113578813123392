"""What each pass changed in a program, what it saved, and what it declined: `stage.explain()`.

The explanation is computed from the graphs before and after each pass, so that passes need not
count what they save.

Bytes moved are the bytes that a device sends in a step if every collective runs on a ring
(`graphdist.ir.collective_bytes`). Bytes held are the bytes of the variables between steps. A
pass may have a function `declined`, which says why the pass did not make a possible change, and a
function `chosen`, which says what other choices would cost. For a step with parameter servers, the
measures are those of the worker's graph, the bytes that it reads from servers and sends to them
included, and its reads and updates are listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any  # Any: JSON

from graphdist.ir.analyses import kept_analysis, walk
from graphdist.ir.collective_bytes import collective_of
from graphdist.ir.cost import executions
from graphdist.ir.graph import Graph
from graphdist.passes.manager import Pass, PassRecord
from graphdist.passes.servers.cut_step import CutStep
from graphdist.report.amounts import fitted_lines, indented_table, size_text
from graphdist.report.json_records import json_of
from graphdist.report.server_requests import ServerRequest, request_lines, requests_of


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
        rows: list[tuple[str, ...]] = [("", "nodes", "moved a step", "held", "collectives")]
        rows += [_row("traced", step.before) for step in self.steps[:1]]
        rows += [_row(step.name, step.after) for step in self.steps if step.changed]
        lines += [*indented_table(rows, left=(0, 4)), *self._reasons()]
        return "\n".join(fitted_lines([*lines, *self.options, *request_lines(self.servers)]))

    __repr__ = __str__  # in a REPL and in a notebook

    def _reasons(self) -> Iterator[str]:
        for step in self.steps:
            saved = (
                [f"  saved: {', '.join(savings(step))}"] if step.changed and savings(step) else []
            )
            chosen = [f"  chosen: {choice}" for choice in step.chosen if step.changed]
            declined = [f"  declined: {reason}" for reason in step.declined]
            if saved or chosen or declined:
                yield from (step.name, *saved, *chosen, *declined)


def _row(name: str, measure: Measure) -> tuple[str, ...]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in measure.collectives.items())
    sizes = size_text(measure.moved), size_text(measure.held)
    return name, f"{measure.nodes:,}", *sizes, kinds or "none"


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
    graphs = pairwise([(traced, None), *((record.graph, record.cut) for record in history)])
    steps = tuple(
        PassEffect(
            graph_pass.name,
            changed=after is not before,
            before=_measure(before, cut_before),
            after=_measure(after, cut),
            declined=tuple(getattr(graph_pass.run, "declined", _nothing)(before)),
            chosen=tuple(getattr(graph_pass.run, "chosen", _nothing)(before)),
        )
        for graph_pass, ((before, cut_before), (after, cut)) in zip(pipeline, graphs, strict=True)
    )
    requests = requests_of(history[-1].cut if history else None)
    return Explanation(traced.name, target, steps, requests, options)


def _measure(graph: Graph, cut: CutStep | None) -> Measure:
    """Return the cost of a graph, with what a worker reads from servers and sends to them."""
    found, requests = graph_measure(graph), requests_of(cut)
    return replace(found, moved=found.moved + sum(each.bytes for each in requests))


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
