"""Programs as JSON, written and read; `document.schema.json` describes it.

1. `version` increases when a reader of the previous version cannot read the new one.
2. Empty, zero and missing values are left out. There are no timestamps, so that the same program
   gives the same bytes.
3. A node refers to another by its position in `nodes`.
4. Values that many nodes share are in tables, and are referred to by their positions there: `facts`
   (everything but names, operands and position), `sources` and `groups`.
5. Nodes of several graphs that have the same identity are the same node. `identities` has the group
   of each identity. `pairs` has the partners in the graphs before and after a pass. It has also
   the pairs of a node that has moved to another group, and so has a new identity.
6. The JSON has the text of the last graph, so that a later program can be compared with the graph;
   the page does not use the text. The text lacks the user's lines and scopes. They are in the
   records of the document, in the same order. In the text, placeholders stand for parameters that
   cannot be printed. So a graph that is compared with a saved graph is printed and parsed first
   (`as_saved`).
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.garbage import collection_put_off
from graphdist.ir.analyses import collectives, walk
from graphdist.ir.graph import Graph, Node
from graphdist.ir.opaque_placeholders import PLACEHOLDERS
from graphdist.ir.parser import parse
from graphdist.ir.source import Frame, Source
from graphdist.passes.compared_plans import ComparedPlans
from graphdist.report.frontier_picture import frontier_picture
from graphdist.report.json_records import json_of
from graphdist.report.verdict import verdict_of_graph
from graphdist.viz.comparison import comparison_of
from graphdist.viz.graph_diff import Diff, diffs
from graphdist.viz.groups import GroupPath
from graphdist.viz.identities import identified, partners
from graphdist.viz.model import Facts, Model, Record, memory_timeline, models_of
from graphdist.viz.program import ShownProgram, ShownStep
from graphdist.viz.report_document import report_document

FORMAT = "graphdist.program"
VERSION = 4
_MOST_LIVE = 100
"""How many of the values held at the memory peak of a graph are listed, before all others."""

_Key = TypeVar("_Key", bound=Hashable)


@collection_put_off()  # a hundred thousand objects are made and kept, and none is garbage
def render(program: ShownProgram) -> str:
    """Return a program as the text of a JSON document."""
    document = {**program_document(program), "text": str(program.graph)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def program_document(program: ShownProgram) -> dict[str, Any]:
    """Return a program as JSON: its name, and for each pass its graph and what the pass changed."""
    # Many passes return the same graph, so there are fewer graphs than steps.
    graphs = [step.graph for step in program.all_steps]
    models = models_of(graphs, program.topology, _seconds_of_collectives(program))
    changes = iter(diffs([graph for graph, _ in groupby(graphs)]))
    indices = {graph: index for index, graph in enumerate(models)}
    steps: list[dict[str, Any]] = []
    earlier: dict[int, tuple[int, Mapping[int, int]]] = {}
    before: Graph | None = None
    for step in program.all_steps:
        entry: dict[str, Any] = {"name": step.name, "graph": indices[step.graph]}
        if before not in (None, step.graph):
            change = next(changes)
            models_around = models[change.before], models[change.after]
            paired = partners(change, *models_around)
            if indices[change.before] < indices[change.after]:
                earlier.setdefault(indices[change.after], (indices[change.before], paired))
            entry["pairs"] = _runs(paired)
            if change:
                entry["diff"] = _diff(change, *models_around)
        steps.append(entry)
        before = step.graph
    of_models = list(models.values())
    identities, group_of = identified(of_models, earlier, across_groups=program.compares)
    tables, groups, report = _Tables(), dict[GroupPath, int](), program.report
    verdict = report.verdict if report else verdict_of_graph(program.graph, program.servers)
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.graph.name,
        "replicas": program.graph.num_replicas,
        **({"cores": program.graph.num_cores} if program.graph.num_cores > 1 else {}),
        **({"topology": str(program.topology)} if program.topology else {}),
        "verdict": json_of(verdict),
        **({"report": report_document(report)} if report else {}),
        **({"servers": json_of(program.servers)} if program.servers else {}),
        **(_plans(program, program.plans) if program.plans else {}),
        **_earlier(program.earlier_report),
        **({"comparison": comparison_of(program, models).to_json()} if program.compares else {}),
        "passes": steps,
        **({"shown": len(program.steps) - 1} if program.others else {}),
        "graphs": [
            _graph(model, of, tables) for model, of in zip(of_models, identities, strict=True)
        ],
        "identities": [_position(path, groups) for path in group_of],
        "facts": [_facts(*key) for key in tables.facts],
        "sources": [_source(frames) for frames in tables.sources],
        "groups": list(map(list, groups)),
    }


def _seconds_of_collectives(program: ShownProgram) -> dict[Node, float]:
    """Return the seconds of a run of each collective of the last graph that the report states."""
    uses = program.report.collectives if program.report else ()
    nodes = collectives(program.graph)
    if [node.op.name for node in nodes] != [use.kind for use in uses]:
        return {}  # the graph of an earlier pass
    pairs = zip(nodes, uses, strict=True)
    return {node: use.seconds * use.every / use.times for node, use in pairs if use.times}


def _position(key: _Key, table: dict[_Key, int]) -> int:
    """Return the position of `key` in `table`. A new key is appended."""
    return table.setdefault(key, len(table))


class _Tables:
    """The facts and sources of all graphs, with their positions in the tables of the document."""

    def __init__(self) -> None:
        self.facts: dict[tuple[Facts, int | None], int] = {}
        self.sources: dict[tuple[Frame, ...], int] = {}
        self._facts_of: dict[int, int] = {}  # by `id`: nodes of several graphs share `Facts`

    def position(self, facts: Facts) -> int:
        """Return the position of a record's facts in the table."""
        position = self._facts_of.get(id(facts))
        if position is None:
            source = _position(facts.frames, self.sources) if facts.frames else None
            key = facts._replace(frames=()), source
            position = self._facts_of[id(facts)] = _position(key, self.facts)
        return position


