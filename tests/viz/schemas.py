"""What Model Explorer and the viewers of trace events document of the JSON they read, as schemas.

Model Explorer: the interfaces of its input graph and of its tasks' data. Trace events: the "Trace
Event Format", of which only metadata, complete and counter events are allowed here. Both readers
skip keys that they do not know; the schemas refuse them, so that a key with a wrong name is found.
"""

from __future__ import annotations

from typing import Any  # Any: JSON schemas

TEXT = {"type": "string"}
COLOUR = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}


def record(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the schema of an object with these keys and no others."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


KEY_VALUE = record({"key": TEXT, "value": TEXT})
METADATA = record({"id": TEXT}, attrs=array(KEY_VALUE))
NODE = record(
    # An empty part of a namespace would be a layer without a name.
    {
        "id": TEXT,
        "label": TEXT,
        "namespace": {"type": "string", "pattern": "^([^/]+(/[^/]+)*)?$"},
    },
    subgraphIds=array(TEXT),
    attrs=array(KEY_VALUE),
    incomingEdges=array(
        record({"sourceNodeId": TEXT}, sourceNodeOutputId=TEXT, targetNodeInputId=TEXT)
    ),
    inputsMetadata=array(METADATA),
    outputsMetadata=array(METADATA),
    style=record({}, backgroundColor=COLOUR, borderColor=COLOUR, hoveredBorderColor=COLOUR),
    config=record({}, pinToGroupTop={"type": "boolean"}),
)
OVERLAY = record(
    {
        "name": TEXT,
        "edgeColor": COLOUR,
        "edges": array(record({"sourceNodeId": TEXT, "targetNodeId": TEXT}, label=TEXT)),
    },
    edgeWidth={"type": "number"},
)
OVERLAYS = record({"type": {"const": "edge_overlays"}, "name": TEXT, "overlays": array(OVERLAY)})
MODEL_EXPLORER = record(
    {
        "label": TEXT,
        "graphs": array(
            record(
                {"id": TEXT, "nodes": array(NODE)},
                groupNodeAttributes={"type": "object"},
                tasksData=record(
                    {},
                    edgeOverlaysDataListLeftPane=array(OVERLAYS),
                    edgeOverlaysDataListRightPane=array(OVERLAYS),
                ),
            )
        ),
    },
    graphSorting={"enum": ["node_count_asc", "node_count_desc", "name_asc", "name_desc"]},
)

NUMBER = {"type": "integer", "minimum": 0}
MICROSECONDS = {"type": "number", "minimum": 0}
TRACE_EVENTS = record(
    {
        "traceEvents": array(
            {
                "oneOf": [
                    record(
                        {
                            "name": {"enum": ["process_name", "thread_name"]},
                            "ph": {"const": "M"},
                            "pid": NUMBER,
                            "args": record({"name": TEXT}),
                        },
                        tid=NUMBER,
                    ),
                    record(
                        {
                            "name": TEXT,
                            "ph": {"const": "X"},
                            "ts": MICROSECONDS,
                            "dur": MICROSECONDS,
                            "pid": NUMBER,
                            "tid": NUMBER,
                        },
                        cat=TEXT,
                        args={"type": "object"},
                    ),
                    record(
                        {
                            "name": TEXT,
                            "ph": {"const": "C"},
                            "ts": MICROSECONDS,
                            "pid": NUMBER,
                            # Each is a series of the counter: a number, or it is not drawn.
                            "args": {
                                "type": "object",
                                "additionalProperties": {"type": "number"},
                                "minProperties": 1,
                            },
                        }
                    ),
                ]
            }
        )
    },
    displayTimeUnit={"enum": ["ms", "ns"]},
)
