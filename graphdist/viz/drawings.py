"""Drawings of one graph, or of chosen nodes: for graphviz, for Mermaid, and as SVG.

An edge leads from a node to its user.

* Graphviz draws groups as clusters. On a training step of 700 nodes it runs for many minutes. The
  edges from variables to the optimizer are long, and graphviz searches a position in every rank
  for each edge and its label. So groups of a large graph are closed, which draws each group as one
  box. Types are tooltips, and the search is limited.
* Code hosts and notebooks draw Mermaid from a fenced block. They draw at most 500 edges and 50,000
  characters, and a page cannot raise these limits. So long names are shortened, and a larger graph
  raises an error.
* SVG is laid out in layers from inputs to outputs. networkx computes the layers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heappop, heappush
from html import escape
from itertools import count

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph
from graphdist.viz.groups import common_prefix
from graphdist.viz.identities import paths
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram

Path = tuple[str, ...]


@dataclass(frozen=True)
class Drawing:
    """The chosen records of a model, by position and in order, and the edges between them."""

    model: Model
    records: dict[int, Record]
    edges: list[tuple[int, int]]

    @property
    def collectives(self) -> list[int]:
        """Return the positions of the collectives."""
        return [position for position, record in self.records.items() if record.facts.collective]


def drawing_of(program: ShownProgram, chosen: Collection[int] | None = None) -> Drawing:
    """Return the drawing of a program's last graph, or of the nodes at the positions `chosen`."""
    model = model_of(program.graph)
    positions = range(len(model.records)) if chosen is None else sorted(chosen)
    records = {position: model.records[position] for position in positions}
    edges = [
        (producer, position)
        for position, record in records.items()
        for producer in record.inputs
        if producer in records
    ]
    return Drawing(model, records, edges)


def closed_to(paths: Sequence[Path], most: int) -> list[Path | None]:
    """Return, for the path of each node, the closed group that is drawn in place of the node.

    None means that the node has a box of its own. All groups are closed at first. Outer groups are
    opened before inner groups, and small groups before large groups, while there are at most `most`
    boxes.

    >>> closed_to([("a",), ("a", "b"), ("a", "b")], 2)
    [None, ('a', 'b'), ('a', 'b')]
    >>> closed_to([("a",), ("a", "b"), ("a", "b")], 1)
    [('a',), ('a',), ('a',)]
    """
    inside: defaultdict[Path, set[Path]] = defaultdict(set)  # the groups directly in a group
    alone = Counter(paths)  # the nodes directly in a group
    for path in alone:
        for depth in range(len(path)):
            inside[path[:depth]].add(path[: depth + 1])
    opened: set[Path] = set()
    boxes = 1  # the group of all nodes, which is always opened
    waiting: list[tuple[int, int, Path]] = [(0, alone[()] + len(inside[()]), ())]
    while waiting:
        depth, size, path = heappop(waiting)
        if path and boxes - 1 + size > most:
            continue
        boxes += size - 1
        opened.add(path)
        for group in inside[path]:
            heappush(waiting, (depth + 1, alone[group] + len(inside[group]), group))

    @cache
    def closed(path: Path) -> Path | None:
        beginnings = (path[:depth] for depth in range(1, len(path) + 1))
        return next((group for group in beginnings if group not in opened), None)

    return [closed(path) for path in paths]


SMALL = 500
"""The largest number of boxes in a drawing that people can still read."""


def refuse_large(graph: Graph, boxes: int, form: str) -> None:
    """Raise `ArgumentError` for a drawing with more than `SMALL` boxes."""
    if boxes > SMALL:
        raise ArgumentError(
            f"{form} draws at most {SMALL} nodes, {graph.name!r} has {boxes}",
            hint="use html or model-explorer, or choose nodes: --focus NODE, --filter REGEX",
        )


_MOST_BOXES = 150
"""How many boxes graphviz lays out in about two seconds."""
_MOST_LABELS = 100
_LIMITS = "nslimit=1; nslimit1=1; mclimit=0.5;"
"""How long graphviz tries to shorten edges and to avoid crossings, in units of graphviz."""


