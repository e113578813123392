"""Graphs as text for a terminal: all nodes, or those selected by a pattern or a neighbourhood.

Colours are ANSI escapes, used only on request. Control characters of the user's program never reach
the terminal: the printer escapes names and strings, this module escapes source lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import groupby

from graphdist.errors import ArgumentError
from graphdist.ir.graph import Graph, Node
from graphdist.ir.layouts_over_cores import text_of_cores
from graphdist.ir.printer import print_graph
from graphdist.quoted import did_you_mean
from graphdist.report.amounts import plural, table
from graphdist.report.server_requests import request_lines
from graphdist.viz.graph_diff import Diff
from graphdist.viz.model import Model, Record, model_of
from graphdist.viz.program import ShownProgram

_BOLD, _DIM, _RED, _GREEN, _YELLOW, _BLUE, _CYAN = (
    f"\033[{code}m" for code in (1, 2, 31, 32, 33, 34, 36)
)
_OFF = "\033[0m"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLLECTIVE = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|reduce|gather)(?=\()")
_TOKENS = re.compile(r"(?P<name>%[\w?]+|@[\w./-]+)|(?P<type>\b[a-z]+\d*\[[\d,]*\])")
_SIGNS = {"+": _GREEN, "-": _RED, "~": _YELLOW, "!": _YELLOW, " ": _DIM}


def render(program: ShownProgram, *, sources: bool = True, colour: bool = False) -> str:
    """Return the text of every step of a program, each under the name of its pass.

    With `sources`, the user's line is written once above the nodes that came from the line.
    """
    titles = [f"# after {step.name}" for step in program.steps]
    titles += [f"# beside it: {step.name}" for step in program.others]
    parts: list[str] = []
    previous: Graph | None = None
    for title, step in zip(titles, program.all_steps, strict=True):
        if step.graph is previous:
            parts.append(_paint(f"{title}: unchanged", _DIM, colour))
        else:
            head = [_paint(title, _BOLD, colour)] if len(titles) > 1 else []
            lines = _text_of(step.graph, sources).split("\n")
            parts.append("\n".join([*head, *(_line(line, colour) for line in lines)]))
        previous = step.graph
    return "\n\n".join(parts) + "\n"


def _text_of(graph: Graph, sources: bool) -> str:
    """Return the text of a graph; with sources, also how the cores of a replica hold results."""

    def cores(node: Node) -> str:
        held = text_of_cores(graph, node.results)
        return f"cores: {held}" if held else ""

    return print_graph(graph, sources, cores if sources else None)


def difference_text(change: Diff, before: str, after: str, *, colour: bool = False) -> str:
    """Return the changes between two steps: counts, then a line for each node."""
    head = f"# {before} to {after}: "
    lines = str(change).split("\n")
    painted = [_paint(_safe(line), _SIGNS.get(line[:1], ""), colour) for line in lines[1:]]
    return "\n".join([_paint(head + lines[0], _BOLD, colour), *painted]) + "\n"


def collectives_table(program: ShownProgram, *, colour: bool = False) -> str:
    """Return a table of the collectives of the last step, in order, with the user's lines.

    Bytes are per step: a collective in a loop runs once in each iteration. What all go over is in
    the last line.
    """
    model = model_of(program.graph)
    found = [
        (record, collective) for record in model.records if (collective := record.facts.collective)
    ]
    if not found:
        requests = list(map(_safe, request_lines(program.servers)))
        return "\n".join(requests or ["no collectives"]) + "\n"
    rows = [("kind", "bytes", "times", "made by", "node", "source", "over")]
    for record, collective in found:
        facts = record.facts
        kind = f"{facts.op.removesuffix('_over_cores')} {collective.reducer}".rstrip()
        figures = f"{record.moved:,}", f"{record.times:,.6g}"
        source = facts.place.rpartition("/")[2] or "unknown source"
        made_by = facts.origin or "the program"
        rows.append((kind, *figures, made_by, record.id, source, collective.over))
    over = {collective.over for _, collective in found}
    several = len(over) > 1
    lines = table([row if several else row[:-1] for row in rows], left=(0, 3, 4, 5, 6))
    what = plural(len(found), "collective") + ("" if several else f" over {over.pop()}")
    lines.append(f"{what}, {model.moved:,} bytes per replica")
    return "\n".join([_paint(lines[0], _BOLD, colour), *map(_safe, lines[1:])]) + "\n"


def selected(model: Model, chosen: Collection[int], *, colour: bool = False) -> str:
    """Return the lines of the chosen records, in order, with counts of the nodes between them."""
    lines: list[str] = []
    positions = range(len(model.records))
    for is_chosen, group in groupby(positions, key=lambda position: position in chosen):
        records = [model.records[position] for position in group]
        if is_chosen:
            lines += (_line(_indent(model, each) + model.text(each), colour) for each in records)
        else:
            count = sum(record.node is not None for record in records)  # inputs are no nodes
            lines += [_paint(f"  ... {plural(count, 'node')}", _DIM, colour)] if count else []
    return "\n".join(lines) + "\n"


def matching(model: Model, pattern: str) -> set[int]:
    """Return the positions of the records whose text, scope or source matches `pattern`."""
    try:
        regex = re.compile(pattern)
    except re.error as error:
        raise ArgumentError(f"--filter {pattern!r} is no regular expression: {error}") from error

    def texts(record: Record) -> Iterator[str]:
        yield from (model.text(record), record.facts.scope)
        yield from (f"{frame.file}:{frame.line}" for frame in record.facts.frames)

    return {i for i, record in enumerate(model.records) if any(map(regex.search, texts(record)))}


def neighbourhood(model: Model, name: str, depth: int) -> set[int]:
    """Return the positions of a record and of all records within `depth` edges of the record.

    Edges are followed in both directions. Raises `ArgumentError` for a name that no record has.
    """
    known = {record.id: position for position, record in enumerate(model.records)}
    wanted = name if name in known else f"%{name}"
    if wanted not in known:
        raise ArgumentError(
            f"there is no node {name!r} among the {len(known)} of {model.graph.name!r}",
            hint=did_you_mean(wanted, known, "nodes are named as in the text"),
        )
    reached = edge = {known[wanted]}
    for _ in range(depth):
        around = [(*model.records[position].inputs, *model.users[position]) for position in edge]
        edge = set().union(*around) - reached
        reached = reached | edge
    return reached


def _indent(model: Model, record: Record) -> str:
    """Return two spaces for the graph, and two for each loop or branch around a record."""
    return "  " + (_indent(model, model.records[record.parent]) if record.parent >= 0 else "")


def _safe(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _line(line: str, colour: bool) -> str:
    line = _safe(line)
    if not colour:
        return line
    if line.lstrip().startswith("#"):
        return _paint(line, _DIM, True)
    line = _TOKENS.sub(lambda m: f"{_CYAN if m['name'] else _BLUE}{m[0]}{_OFF}", line)
    return _COLLECTIVE.sub(lambda match: f"{_BOLD}{_YELLOW}{match[0]}{_OFF}", line)


def _paint(text: str, code: str, colour: bool) -> str:
    return f"{code}{text}{_OFF}" if colour and code else text
