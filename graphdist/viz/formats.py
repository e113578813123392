"""The table of formats, and the function that renders a program in any of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph
from graphdist.program.stages import FunctionStage
from graphdist.quoted import did_you_mean
from graphdist.viz import document, drawings, model_explorer, page, perfetto, text
from graphdist.viz.program import ShownProgram, program_of

Shown: TypeAlias = Graph | FunctionStage | ShownProgram

DRAWINGS: dict[str, Callable[[ShownProgram, Collection[int] | None], str]] = {
    "dot": drawings.dot_text,
    "svg": drawings.svg_text,
    "mermaid": drawings.mermaid_text,
}
"""The formats that draw one graph. The second argument of a renderer has the positions of the
chosen nodes, or is None for all nodes."""

FORMATS: dict[str, Callable[[ShownProgram], str]] = {
    "text": text.render,
    "html": page.render,
    "dot": drawings.dot_text,
    "svg": drawings.svg_text,
    "mermaid": drawings.mermaid_text,
    "json": document.render,
    "model-explorer": model_explorer.render,
    "perfetto": perfetto.render,
}
"""The renderer of each format. A format that shows a single graph shows the last step's graph."""

MODULES = ("stablehlo", "hlo")
"""The formats that show the compiled module instead of the graph."""


def render(shown: Shown, format: str = "text") -> str:
    """Return a graph, or the graphs of a stage before and after its passes, as text.

    `format` is one of `FORMATS`. Only "html", "json" and "model-explorer" show all graphs; the
    other formats show the graph after the last pass. A stage may also be rendered in a format of
    `MODULES`. Raises `ArgumentError` for an unknown format, for a format of `MODULES` if `shown` is
    no stage, and for a graph that is too large for "dot", "svg" or "mermaid".

    >>> from graphdist.ir.parser import parse
    >>> graph = parse('''graph f on 1 replica, stage spmd
    ... (%x: f32[3] mirrored) {
    ...   %y = jax.neg(%x) : f32[3] mirrored
    ...   return %y
    ... }''')
    >>> print(render(graph, "mermaid"), end="")
    flowchart TD
      n0["input<br/>%x<br/>f32[3] mirrored"]
      n1["jax.neg<br/>%y<br/>f32[3] mirrored"]
      n2["return<br/>return"]
      n0 --> n1
      n1 --> n2
    """
    format = format_named(format)
    if format in MODULES:
        if isinstance(shown, FunctionStage):
            return shown.as_text(format)
        raise ArgumentError(
            f"{format} needs a stage, a graph alone has none",
            hint="render function.trace(...).lower() or .lower().compile()",
        )
    program = program_of(shown)
    return FORMATS[format](program.only("last") if format == "text" else program)


def format_named(name: str) -> str:
    """Return `name`. Raises `ArgumentError` if no format has this name."""
    known = (*FORMATS, *MODULES)
    if name not in known:
        raise ArgumentError(
            f"there is no format {name!r}",
            hint=did_you_mean(name, known, f"known: {', '.join(known)}"),
        )
    return name
