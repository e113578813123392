"""Graphs for graphviz: groups as clusters, collectives filled, edges with their types."""

from __future__ import annotations

from graphdist.viz.groups import GroupPath, paths
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram

__all__ = ["render"]


def render(program: ShownProgram) -> str:
    """Return the last graph of a program in graphviz's language."""
    model = model_of(program.graph)
    lines = [
        f"digraph {_quoted(program.graph.name)} {{",
        "  rankdir=TB; compound=true;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    open_path: GroupPath = ()
    clusters = 0
    order = sorted(enumerate(paths(model)), key=lambda entry: entry[1])
    for position, path in order:
        shared = _shared(open_path, path)
        lines += ["  }"] * (len(open_path) - shared)
        for name in path[shared:]:
            lines.append(f"  subgraph cluster_{clusters} {{ label={_quoted(name)};")
            clusters += 1
        open_path = path
        lines.append(f"  n{position} [{_attributes(model, model.records[position])}];")
    lines += ["  }"] * len(open_path)
    for position, record in enumerate(model.records):
        for producer in record.inputs:
            label = _quoted(", ".join(model.records[producer].facts.types))
            lines.append(f"  n{producer} -> n{position} [label={label}];")
    return "\n".join([*lines, "}"]) + "\n"


def _shared(path: GroupPath, other: GroupPath) -> int:
    count = 0
    while count < min(len(path), len(other)) and path[count] == other[count]:
        count += 1
    return count


def _attributes(model: Model, record: Record) -> str:
    tooltip = f"{model.text(record)}\n{record.facts.place}".rstrip()
    label = f"{record.facts.op}\n{record.id}"
    attributes = [f"label={_quoted(label)}", f"tooltip={_quoted(tooltip)}"]
    if record.facts.is_collective:
        attributes.append('fillcolor="#ffd591"')
    return ", ".join(attributes)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(letter for letter in escaped if letter.isprintable()) + '"'
