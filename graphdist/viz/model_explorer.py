"""Programs as Model Explorer's JSON: one graph per pass, collectives as overlays.

Namespaces are the groups, separated by `/`; a `/` within a name becomes a division slash.
"""

from __future__ import annotations

import json
from typing import Any  # Any: JSON

from graphdist.viz.identities import paths
from graphdist.viz.model import Model, Record, models_of
from graphdist.viz.program import ShownProgram

_ORANGE = "#fa8c16"


def render(program: ShownProgram) -> str:
    """Return the graphs of all steps of a program as a collection in JSON."""
    graphs = []
    models = models_of([step.graph for step in program.all_steps])
    for index, step in enumerate(program.all_steps):
        model = models[step.graph]
        graph: dict[str, Any] = {
            "id": f"{index:02} {step.name}",
            "nodes": [_node(model, position, path) for position, path in enumerate(paths(model))],
        }
        if model.collectives:
            graph["tasksData"] = {"edgeOverlaysDataListLeftPane": [_overlays(model)]}
        graphs.append(graph)
    collection = {"label": program.graph.name, "graphs": graphs, "graphSorting": "name_asc"}
    return json.dumps(collection, ensure_ascii=False, separators=(",", ":")) + "\n"


def _node(model: Model, position: int, path: tuple[str, ...]) -> dict[str, Any]:
    record = model.records[position]
    node: dict[str, Any] = {
        "id": str(position),
        "label": record.facts.op,
        "namespace": "/".join(group.replace("/", "\N{DIVISION SLASH}") for group in path),
        "attrs": [
            {"key": key, "value": value}
            for key, value in _attributes(record, model.text(record))
            if value
        ],
        "incomingEdges": [
            {
                "sourceNodeId": str(producer),
                "sourceNodeOutputId": "0",
                "targetNodeInputId": str(index),
            }
            for index, producer in enumerate(record.inputs)
        ],
        "outputsMetadata": [
            {"id": str(index), "attrs": [{"key": "tensor_shape", "value": text}]}
            for index, text in enumerate(record.facts.types)
        ],
    }
    if record.facts.collective:
        node["style"] = {"backgroundColor": _ORANGE}
    return node


def _attributes(record: Record, text: str) -> list[tuple[str, str]]:
    facts = record.facts
    return [
        ("name", record.id),
        ("text", text),
        ("distribution", facts.distribution),
        ("bytes", str(facts.bytes)),
        ("flops", str(facts.flops)),
        ("source", facts.place),
        ("pass", facts.origin),
    ]


def _overlays(model: Model) -> dict[str, Any]:
    overlays = []
    for position in model.collectives:
        record = model.records[position]
        edges = [
            {"sourceNodeId": str(producer), "targetNodeId": str(position)}
            for producer in record.inputs
        ]
        edges += [
            {"sourceNodeId": str(position), "targetNodeId": str(user)}
            for user in model.users[position]
        ]
        name = f"{record.facts.op} {record.id}, {record.moved:,} bytes per step"
        overlays.append({"name": name, "edgeColor": _ORANGE, "edges": edges})
    return {"type": "edge_overlays", "name": "Collectives", "overlays": overlays}
