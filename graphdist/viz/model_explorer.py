"""Programs as Model Explorer's JSON: one graph per pass, collectives as overlays.

Namespaces are the groups, separated by `/`; a `/` within a name becomes a division slash.
"""

from __future__ import annotations

import json
from typing import Any  # Any: JSON

from graphdist.viz.identities import paths
from graphdist.viz.model import Model, models_of
from graphdist.viz.program import ShownProgram

_ORANGE = "#fa8c16"


def render(program: ShownProgram) -> str:
    """Return the graphs of all steps of a program as a collection in JSON."""
    models = models_of([step.graph for step in program.all_steps])
    graphs = [
        {"id": f"{index:02} {step.name}", **_graph(models[step.graph])}
        for index, step in enumerate(program.all_steps)
    ]
    collection = {"label": program.graph.name, "graphs": graphs, "graphSorting": "name_asc"}
    return json.dumps(collection, ensure_ascii=False, separators=(",", ":")) + "\n"


def _graph(model: Model) -> dict[str, Any]:
    nodes = [_node(model, position, path) for position, path in enumerate(paths(model))]
    if not model.collectives:
        return {"nodes": nodes}
    return {"nodes": nodes, "tasksData": {"edgeOverlaysDataListLeftPane": [_overlays(model)]}}


def _node(model: Model, position: int, path: tuple[str, ...]) -> dict[str, Any]:
    record = model.records[position]
    facts = record.facts
    described = {name: str(value) for name, value in model.described(record).items()}
    attributes = {"name": record.id, "distribution": facts.distribution, **described}
    return {
        "id": str(position),
        "label": facts.op,
        "namespace": "/".join(group.replace("/", "\N{DIVISION SLASH}") for group in path),
        "attrs": [{"key": key, "value": value} for key, value in attributes.items() if value],
        "incomingEdges": [
            {"sourceNodeId": str(at), "sourceNodeOutputId": "0", "targetNodeInputId": str(index)}
            for index, at in enumerate(record.inputs)
        ],
        "outputsMetadata": [
            {"id": str(index), "attrs": [{"key": "tensor_shape", "value": text}]}
            for index, text in enumerate(facts.types)
        ],
        **({"style": {"backgroundColor": _ORANGE}} if facts.collective else {}),
    }


def _overlays(model: Model) -> dict[str, Any]:
    overlays = []
    for position in model.collectives:
        record = model.records[position]
        ends = [(producer, position) for producer in record.inputs]
        ends += [(position, user) for user in model.users[position]]
        edges = [{"sourceNodeId": str(start), "targetNodeId": str(end)} for start, end in ends]
        name = f"{record.facts.op} {record.id}, {record.moved:,} bytes per step"
        overlays.append({"name": name, "edgeColor": _ORANGE, "edges": edges})
    return {"type": "edge_overlays", "name": "Collectives", "overlays": overlays}
