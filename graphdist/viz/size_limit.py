"""The size of graph up to which a format that shows every node at once is readable."""

from __future__ import annotations

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here
from graphdist.viz.model import Model

__all__ = ["SMALL", "refuse_large"]

SMALL = 500
"""The most nodes of a graph that is drawn in full."""


def refuse_large(model: Model, form: str) -> None:
    """Raise `ArgumentError` for a graph with more nodes than can be read in one drawing."""
    if len(model.records) > SMALL:
        raise ArgumentError(
            f"{form} draws at most {SMALL} nodes, {model.graph.name!r} has {len(model.records)}",
            source=here(),
            hint="use html, dot or model-explorer, or choose some: --focus NODE, --filter REGEX",
        )