def _graph(model: Model, identities: list[int], tables: _Tables) -> dict[str, Any]:
    memory = memory_timeline(model)
    live, others = memory.live[:_MOST_LIVE], memory.live[_MOST_LIVE:]
    if others:
        live.append(
            (f"{len(others):,} smaller values", sum(size for _, size, *_ in others), -1, "")
        )
    return {
        "stage": model.graph.stage.value,
        "nodes": [
            _node(record, tables.position(record.facts), identity)
            for record, identity in zip(model.records, identities, strict=True)
        ],
        "collectives": model.collectives,
        "memory": {**vars(memory), "live": live},
    }


def _node(record: Record, facts: int, identity: int) -> dict[str, Any]:
    node: dict[str, Any] = {"id": record.id, "facts": facts, "identity": identity}
    if len(record.results) != 1:
        node["results"] = record.results
    if record.operands:
        node["operands"] = record.operands
    if record.parent >= 0:
        node["parent"] = record.parent
    if record.times != 1:
        node["times"] = record.times
    if record.cores:
        node["cores"] = record.cores
    if record.own_text:
        node["text"] = record.own_text
    return node


def _facts(facts: Facts, source: int | None) -> dict[str, Any]:
    """Return `facts` as JSON. `source`, a position in the table of sources, replaces the frames."""
    entry = {name: value for name, value in facts._asdict().items() if value}
    if source is not None:
        entry["source"] = source
    if facts.collective:
        entry["collective"] = facts.collective._asdict()
    return entry


def _source(frames: tuple[Frame, ...]) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in frames]


