"""The size of graph up to which a format that shows every node at once is readable."""

from __future__ import annotations

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph
from graphdist.tracing.user_lines import here

__all__ = ["SMALL", "refuse_large"]

SMALL = 500
"""The most boxes of one drawing."""


def refuse_large(graph: Graph, boxes: int, form: str) -> None:
    """Raise `ArgumentError` for a drawing with more boxes than can be read at once."""
    if boxes > SMALL:
        raise ArgumentError(
            f"{form} draws at most {SMALL} nodes, {graph.name!r} has {boxes}",
            source=here(),
            hint="use html or model-explorer, or choose nodes: --focus NODE, --filter REGEX",
        )
