"""Small graphs as a picture. networkx lays them out, in layers from inputs to outputs."""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from graphdist.viz.drawn_nodes import Drawing, drawing_of
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.size_limit import refuse_large

__all__ = ["render"]

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 46, 24, 54, 20
_LETTERS = 26
_STYLE = (
    "text{font:12px sans-serif;fill:#1f2328}.type{font-size:10px;fill:#59636e}"
    "rect{fill:#fff;stroke:#8c959f}.collective rect{fill:#ffd591;stroke:#ad6800}"
    "path{fill:none;stroke:#8c959f}"
)


def render(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return the last graph of a program, or chosen nodes of it, as an SVG document.

    Raises `ArgumentError` if that is large.
    """
    model = model_of(program.graph)
    drawing = drawing_of(model, chosen)
    refuse_large(program.graph, len(drawing.positions), "svg")
    places = _places(drawing)
    width = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
    height = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
    edges = [_edge(places[producer], places[position]) for producer, position in drawing.edges]
    boxes = [_box(model, record, places[position]) for position, record in drawing.records]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{_text(program.graph.name)}</title>",
            f'<style>{_STYLE}</style><rect width="100%" height="100%" stroke="none"/>',
            *edges,
            *boxes,
            "</svg>\n",
        ]
    )


def _places(drawing: Drawing) -> dict[int, tuple[int, int]]:
    """Return the upper left corner of each record, by its position."""
    if not drawing.positions:
        return {}
    import networkx as nx  # slow to import, and few draw

    drawn = nx.DiGraph()
    drawn.add_nodes_from(drawing.positions)
    drawn.add_edges_from(drawing.edges)
    layers = [sorted(layer) for layer in nx.topological_generations(drawn)]
    for number, layer in enumerate(layers):
        for position in layer:
            drawn.add_node(position, layer=number)
    laid_out = nx.multipartite_layout(drawn, subset_key="layer", align="horizontal")
    # The layout is scaled to a square; the widest layer tells how far neighbours are apart in it.
    widest = sorted(laid_out[position][0] for position in max(layers, key=len))
    apart = widest[1] - widest[0] if len(widest) > 1 else 1.0
    left = min(x for x, _ in laid_out.values())
    return {
        position: (
            round(_MARGIN + (laid_out[position][0] - left) / apart * (_WIDTH + _GAP_X)),
            _MARGIN + drawn.nodes[position]["layer"] * (_HEIGHT + _GAP_Y),
        )
        for position in drawing.positions
    }


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y, to_x, to_y = start[0] + _WIDTH // 2, start[1] + _HEIGHT, end[0] + _WIDTH // 2, end[1]
    middle = (y + to_y) // 2
    return f'<path d="M{x} {y}C{x} {middle} {to_x} {middle} {to_x} {to_y}"/>'


def _box(model: Model, record: Record, place: tuple[int, int]) -> str:
    x, y = place
    types = ", ".join(record.facts.types)
    kind = ' class="collective"' if record.facts.is_collective else ""
    return (
        f"<g{kind}><title>{_text(model.text(record))}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{x + 8}" y="{y + 19}">{_text(_cut(f"{record.facts.op} {record.id}"))}</text>'
        f'<text class="type" x="{x + 8}" y="{y + 36}">{_text(_cut(types))}</text>'
        "</g>"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _text(text: str) -> str:
    return escape("".join(letter for letter in text if letter.isprintable()), quote=False)
