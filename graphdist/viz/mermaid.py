"""Small graphs for Mermaid, which code hosts and notebooks draw from a fenced block.

They draw at most 500 edges and 50,000 characters, and a page cannot raise these limits. So long
names are cut, and a larger graph is refused.
"""

from __future__ import annotations

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.size_limit import refuse_large

__all__ = ["render"]

_MOST_EDGES = 500
_MOST_CHARACTERS = 50_000
_LETTERS = 40
_PLAIN = set("._,-+*/%@()=: []")


def render(program: ShownProgram) -> str:
    """Return the last graph of a program as a flowchart; `ArgumentError` if it is large."""
    model = model_of(program.graph)
    refuse_large(model, "mermaid")
    lines = ["flowchart TD"]
    for position, record in enumerate(model.records):
        label = "<br/>".join(map(_escaped, (record.facts.op, record.id, *record.facts.types)))
        left, right = ("{{", "}}") if record.facts.is_collective else ("[", "]")
        lines.append(f'  n{position}{left}"{label}"{right}')
    for position, record in enumerate(model.records):
        lines += [f"  n{producer} --> n{position}" for producer in record.inputs]
    if model.collectives:
        lines.append("  classDef collective fill:#ffd591,stroke:#ad6800,color:#000")
        lines.append(
            f"  class {','.join(f'n{position}' for position in model.collectives)} collective"
        )
    text = "\n".join(lines) + "\n"
    edges = sum(len(record.inputs) for record in model.records)
    for number, most, what in (
        (edges, _MOST_EDGES, "edges"),
        (len(text), _MOST_CHARACTERS, "characters"),
    ):
        if number > most:
            raise ArgumentError(
                f"mermaid draws at most {most:,} {what}, {program.graph.name!r} takes {number:,}",
                source=here(),
                hint="use html, dot or svg",
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