def dot_text(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return a program's last graph, or its nodes at the positions `chosen`, for graphviz.

    Raise `ArgumentError` for a graph that is too large even if all groups are closed.
    """
    boxes = _Boxes(drawing_of(program, chosen))
    refuse_large(program.graph, len(boxes.paths), "dot")
    lines = [
        f"digraph {_dot_quoted(program.graph.name)} {{",
        f"  rankdir=TB; {_LIMITS}",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=9];',
    ]
    open_path: Path = ()
    clusters = count()
    for box, path in sorted(boxes.paths.items(), key=lambda entry: entry[1]):
        shared = len(common_prefix(open_path, path))
        lines += ["  }"] * (len(open_path) - shared)
        for name in path[shared:]:
            lines.append(f"  subgraph cluster_{next(clusters)} {{ label={_dot_quoted(name)};")
        open_path = path
        lines.append(f"  {box} [{', '.join(boxes.attributes(box))}];")
    lines += ["  }"] * len(open_path)
    return "\n".join([*lines, *boxes.edges(), "}"]) + "\n"


class _Boxes:
    """The boxes of a drawing for graphviz: `n7` is a node, `g3` is a closed group.

    `paths` maps a box to the group around it.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        every = paths(drawing.model)
        around = {position: every[position] for position in drawing.records}
        closed = dict(zip(around, closed_to([*around.values()], _MOST_BOXES), strict=True))
        groups = dict.fromkeys(filter(None, closed.values()))
        numbers = {path: f"g{number}" for number, path in enumerate(groups)}
        self._names = {box: path[-1] for path, box in numbers.items()}
        self._box_of = {
            position: numbers[group] if group else f"n{position}"
            for position, group in closed.items()
        }
        self.paths = {
            self._box_of[position]: group[:-1] if group else around[position]
            for position, group in closed.items()
        }
        self._sizes = Counter(self._box_of.values())
        self._with_collectives = {self._box_of[position] for position in drawing.collectives}

    def attributes(self, box: str) -> Iterator[str]:
        """Yield the attributes of a box in graphviz's language."""
        if box in self._names:
            label = f"{self._names[box]}\n{self._sizes[box]:,} nodes"
            other = "peripheries=2"
        else:
            record = self._drawing.records[int(box[1:])]
            label = f"{record.facts.op}\n{record.id}"
            tooltip = f"{self._drawing.model.text(record)}\n{record.facts.place}".rstrip()
            other = f"tooltip={_dot_quoted(tooltip)}"
        yield from (f"label={_dot_quoted(label)}", other)
        if box in self._with_collectives:
            yield 'fillcolor="#ffd591"'

    def edges(self) -> list[str]:
        """Return a line for each pair of connected boxes.

        The line has the type of the value between the boxes, or the number of several values.
        """
        types: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for producer, position in self._drawing.edges:
            ends = self._box_of[producer], self._box_of[position]
            if ends[0] != ends[1]:
                types[ends].append(", ".join(self._drawing.records[producer].facts.types))
        kind = "label" if len(types) <= _MOST_LABELS else "edgetooltip"
        texts = {
            ends: values[0] if len(values) == 1 else f"{len(values):,} values"
            for ends, values in types.items()
        }
        return [
            f"  {start} -> {end} [{kind}={_dot_quoted(text)}];"
            for (start, end), text in texts.items()
        ]


def _dot_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(letter for letter in escaped if letter.isprintable()) + '"'


_MOST_EDGES = 500
_MOST_CHARACTERS = 50_000
_LETTERS_IN_MERMAID = 40


def mermaid_text(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return a program's last graph, or its nodes at the positions `chosen`, as Mermaid flowchart.

    Raises `ArgumentError` for more nodes, edges or characters than Mermaid draws.
    """
    drawing = drawing_of(program, chosen)
    refuse_large(program.graph, len(drawing.records), "mermaid")
    lines = ["flowchart TD"]
    for position, record in drawing.records.items():
        texts = record.facts.op, record.id, *record.facts.types
        label = "<br/>".join(map(_mermaid_escaped, texts))
        left, right = ("{{", "}}") if record.facts.collective else ("[", "]")
        lines.append(f'  n{position}{left}"{label}"{right}')
    lines += [f"  n{producer} --> n{position}" for producer, position in drawing.edges]
    if drawing.collectives:
        names = ",".join(f"n{position}" for position in drawing.collectives)
        lines.append("  classDef collective fill:#ffd591,stroke:#ad6800,color:#000")
        lines.append(f"  class {names} collective")
    text = "\n".join(lines) + "\n"
    edges = (len(drawing.edges), _MOST_EDGES, "edges")
    for amount, most, what in (edges, (len(text), _MOST_CHARACTERS, "characters")):
        if amount > most:
            raise ArgumentError(
                f"mermaid draws at most {most:,} {what}, {program.graph.name!r} takes {amount:,}",
                hint="use html, dot or svg, or choose nodes: --focus NODE, --filter REGEX",
            )
    return text


def _mermaid_escaped(text: str) -> str:
    """Return text with numeric entities for all characters that Mermaid or HTML interpret."""
    text = _shortened(text, _LETTERS_IN_MERMAID)
    return re.sub(r"[^a-zA-Z0-9._,\-+*/%@()=: \[\]]", lambda match: f"#{ord(match[0])};", text)


_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 46, 24, 54, 20
_LETTERS_IN_SVG = 26
_STYLE = (
    "text{font:12px sans-serif;fill:#1f2328}.type{font-size:10px;fill:#59636e}"
    "rect{fill:#fff;stroke:#8c959f}.collective rect{fill:#ffd591;stroke:#ad6800}"
    "path{fill:none;stroke:#8c959f}"
)


def svg_text(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return a program's last graph, or its nodes at the positions `chosen`, as an SVG document.

    Raises `ArgumentError` for more than `SMALL` nodes.
    """
    drawing = drawing_of(program, chosen)
    refuse_large(program.graph, len(drawing.records), "svg")
    corners = _corners(drawing)
    width = max((x for x, _ in corners.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in corners.values()), default=0) + _HEIGHT + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">',
        f"<title>{_svg_escaped(program.graph.name)}</title>",
        f'<style>{_STYLE}</style><rect width="100%" height="100%" stroke="none"/>',
    ]
    lines += [_edge(corners[producer], corners[position]) for producer, position in drawing.edges]
    for position, record in drawing.records.items():
        lines.append(_box(record, drawing.model.text(record), *corners[position]))
    return "\n".join([*lines, "</svg>\n"])


def _corners(drawing: Drawing) -> dict[int, tuple[int, int]]:
    """Return the upper left corner of each record's box, by the record's position."""
    import networkx as nx  # imported here, because it is slow to import and rarely needed

    drawn = nx.DiGraph()
    drawn.add_nodes_from(drawing.records)
    drawn.add_edges_from(drawing.edges)
    layers = [sorted(layer) for layer in nx.topological_generations(drawn)]
    widest = max(map(len, layers), default=0)
    return {
        position: (
            _MARGIN + (widest - len(layer) + 2 * column) * (_WIDTH + _GAP_X) // 2,
            _MARGIN + row * (_HEIGHT + _GAP_Y),
        )
        for row, layer in enumerate(layers)
        for column, position in enumerate(layer)
    }


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y, to_x, to_y = start[0] + _WIDTH // 2, start[1] + _HEIGHT, end[0] + _WIDTH // 2, end[1]
    middle = (y + to_y) // 2
    return f'<path d="M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}"/>'


def _box(record: Record, title: str, x: int, y: int) -> str:
    texts = f"{record.facts.op} {record.id}", ", ".join(record.facts.types)
    name, types = (_svg_escaped(_shortened(text, _LETTERS_IN_SVG)) for text in texts)
    kind = ' class="collective"' if record.facts.collective else ""
    return (
        f"<g{kind}><title>{_svg_escaped(title)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x + 8}" y="{y + 19}">{name}</text>'
        f'<text class="type" x="{x + 8}" y="{y + 36}">{types}</text>'
        "</g>"
    )


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def _svg_escaped(text: str) -> str:
    return escape("".join(letter for letter in text if letter.isprintable()), quote=False)
