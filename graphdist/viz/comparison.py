"""The comparison of two programs: their totals, their collectives and the user's lines.

1. The nodes of the old and of the new program are paired by `graphdist.viz.graph_diff`.
2. A collective that is in both programs is compared by the bytes that a replica sends into it per
   step, in all iterations of the loops around it. A collective that is in only one program was
   added or removed.
3. The bytes of a line are the bytes of its nodes' results, also in all iterations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field
from itertools import chain
from typing import Any  # Any: JSON

from graphdist.ir.graph import Graph
from graphdist.report.amounts import size_text
from graphdist.report.compared_figures import ComparedFigure
from graphdist.viz.graph_diff import Diff, diff
from graphdist.viz.identities import partners
from graphdist.viz.model import Model, Record, memory_timeline, models_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.report_document import report_document

SIGNS = {"added": "+", "removed": "-", "rewired": "~", "changed": "!", "kept": "="}


@dataclass(frozen=True)
class ComparedCollective:
    """A collective, and its position in each program; None for a program without the collective."""

    kind: str
    before: int | None
    after: int | None
    bytes_before: int
    bytes_after: int
    place: str

    @property
    def state(self) -> str:
        """Return whether the collective was "added", "removed", "changed" or "kept"."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "kept" if self.bytes_before == self.bytes_after else "changed"


@dataclass(frozen=True)
class ComparedLine:
    """One of the user's lines: how many of its nodes changed, and the bytes of all its results."""

    place: str
    added: int
    removed: int
    rewired: int
    changed: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class Comparison:
    """Two programs: their totals, their collectives, and the user's lines whose nodes differ."""

    names: tuple[str, str]
    figures: list[ComparedFigure]
    collectives: list[ComparedCollective] = field(default_factory=list)
    lines: list[ComparedLine] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON for the page."""
        return {
            "names": self.names,
            "figures": [list(astuple(each)) for each in self.figures],
            "collectives": [list(astuple(each)[:-1]) for each in self.collectives],  # no place
            "lines": [list(astuple(each)) for each in self.lines],
        }

    def __str__(self) -> str:
        figures = [f"{each.name:<22} {each}" for each in self.figures]
        return "\n".join([f"{self.names[0]} -> {self.names[1]}", *figures, *self._collectives()])

    def _collectives(self) -> Iterator[str]:
        for each in self.collectives:
            before, after = size_text(each.bytes_before), size_text(each.bytes_after)
            amounts = {"removed": before, "changed": f"{before} -> {after}"}
            amount = amounts.get(each.state, after)
            yield f"{SIGNS[each.state]} {each.kind:<20} {amount:>24}  {each.place}"


def comparison_of(program: ShownProgram, models: Mapping[Graph, Model] | None = None) -> Comparison:
    """Return the comparison of the two steps of a program.

    `models` has the models of the steps' graphs; None computes them.
    """
    before, after = program.steps
    models = models or models_of((before.graph, after.graph))
    change, old, new = diff(before.graph, after.graph), models[before.graph], models[after.graph]
    report = report_document(program.report) if program.report else None
    return Comparison(
        (before.name, after.name),
        [*_figures(old, new), *_predicted(program.earlier_report, report)],
        _collectives(change, old, new),
        _lines(change, old, new),
    )


def _figures(*models: Model) -> Iterator[ComparedFigure]:
    """Yield the figures of the old and of the new graph."""
    yield ComparedFigure("nodes", "", *(each.num_nodes for each in models))
    yield ComparedFigure("collectives", "", *(len(each.collectives) for each in models))
    yield ComparedFigure("bytes of collectives", "bytes", *(each.moved for each in models))
    results = (sum(map(_result_bytes, each.records)) for each in models)
    yield ComparedFigure("bytes of all results", "bytes", *results)
    peaks = (memory_timeline(each).peak for each in models)
    yield ComparedFigure("peak by the graph", "bytes", *peaks)


def _predicted(*reports: Mapping[str, Any] | None) -> Iterator[ComparedFigure]:
    """Yield the memory and time that two reports predict; nothing if either report is missing."""
    old, new = reports
    if old is None or new is None:
        return
    try:
        peaks = float(old["memory"]["peak"]), float(new["memory"]["peak"])
        times = float(old["time"]["step"]), float(new["time"]["step"])
    except (KeyError, TypeError, ValueError):  # the earlier report is read from the user's file
        return
    yield ComparedFigure("peak as compiled", "bytes", *peaks)
    yield ComparedFigure("predicted step", "seconds", *times)


def _result_bytes(record: Record) -> int:
    return round(record.facts.bytes * record.times) if record.node else 0


def _collectives(change: Diff, before: Model, after: Model) -> list[ComparedCollective]:
    partner = partners(change, before, after)
    pairs: list[tuple[int | None, int | None]] = [
        (old, partner.get(old)) for old in before.collectives
    ]
    paired = {new for _, new in pairs}
    pairs += [(None, new) for new in after.collectives if new not in paired]
    compared = [_compared(before, old, after, new) for old, new in pairs]
    compared.sort(key=lambda each: -max(each.bytes_before, each.bytes_after))
    return sorted(compared, key=lambda each: each.state == "kept")


def _compared(before: Model, old: int | None, after: Model, new: int | None) -> ComparedCollective:
    was = None if old is None else before.records[old]
    now = None if new is None else after.records[new]
    record = now or was
    assert record is not None
    sizes = was.moved if was else 0, now.moved if now else 0
    return ComparedCollective(record.facts.kind, old, new, *sizes, record.facts.line)


def _lines(change: Diff, before: Model, after: Model) -> list[ComparedLine]:
    nodes = {
        "added": (after, change.added),
        "removed": (before, change.removed),
        "rewired": (after, [new for _, new in change.rewired]),
        "changed": (after, [new for _, new in change.changed]),
    }
    counts = {
        kind: Counter(model.records[model.position_of[node]].facts.line for node in changed)
        for kind, (model, changed) in nodes.items()
    }
    sizes_before, sizes_after = _bytes_by_line(before), _bytes_by_line(after)
    lines = [
        ComparedLine(
            place,
            **{kind: count[place] for kind, count in counts.items()},
            bytes_before=sizes_before[place],
            bytes_after=sizes_after[place],
        )
        for place in dict.fromkeys(chain.from_iterable(counts.values()))
    ]
    return sorted(lines, key=lambda line: -abs(line.bytes_after - line.bytes_before))


def _bytes_by_line(model: Model) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for record in model.records:
        sizes[record.facts.line] += _result_bytes(record)
    return sizes
