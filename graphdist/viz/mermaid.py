"""Small graphs for Mermaid, which code hosts and notebooks draw from a fenced block.

They draw at most 500 edges and 50,000 characters, and a page cannot raise these limits. So long
names are cut, and a larger graph is refused.
"""

from __future__ import annotations

from collections.abc import Collection

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here
from graphdist.viz.drawn_nodes import drawing_of
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.size_limit import refuse_large

__all__ = ["render"]

_MOST_EDGES = 500
_MOST_CHARACTERS = 50_000
_LETTERS = 40
_PLAIN = set("._,-+*/%@()=: []")


def render(program: ShownProgram, chosen: Collection[int] | None = None) -> str:
    """Return the last graph of a program, or chosen nodes of it, as a flowchart.

    Raises `ArgumentError` if that is large.
    """
    drawing = drawing_of(model_of(program.graph), chosen)
    refuse_large(program.graph, len(drawing.positions), "mermaid")
    lines = ["flowchart TD"]
    for position, record in drawing.records:
        label = "<br/>".join(map(_escaped, (record.facts.op, record.id, *record.facts.types)))
        left, right = ("{{", "}}") if record.facts.is_collective else ("[", "]")
        lines.append(f'  n{position}{left}"{label}"{right}')
    lines += [f"  n{producer} --> n{position}" for producer, position in drawing.edges]
    collectives = [f"n{at}" for at, record in drawing.records if record.facts.is_collective]
    if collectives:
        lines.append("  classDef collective fill:#ffd591,stroke:#ad6800,color:#000")
        lines.append(f"  class {','.join(collectives)} collective")
    text = "\n".join(lines) + "\n"
    for number, most, what in (
        (len(drawing.edges), _MOST_EDGES, "edges"),
        (len(text), _MOST_CHARACTERS, "characters"),
    ):
        if number > most:
            raise ArgumentError(
                f"mermaid draws at most {most:,} {what}, {program.graph.name!r} takes {number:,}",
                source=here(),
                hint="use html, dot or svg, or choose nodes: --focus NODE, --filter REGEX",
            )
    return text


def _escaped(text: str) -> str:
    """Return text with numeric entities for all characters that Mermaid or HTML interpret."""
    if len(text) > _LETTERS:
        text = f"{text[: _LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
    return "".join(
        letter
        if (letter.isalnum() and letter.isascii()) or letter in _PLAIN
        else f"#{ord(letter)};"
        for letter in text
    )