def _plans(program: ShownProgram, compared: ComparedPlans) -> dict[str, Any]:
    """Return the plans that the step's plan was compared with, the smallest first."""
    where = f" on {program.topology}" if program.topology else ""
    rows = sorted(compared.plans, key=lambda each: (each.peak_bytes, each.seconds))
    return {
        "plans": {
            "memory": compared.memory_bytes,
            "picture": frontier_picture(compared, f"{program.graph.name}{where}"),
            "rows": [[p.name, p.seconds, p.peak_bytes, p.is_compiled] for p in rows],
        }
    }


def _earlier(report: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the timeline of the program that is compared with, if its report has one."""
    fields = "time", "tracks", "lanes"
    return (
        {"earlier": {each: report[each] for each in fields}} if report and "lanes" in report else {}
    )


def _diff(change: Diff, before: Model, after: Model) -> dict[str, Any]:
    return {
        "removed": [before.position_of[node] for node in change.removed],
        "added": [after.position_of[node] for node in change.added],
        "rewired": _pairs(before, after, change.rewired),
        "changed": _pairs(before, after, change.changed),
        "kept": change.kept,
    }


def _runs(pairs: Mapping[int, int]) -> list[list[int]]:
    """Return pairs of positions as runs of successive pairs: the first pair, and the length."""
    runs: list[list[int]] = []
    for old, new in sorted(pairs.items()):
        if runs and (old, new) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([old, new, 1])
    return runs


def _pairs(before: Model, after: Model, pairs: Sequence[tuple[Node, Node]]) -> list[list[int]]:
    return [[before.position_of[old], after.position_of[new]] for old, new in pairs]


Origin = tuple[Source, str]
"""The user's lines and scope of a node, and the pass that made the node."""


SavedProgram = tuple[Graph, dict[str, Any] | None]
"""The last graph of a document, and the report on that graph; None without a report."""


def read_document(text: str, name: str) -> SavedProgram:
    """Return the program saved in a document. Raises `ArgumentError` for any other text.

    `name` is the document's name in errors.
    """
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
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _refused(name, "its nodes are not those of its text") from error
    return _with_origins(graph, iter(origins)), document.get("report")


def as_saved(graph: Graph) -> Graph:
    """Return a graph in the form that it has after it is saved to a document and read back."""
    parsed = parse(str(graph), opaques=PLACEHOLDERS)
    return _with_origins(parsed, ((node.source, node.origin) for node in walk(graph)))


def compared(program: ShownProgram, earlier: SavedProgram, name: str) -> ShownProgram:
    """Return a program of two steps: `earlier` under `name`, and the last step of `program`."""
    graph, report = earlier
    steps = ShownStep(name, graph), ShownStep("now", as_saved(program.graph))
    return replace(program, steps=steps, others=(), compares=True, earlier_report=report)


def _refused(name: str, why: str) -> ArgumentError:
    return ArgumentError(
        f"{name} is no program of graphdist-viz: {why}",
        hint="write one with graphdist-viz TARGET -o old.json",
    )


def _origins(document: Mapping[str, Any]) -> Iterator[Origin]:
    """Yield the origin of each node of a document's last graph, in order. Inputs are no nodes."""
    facts, sources = document["facts"], document["sources"]
    for record in document["graphs"][document["passes"][-1]["graph"]]["nodes"]:
        if "text" in record:  # an input or `return`
            continue
        entry = facts[record["facts"]]
        lines = sources[entry["source"]] if "source" in entry else []
        frames = tuple(Frame(str(file), int(line), str(function)) for file, line, function in lines)
        yield _source_of(frames, str(entry.get("scope", ""))), str(entry.get("origin", ""))


def _source_of(frames: tuple[Frame, ...], scope: str) -> Source:
    return Source(resolve=lambda: (frames, scope))


def _with_origins(graph: Graph, origins: Iterator[Origin]) -> Graph:
    nodes = []
    for node in graph.nodes:
        source, made_by = next(origins, (node.source, node.origin))
        nested = tuple(_with_origins(body, origins) for body in node.graphs)
        nodes.append(replace(node, source=source, origin=made_by, graphs=nested))
    return graph.replace(nodes=tuple(nodes))
