"""Programs as JSON, for the page and other programs; `document.schema.json` describes it.

1. `version` increases when a reader of the last version could not read this one.
2. Empty, zero and missing values are left out. There are no times: the same program gives the same
   bytes.
3. A node refers to another by its position in `nodes`.
4. Values that many nodes share are in tables, and are referred to by their positions there: `facts`
   (everything but names, operands and position), `sources` and `groups`.
5. Nodes of several graphs that have the same identity are the same node: `identities` has the group
   of each. Partners in the graphs before and after a pass are in `pairs`, also where a node has
   moved to another group.
6. The JSON has the text of the last graph, with which another program can be compared later; the
   page has no use for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import groupby
from typing import Any, Generic, TypeVar  # Any: JSON

from graphdist.garbage import collection_put_off
from graphdist.ir.graph import Graph, Node
from graphdist.ir.source import Frame
from graphdist.viz.comparison import comparison_of
from graphdist.viz.graph_diff import Diff, diffs
from graphdist.viz.groups import GroupPath
from graphdist.viz.identities import identified, partners
from graphdist.viz.memory import memory_timeline
from graphdist.viz.model import Facts, Model, Record, models_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.report_document import report_document

__all__ = ["FORMAT", "VERSION", "program_document", "render"]

FORMAT = "graphdist.program"
VERSION = 4
_PLAIN = (
    "op",
    "parameters",
    "types",
    "bytes",
    "flops",
    "trips",
    "distribution",
    "origin",
    "scope",
    "variable",
    "seconds",
)

_Key = TypeVar("_Key", bound=Hashable)


@collection_put_off()  # a hundred thousand objects are made and kept: none of them is garbage
def render(program: ShownProgram) -> str:
    """Return a program as the text of a JSON document."""
    document = {**program_document(program), "text": str(program.graph)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n"


def program_document(program: ShownProgram) -> dict[str, Any]:
    """Return a program as JSON: its name, and for each pass its graph and what the pass changed."""
    # Many passes leave the program as it is: there are fewer graphs than steps.
    graphs = [step.graph for step in program.all_steps]
    models = models_of(graphs, program.topology)
    changes = iter(diffs([graph for graph, _ in groupby(graphs)]))
    numbers = {graph: number for number, graph in enumerate(models)}
    steps: list[dict[str, Any]] = []
    pairs: dict[tuple[int, int], dict[int, int]] = {}
    before: Graph | None = None
    for step in program.all_steps:
        entry: dict[str, Any] = {"name": step.name, "graph": numbers[step.graph]}
        if before not in (None, step.graph):
            change = next(changes)
            models_around = models[change.before], models[change.after]
            paired = partners(change, *models_around)
            pairs.setdefault((numbers[change.before], numbers[change.after]), paired)
            entry["pairs"] = _runs(paired)
            if change:
                entry["diff"] = _diff(change, *models_around)
        steps.append(entry)
        before = step.graph
    identities = identified(list(models.values()), pairs, across_groups=program.compares)
    tables = _Tables()
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": program.graph.name,
        "replicas": program.graph.num_replicas,
        **_target(program),
        **_comparison(program, models),
        "passes": steps,
        **({"shown": len(program.steps) - 1} if program.others else {}),
        "graphs": [
            _graph(model, of, tables)
            for model, of in zip(models.values(), identities.of, strict=True)
        ],
        "identities": [tables.groups.position(path) for path in identities.groups],
        "facts": tables.facts.entries,
        "sources": tables.sources.entries,
        "groups": tables.groups.entries,
    }


def _target(program: ShownProgram) -> dict[str, Any]:
    topology, report = program.topology, program.report
    found: dict[str, Any] = {} if topology is None else {"topology": str(topology)}
    return found if report is None else {**found, "report": report_document(report)}


def _comparison(program: ShownProgram, models: Mapping[Graph, Model]) -> dict[str, Any]:
    if not program.compares:
        return {}
    return {"comparison": comparison_of(program, models).to_json()}


class _Table(Generic[_Key]):
    """Entries in the order in which they were added, without duplicates."""

    def __init__(self, entry: Callable[[_Key], Any]) -> None:
        self.entries: list[Any] = []
        self._entry = entry
        self._position_of: dict[_Key, int] = {}

    def position(self, key: _Key) -> int:
        """Return where the entry of a key stands."""
        position = self._position_of.get(key)
        if position is None:
            position = self._position_of[key] = len(self.entries)
            self.entries.append(self._entry(key))
        return position


class _Tables:
    def __init__(self) -> None:
        self.facts = _Table(_facts)
        self.sources = _Table(_source)
        self.groups = _Table[GroupPath](list)
        self._facts_of: dict[int, int] = {}  # by identity, for nodes of many graphs

    def facts_position(self, facts: Facts) -> int:
        """Return where the facts of a record stand."""
        position = self._facts_of.get(id(facts))
        if position is None:
            *plain, frames = facts
            source = self.sources.position(frames) if frames else None
            position = self._facts_of[id(facts)] = self.facts.position((*plain, source))
        return position


def _graph(model: Model, identities: list[int], tables: _Tables) -> dict[str, Any]:
    memory = memory_timeline(model)
    return {
        "stage": model.graph.stage.value,
        "nodes": [
            _node(record, tables.facts_position(record.facts), identity)
            for record, identity in zip(model.records, identities, strict=True)
        ],
        "collectives": model.collectives,
        "memory": {
            "steps": memory.steps,
            "peak": memory.peak,
            "peak_step": memory.peak_step,
            "live": memory.live[:100],
        },
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
    if record.own_text:
        node["text"] = record.own_text
    return node


def _facts(key: tuple[Any, ...]) -> dict[str, Any]:
    facts, source = Facts(*key[:-1]), key[-1]
    found = {name: value for name in _PLAIN if (value := getattr(facts, name))}
    if source is not None:
        found["source"] = source
    if facts.is_collective:
        found["collective"] = {
            "reducer": facts.reducer,
            "bytes": facts.moved,
            "group_size": facts.group_size,
        }
    return found


def _source(frames: tuple[Frame, ...]) -> list[tuple[str, int, str]]:
    return [(frame.file, frame.line, frame.function) for frame in frames]


def _diff(change: Diff, before: Model, after: Model) -> dict[str, Any]:
    return {
        "removed": _positions(before, change.removed),
        "added": _positions(after, change.added),
        "rewired": _pairs(before, after, change.rewired),
        "changed": _pairs(before, after, change.changed),
        "kept": change.kept,
    }


def _runs(pairs: Mapping[int, int]) -> list[list[int]]:
    """Return pairs of positions as runs: where one begins in both graphs, and its length."""
    runs: list[list[int]] = []
    for old, new in sorted(pairs.items()):
        if runs and (old, new) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([old, new, 1])
    return runs


def _positions(model: Model, nodes: Sequence[Node]) -> list[int]:
    return [model.position_of[node] for node in nodes]


def _pairs(before: Model, after: Model, pairs: Sequence[tuple[Node, Node]]) -> list[list[int]]:
    return [[before.position_of[old], after.position_of[new]] for old, new in pairs]
