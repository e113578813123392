"""Programs as JSON: what the page reads, and other programs. `document.schema.json` describes it.

1. `version` grows when a reader of the last version could not read this one.
2. What is empty, zero or none is left out. No times: the same program gives the same bytes.
3. A node refers to another by its position in `nodes`.
4. What does not depend on the graph a node is in stands once, in `facts`: passes share nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any  # Any: JSON

from graphdist.garbage import collection_put_off
from graphdist.ir.graph import Graph, Node
from graphdist.viz.diff import Diff, diffs
from graphdist.viz.groups import paths
from graphdist.viz.memory import timeline
from graphdist.viz.model import Model, Record, models_of
from graphdist.viz.program import Program

__all__ = ["FORMAT", "VERSION", "document", "render"]

FORMAT = "graphdist.program"
VERSION = 2
_PLAIN = ("op", "bytes", "flops", "distribution", "origin", "scope", "variable")


@collection_put_off()  # a hundred thousand objects are made and kept: none of them is garbage
def render(program: Program) -> str:
    """Return a program as the text of a JSON document."""
    return json.dumps(document(program), ensure_ascii=False, separators=(",", ":")) + "\n"


def document(program: Program) -> dict[str, Any]:
    """Return a program as JSON: its name, and for each pass its graph and what the pass changed."""
    # Many passes leave the program as it is: there are fewer graphs than steps.
    models = models_of([step.graph for step in program.steps])
    changes = iter(diffs([graph for graph, _ in groupby(step.graph for step in program.steps)]))
    numbers = {graph: number for number, graph in enumerate(models)}
    steps: list[dict[str, Any]] = []
    before: Graph | None = None
    for step in program.steps:
        entry: dict[str, Any] = {"name": step.name, "graph": numbers[step.graph]}
        if before not in (None, step.graph) and (change := next(changes)):
            entry["diff"] = _diff(change, models[change.before], models[change.after])
        steps.append(entry)
        before = step.graph
    facts = _Facts()
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.graph.name,
        "replicas": program.graph.num_replicas,
        "passes": steps,
        "graphs": [_graph(model, facts) for model in models.values()],
        "facts": facts.all,
    }


class _Facts:
    """What is the same of a node in every graph that it is in, once."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []
        self._position_of: dict[Node, int] = {}

    def position(self, record: Record) -> int:
        """Return where the facts of a record stand."""
        position = self._position_of.get(record.node) if record.node is not None else None
        if position is None:
            position = len(self.all)
            self.all.append(_facts(record))
            if record.node is not None:
                self._position_of[record.node] = position
        return position


def _graph(model: Model, facts: _Facts) -> dict[str, Any]:
    memory = timeline(model)
    return {
        "stage": model.graph.stage.value,
        "nodes": [
            _node(record, path, facts.position(record))
            for record, path in zip(model.records, paths(model), strict=True)
        ],
        "collectives": model.collectives,
        "memory": {
            "steps": memory.steps,
            "peak": memory.peak,
            "peak_step": memory.peak_step,
            "live": memory.live[:100],
        },
    }


def _node(record: Record, path: Sequence[str], facts: int) -> dict[str, Any]:
    node: dict[str, Any] = {"id": record.id, "text": record.text, "facts": facts}
    if record.takes:
        node["operands"] = record.takes
    if record.inputs:
        node["inputs"] = record.inputs
    if path:
        node["group"] = path
    if record.parent >= 0:
        node["parent"] = record.parent
    return node


def _facts(record: Record) -> dict[str, Any]:
    facts = {name: value for name in _PLAIN if (value := getattr(record, name))}
    if record.types:
        facts["types"] = record.types
    if record.frames:
        facts["source"] = [[f.file, f.line, f.function] for f in record.frames]
    if record.is_collective:
        facts["collective"] = {
            "reducer": record.reducer,
            "bytes": record.moved,
            "group_size": record.group_size,
        }
    return facts


def _diff(change: Diff, before: Model, after: Model) -> dict[str, Any]:
    return {
        "removed": _positions(before, change.removed),
        "added": _positions(after, change.added),
        "rewired": _pairs(before, after, change.rewired),
        "changed": _pairs(before, after, change.changed),
        "kept": change.kept,
    }


def _positions(model: Model, nodes: Sequence[Node]) -> list[int]:
    return [model.position_of[node] for node in nodes]


def _pairs(before: Model, after: Model, pairs: Sequence[tuple[Node, Node]]) -> list[list[int]]:
    return [[before.position_of[old], after.position_of[new]] for old, new in pairs]
