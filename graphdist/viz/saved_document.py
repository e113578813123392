"""A program that was written as JSON, read again: its last graph, and the report on it.

The JSON has the text of the last graph. The text has no user's lines and no scopes: the records of
the document have them, in the same order. Placeholders stand for parameters without a text, so that
a graph that such a program is compared with must be taken through its text too: `as_saved`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph, Node
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.source import Frame, Source
from graphdist.tracing.user_lines import here
from graphdist.viz.document import FORMAT, VERSION
from graphdist.viz.program import ShownProgram, ShownStep

__all__ = ["SavedProgram", "as_saved", "compared", "read_document"]

Origin = tuple[Source, str]
"""The user's lines and scope of a node, and the pass that made it."""


@dataclass(frozen=True)
class SavedProgram:
    """The last graph of a document, and the report on it, if it has one."""

    graph: Graph
    report: dict[str, Any] | None


def read_document(text: str, name: str) -> SavedProgram:
    """Return the program of a document; raises `ArgumentError` for any other text."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _refused(name, f"it is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refused(name, f"it is not a {FORMAT}")
    if document.get("version") != VERSION or not isinstance(document.get("text"), str):
        raise _refused(name, f"its version is {document.get('version')}, not {VERSION}")
    graph = parse(document["text"], opaques=PLACEHOLDERS)
    try:
        origins = list(_origins(document))
        report = document.get("report")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _refused(name, "its nodes are not those of its text") from error
    return SavedProgram(_with_origins(graph, iter(origins)), report)


def as_saved(graph: Graph) -> Graph:
    """Return a graph as it is after it was written and read."""
    parsed = parse(str(graph), opaques=PLACEHOLDERS)
    return _with_origins(parsed, ((node.source, node.origin) for node in _in_order(graph)))


def compared(program: ShownProgram, earlier: SavedProgram, name: str) -> ShownProgram:
    """Return a program of two steps: an earlier program, and the last step of this one."""
    after = ShownStep("now", as_saved(program.graph))
    return replace(
        program,
        steps=(ShownStep(name, earlier.graph), after),
        others=(),
        compares=True,
        earlier_report=earlier.report,
    )


def _refused(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"{name} is no program of graphdist-viz: {why}",
        source=here(),
        hint="write one with graphdist-viz TARGET -o old.json",
    )


def _in_order(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for nested in node.graphs:
            yield from _in_order(nested)


def _origins(document: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield the origins of the nodes of a document's last graph; inputs are no nodes."""
    facts, sources = document["facts"], document["sources"]
    for record in document["graphs"][document["passes"][-1]["graph"]]["nodes"]:
        if "text" in record:  # of an input, and of `return`
            continue
        found = facts[record["facts"]]
        at = sources[found["source"]] if "source" in found else []
        frames = tuple(Frame(str(file), int(line), str(function)) for file, line, function in at)
        yield _source(frames, str(found.get("scope", ""))), str(found.get("origin", ""))


def _source(frames: tuple[Frame, ...], scope: str) -> Source:
    return Source(resolve=lambda: (frames, scope))


def _with_origins(graph: Graph, origins: Iterator[Origin]) -> Graph:
    nodes = []
    for node in graph.nodes:
        source, made_by = next(origins, (node.source, node.origin))
        nested = tuple(_with_origins(body, origins) for body in node.graphs)
        nodes.append(replace(node, source=source, origin=made_by, graphs=nested))
    return graph.replace(nodes=tuple(nodes))
