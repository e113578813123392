"""Programs as JSON: what the page reads, and other programs. `document.schema.json` describes it.

1. `version` grows when a reader of the last version could not read this one.
2. What is empty, zero or none is left out. No times: the same program gives the same bytes.
3. A node refers to another by its position in `nodes`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any  # Any: JSON

from graphdist.ir.graph import Graph, Node
from graphdist.viz.diff import Diff, diff
from graphdist.viz.groups import paths
from graphdist.viz.memory import timeline
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import Program, Step

__all__ = ["FORMAT", "VERSION", "document", "render"]

FORMAT = "graphdist.program"
VERSION = 1
_PLAIN = ("op", "text", "bytes", "flops", "distribution", "origin", "scope", "variable")


def render(program: Program) -> str:
    """Return a program as the text of a JSON document."""
    return json.dumps(document(program), ensure_ascii=False, separators=(",", ":")) + "\n"


def document(program: Program) -> dict[str, Any]:
    """Return a program as JSON: its name, and for each pass its graph and what the pass changed."""
    models = {step.graph: model_of(step.graph) for step in program.steps}
    steps: list[dict[str, Any]] = []
    numbers: dict[Graph, int] = {}
    graphs: list[dict[str, Any]] = []
    before: Step | None = None
    for step in program.steps:
        if step.graph not in numbers:
            numbers[step.graph] = len(graphs)
            graphs.append(_graph(models[step.graph]))
        entry: dict[str, Any] = {"name": step.name, "graph": numbers[step.graph]}
        if before is not None and before.graph is not step.graph:
            change = diff(before.graph, step.graph)
            if change:
                entry["diff"] = _diff(change, models[before.graph], models[step.graph])
        steps.append(entry)
        before = step
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.graph.name,
        "replicas": program.graph.num_replicas,
        "passes": steps,
        "graphs": graphs,
    }


def _graph(model: Model) -> dict[str, Any]:
    memory = timeline(model)
    return {
        "stage": model.graph.stage.value,
        "nodes": [
            _node(record, path) for record, path in zip(model.records, paths(model), strict=True)
        ],
        "collectives": model.collectives,
        "memory": {
            "steps": memory.steps,
            "peak": memory.peak,
            "peak_step": memory.peak_step,
            "live": memory.live[:100],
        },
    }


def _node(record: Record, path: Sequence[str]) -> dict[str, Any]:
    node: dict[str, Any] = {"id": record.id}
    for name in _PLAIN:
        if value := getattr(record, name):
            node[name] = value
    lists = (("types", record.types), ("operands", record.takes), ("inputs", record.inputs))
    node.update((name, list(values)) for name, values in lists if values)
    if path:
        node["group"] = list(path)
    if record.parent >= 0:
        node["parent"] = record.parent
    if record.frames:
        node["source"] = [[f.file, f.line, f.function] for f in record.frames]
    if record.is_collective:
        node["collective"] = {
            "reducer": record.reducer,
            "bytes": record.moved,
            "group_size": record.group_size,
        }
    return node


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
