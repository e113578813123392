"""Graphs for graphviz: groups as clusters, collectives filled, edges with types of values.

Graphviz does not end in minutes on a training step of 700 nodes: the edges from variables to the
optimizer are long, and it looks for a place for each, and for its label, in every rank. So a large
graph is drawn with groups closed, each as one box, types are tooltips, and the search is limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from graphdist.viz.drawn_nodes import Drawing, Path, closed_to, drawing_of
from graphdist.viz.identities import paths
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.size_limit import refuse_large

__all__ = ["render"]

_MOST_BOXES = 150
"""Graphviz lays out as many in about two seconds."""
_MOST_LABELS = 100
_LIMITS = "nslimit=1; nslimit1=1; mclimit=0.5;"
"""How long graphviz tries to shorten edges and to avoid crossings, in its own measures."""


def render(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return the last graph of a program, or chosen nodes of it, in graphviz's language.

    Raises `ArgumentError` for a graph that is large even with all its groups closed.
    """
    drawing = drawing_of(model_of(program.graph), chosen)
    boxes = _Boxes(drawing)
    refuse_large(program.graph, len(boxes.paths), "dot")
    lines = [
        f"digraph {_quoted(program.graph.name)} {{",
        f"  rankdir=TB; {_LIMITS}",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    open_path: Path = ()
    clusters = 0
    for box, path in sorted(boxes.paths.items(), key=lambda entry: entry[1]):
        shared = _shared(open_path, path)
        lines += ["  }"] * (len(open_path) - shared)
        for name in path[shared:]:
            lines.append(f"  subgraph cluster_{clusters} {{ label={_quoted(name)};")
            clusters += 1
        open_path = path
        lines.append(f"  {box} [{boxes.attributes(box)}];")
    lines += ["  }"] * len(open_path)
    lines += boxes.edges()
    return "\n".join([*lines, "}"]) + "\n"


class _Boxes:
    """The boxes of a drawing: `n7` is a node, `g3` a closed group, each with the path around it."""

    def __init__(self, drawing: Drawing) -> None:
        self.drawing = drawing
        every = paths(drawing.model)
        around = [every[position] for position in drawing.positions]
        closed = closed_to(around, _MOST_BOXES)
        numbers = {path: f"g{i}" for i, path in enumerate(dict.fromkeys(filter(None, closed)))}
        self.box_of = {
            position: f"n{position}" if group is None else numbers[group]
            for position, group in zip(drawing.positions, closed, strict=True)
        }
        self.paths: dict[str, Path] = {}
        for position, path, group in zip(drawing.positions, around, closed, strict=True):
            self.paths[self.box_of[position]] = path if group is None else group[:-1]
        self._names = {box: path[-1] for path, box in numbers.items()}
        self._sizes = Counter(self.box_of.values())
        self._with_collectives = {
            self.box_of[position]
            for position, record in drawing.records
            if record.facts.is_collective
        }

    def attributes(self, box: str) -> str:
        """Return the attributes of a box in graphviz's language."""
        model = self.drawing.model
        if box in self._names:
            label = f"{self._names[box]}\n{self._sizes[box]:,} nodes"
            attributes = [f"label={_quoted(label)}", "peripheries=2"]
        else:
            attributes = _of_record(model, model.records[int(box[1:])])
        if box in self._with_collectives:
            attributes.append('fillcolor="#ffd591"')
        return ", ".join(attributes)

    def edges(self) -> list[str]:
        """Return a line for each edge between two boxes; the label is the first value's type."""
        labels: dict[tuple[str, str], str] = {}
        counts: Counter[tuple[str, str]] = Counter()
        for producer, position in self.drawing.edges:
            ends = self.box_of[producer], self.box_of[position]
            counts[ends] += ends[0] != ends[1]
            types = self.drawing.model.records[producer].facts.types
            labels.setdefault(ends, ", ".join(types))
        kind = "label" if len(counts) <= _MOST_LABELS else "edgetooltip"
        texts = {
            ends: labels[ends] if count == 1 else f"{count:,} values"
            for ends, count in counts.items()
            if count
        }
        return [
            f"  {start} -> {end} [{kind}={_quoted(text)}];" for (start, end), text in texts.items()
        ]


def _shared(path: Path, other: Path) -> int:
    count = 0
    while count < min(len(path), len(other)) and path[count] == other[count]:
        count += 1
    return count


def _of_record(model: Model, record: Record) -> list[str]:
    tooltip = f"{model.text(record)}\n{record.facts.place}".rstrip()
    label = f"{record.facts.op}\n{record.id}"
    return [f"label={_quoted(label)}", f"tooltip={_quoted(tooltip)}"]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(letter for letter in escaped if letter.isprintable()) + '"'
