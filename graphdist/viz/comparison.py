"""The comparison of two programs: their figures, collectives and lines, whose nodes are paired.

1. The nodes of the old and of the new program are paired by `graphdist.viz.graph_diff`.
2. A collective of both is compared by the bytes that a replica sends into it per step, all runs of
   a loop included. One that is in one program alone was added or removed.
3. The bytes of a line are the bytes of its nodes' results, again in all runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any  # Any: JSON

from graphdist.ir.graph import Graph, Node
from graphdist.report.amounts import size_text
from graphdist.report.compared_figures import ComparedFigure
from graphdist.viz.graph_diff import Diff, diff
from graphdist.viz.model import Model, Record, memory_timeline, models_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.report_document import report_document

SIGNS = {"added": "+", "removed": "-", "rewired": "~", "changed": "!", "kept": "="}


@dataclass(frozen=True)
class ComparedCollective:
    """A collective, with its position in each program, None in the one that does not have it."""

    kind: str
    before: int | None
    after: int | None
    bytes_before: int
    bytes_after: int
    place: str


@dataclass
class ComparedLine:
    """The changes to the nodes of a line."""

    place: str
    added: int = 0
    removed: int = 0
    rewired: int = 0
    changed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    @property
    def differs(self) -> bool:
        """Return whether any node of the line differs."""
        return bool(self.added or self.removed or self.rewired or self.changed)


@dataclass(frozen=True)
class Comparison:
    """Two programs: their figures, their collectives, and the lines whose nodes differ."""

    names: tuple[str, str]
    figures: list[ComparedFigure]
    collectives: list[ComparedCollective] = field(default_factory=list)
    lines: list[ComparedLine] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as the page reads it."""
        return {
            "names": self.names,
            "figures": [[each.name, each.unit, each.before, each.after] for each in self.figures],
            "collectives": [
                [each.kind, each.before, each.after, each.bytes_before, each.bytes_after]
                for each in self.collectives
            ],
            "lines": [
                [
                    each.place,
                    *(each.added, each.removed, each.rewired, each.changed),
                    *(each.bytes_before, each.bytes_after),
                ]
                for each in self.lines
            ],
        }

    def __str__(self) -> str:
        figures = [f"{each.name:<22} {each}" for each in self.figures]
        return "\n".join([f"{self.names[0]} -> {self.names[1]}", *figures, *self._collectives()])

    def _collectives(self) -> Iterator[str]:
        for each in self.collectives:
            state = self.state(each)
            sizes = f"{size_text(each.bytes_before)} -> {size_text(each.bytes_after)}"
            amount = {
                "added": size_text(each.bytes_after),
                "removed": size_text(each.bytes_before),
                "kept": size_text(each.bytes_after),
            }
            yield (f"{SIGNS[state]} {each.kind:<20} {amount.get(state, sizes):>24}  {each.place}")

    @staticmethod
    def state(each: ComparedCollective) -> str:
        """Return whether a collective was "added", "removed", "changed" or "kept"."""
        if each.before is None or each.after is None:
            return "added" if each.before is None else "removed"
        return "kept" if each.bytes_before == each.bytes_after else "changed"


def comparison_of(program: ShownProgram, models: Mapping[Graph, Model] | None = None) -> Comparison:
    """Return the comparison of the two steps of a program, whose models may be known already."""
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


def _figures(before: Model, after: Model) -> Iterator[ComparedFigure]:
    def both(name: str, unit: str, amounts: list[float]) -> ComparedFigure:
        return ComparedFigure(name, unit, *amounts)

    models = before, after
    yield both("nodes", "", [sum(1 for r in model.records if r.node) for model in models])
    yield both("collectives", "", [len(model.collectives) for model in models])
    yield both(
        "bytes of collectives",
        "bytes",
        [sum(record.moved for record in model.records) for model in models],
    )
    yield both("bytes of all results", "bytes", [_result_bytes(model.records) for model in models])
    yield both("peak by the graph", "bytes", [memory_timeline(model).peak for model in models])


def _predicted(*reports: Mapping[str, Any] | None) -> Iterator[ComparedFigure]:
    """Yield the figures of two reports, as their JSON has them."""
    old, new = reports
    if old is None or new is None:
        return
    try:
        peaks = float(old["memory"]["peak"]), float(new["memory"]["peak"])
        times = float(old["time"]["step"]), float(new["time"]["step"])
    except (KeyError, TypeError, ValueError):  # a file may be anybody's
        return
    yield ComparedFigure("peak as compiled", "bytes", *peaks)
    yield ComparedFigure("predicted step", "seconds", *times)


def _result_bytes(records: list[Record]) -> int:
    return sum(record.facts.bytes * record.times for record in records if record.node)


def _collectives(change: Diff, before: Model, after: Model) -> list[ComparedCollective]:
    partner = {
        before.position_of[old]: after.position_of[new] for old, new in change.partners.items()
    }
    compared: list[ComparedCollective] = []
    paired: set[int] = set()
    for old in before.collectives:
        new = partner.get(old)
        if new is not None:
            paired.add(new)
        compared.append(_compared(before, old, after, new))
    compared += [
        _compared(before, None, after, new) for new in after.collectives if new not in paired
    ]
    return sorted(
        compared,
        key=lambda each: (
            Comparison.state(each) == "kept",
            -max(each.bytes_before, each.bytes_after),
        ),
    )


def _compared(before: Model, old: int | None, after: Model, new: int | None) -> ComparedCollective:
    was = None if old is None else before.records[old]
    now = None if new is None else after.records[new]
    record = now or was
    assert record is not None
    return ComparedCollective(
        f"{record.facts.op} {record.facts.reducer}".strip(),
        old,
        new,
        was.moved if was else 0,
        now.moved if now else 0,
        _place(record),
    )


def _lines(change: Diff, before: Model, after: Model) -> list[ComparedLine]:
    lines: defaultdict[str, ComparedLine] = defaultdict(lambda: ComparedLine(""))

    def line_of(model: Model, node: Node) -> ComparedLine:
        return lines[_place(model.records[model.position_of[node]])]

    for node in change.added:
        line_of(after, node).added += 1
    for node in change.removed:
        line_of(before, node).removed += 1
    for _, node in change.rewired:
        line_of(after, node).rewired += 1
    for _, node in change.changed:
        line_of(after, node).changed += 1
    for record in before.records:
        if record.node:
            lines[_place(record)].bytes_before += record.facts.bytes * record.times
    for record in after.records:
        if record.node:
            lines[_place(record)].bytes_after += record.facts.bytes * record.times
    for place, line in lines.items():
        line.place = place
    changed = [line for line in lines.values() if line.differs]
    return sorted(changed, key=lambda line: -abs(line.bytes_after - line.bytes_before))


def _place(record: Record) -> str:
    """Return the file's name and the line of a record, "" if they are unknown."""
    return record.facts.place.rpartition("/")[2]
