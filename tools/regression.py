"""`graphdist-compile --against`: what a step costs more than it did, by the user's line.

The earlier report is in the file of a compiled step or in the JSON that `--json` prints. Figures of
the step are judged: one that grew beyond the allowed share is a regression. Collectives are listed
by the line that asked for them. Lines are told apart by file and text, so that code may move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.report.amounts import count_text, size_text, time_text
from graphdist.report.step_report import Report
from graphdist.runtime.files.artifact import LIMITS
from graphdist.tools.comparisons import table
from graphdist.tools.given_files import read_given
from graphdist.tracing.user_lines import here

_ROUNDING = 1e-9


@dataclass(frozen=True)
class StepFigure:
    """A figure of the step, before and after."""

    name: str
    before: float
    after: float
    text: Callable[[float], str]

    @property
    def growth(self) -> float:
        """Return the share by which the figure grew: infinity from 0, below 0 if it fell."""
        if self.before:
            return self.after / self.before - 1
        return inf if self.after else 0.0


class Amount(NamedTuple):
    """The collectives of a line in a step: how many run, the bytes of a replica, an estimate."""

    runs: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, use: Mapping[str, Any]) -> Amount:
        """Return the amount with another collective, as a report's JSON has it."""
        return Amount(
            self.runs + use["times"],
            self.bytes + use["bytes"] * use["times"],
            self.seconds + use.get("seconds", 0.0),
        )


@dataclass(frozen=True)
class Line:
    """A line of the user's whose collectives changed."""

    place: str
    code: str
    before: Amount
    after: Amount


@dataclass(frozen=True)
class Regression:
    """A step compared with an earlier report of it."""

    earlier: str
    allowed: float
    figures: tuple[StepFigure, ...]
    lines: tuple[Line, ...]

    @property
    def grown(self) -> tuple[StepFigure, ...]:
        """Return the figures that grew by more than is allowed."""
        return tuple(each for each in self.figures if each.growth > self.allowed + _ROUNDING)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON has it; a figure that was 0 has no growth."""
        return {
            "earlier": self.earlier,
            "allowed": self.allowed,
            "grown": [figure.name for figure in self.grown],
            "figures": {
                each.name: {
                    "before": each.before,
                    "after": each.after,
                    "growth": None if each.growth == inf else each.growth,
                }
                for each in self.figures
            },
            "lines": [
                {
                    "place": line.place,
                    "code": line.code,
                    "before": line.before._asdict(),
                    "after": line.after._asdict(),
                }
                for line in self.lines
            ],
        }

    def __str__(self) -> str:
        rows = [["", "before", "after", ""], *map(self._row, self.figures)]
        names = ", ".join(figure.name for figure in self.grown)
        beyond = f" by more than {100 * self.allowed:g}%" if self.allowed else ""
        verdict = f"GREW{beyond}: {names}" if names else f"nothing grew{beyond}"
        return "\n".join([f"against {self.earlier}", *table(rows), *self._by_line(), verdict])

    def _row(self, figure: StepFigure) -> list[str]:
        if figure.before == figure.after:
            change = "="
        else:
            change = "new" if figure.growth == inf else f"{figure.growth:+.1%}"
        grew = "  GREW" if figure in self.grown else ""
        return [figure.name, figure.text(figure.before), figure.text(figure.after), change + grew]

    def _by_line(self) -> Iterator[str]:
        for line in self.lines:
            before, after = line.before, line.after
            yield (
                f"  {line.place}: {before.runs} -> {after.runs} collectives, "
                f"{size_text(before.bytes)} -> {size_text(after.bytes)}, "
                f"{time_text(before.seconds)} -> {time_text(after.seconds)}"
            )
            if line.code:
                yield f"    {line.code}"


def parse_allowed(text: str) -> float:
    """Return the share that a percentage is; raises `ArgumentError` for other text.

    >>> parse_allowed("5%")
    0.05
    """
    number = text.removesuffix("%")
    try:
        share = float(number) / 100
    except ValueError:
        share = -1.0
    if number == text or not 0 <= share < inf:
        raise ArgumentError(
            f"--allow {text!r} is no percentage", source=here(), hint="such as --allow 5%"
        )
    return share


def read_report(path: str) -> dict[str, Any]:
    """Return the report in the file of a step, or in a file with the JSON of `--json`.

    Raises `ArtifactError` for a damaged file of a step, `ArgumentError` for one without a report.
    """
    text = read_given(Path(path), "report.json", LIMITS["report.json"])
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        report = None
    if not isinstance(report, dict) or not {"target", "collectives", "flops"} <= report.keys():
        raise ArgumentError(
            f"{path} has no report",
            source=here(),
            hint="give the file of a step, step.gdx, or what graphdist-compile --json printed",
        )
    return report


def compare_reports(
    path: str, earlier: Mapping[str, Any], report: Report, allowed: float
) -> Regression:
    """Return how a step's report differs from the earlier one, which `path` names.

    Raises `ArgumentError` for the report of another target.
    """
    if earlier["target"] != report.target:
        raise ArgumentError(
            f"{path} has the report of {earlier['target']}, this is {report.target}",
            source=here(),
            hint="compare steps for the same devices; --compare shows a step on several",
        )
    later = report.to_json()
    try:
        figures, lines = tuple(_figures(earlier, later)), tuple(_lines(earlier, later))
    except (KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{path} has a report that lacks figures: {type(error).__name__}: {error}",
            source=here(),
            hint="make the report again with this version of graphdist",
        ) from error
    return Regression(path, allowed, figures, lines)


def _figures(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[StepFigure]:
    def figure(
        name: str, text: Callable[[float], str], of: Callable[[Mapping[str, Any]], float]
    ) -> StepFigure:
        return StepFigure(name, _number(of(earlier)), of(later), text)

    yield figure("peak memory", size_text, lambda report: report["needed_bytes"])
    yield figure("FLOP", _count, lambda report: report["total_flops"])
    yield figure("memory traffic", size_text, lambda report: report["memory_traffic"])
    yield figure("collectives", _count, lambda report: _total(report).runs)
    yield figure("bytes of collectives", size_text, lambda report: _total(report).bytes)
    if earlier.get("timeline") and later.get("timeline"):
        for name, key in (("step", "seconds"), ("compute", "compute"), ("exposed", "exposed")):
            before, after = (_number(report["timeline"][key]) for report in (earlier, later))
            yield StepFigure(f"{name} time", before, after, time_text)
    elif earlier["estimate"] and later["estimate"]:
        for name in ("compute", "memory", "interconnect", "step"):
            before, after = (_number(report["estimate"][name]) for report in (earlier, later))
            yield StepFigure(f"{name} time", before, after, time_text)


def _number(figure: Any) -> float:
    """Return a figure; raises `TypeError` for one that is no number."""
    if isinstance(figure, bool) or not isinstance(figure, int | float):
        raise TypeError(f"{figure!r} is no number")
    return figure


def _count(number: float) -> str:
    return count_text(number).rstrip()


def _total(report: Mapping[str, Any]) -> Amount:
    total = Amount()
    for use in report["collectives"]:
        total = total.plus(use)
    return total


def _lines(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines whose collectives changed, by how much more their bytes are."""
    (before, old_places), (after, places) = _by_line(earlier), _by_line(later)
    changed = [
        Line({**old_places, **places}[key], key[1], before.get(key, none), after.get(key, none))
        for none in (Amount(),)
        for key in {**before, **after}
        if before.get(key, none) != after.get(key, none)
    ]
    yield from sorted(changed, key=lambda line: line.before.bytes - line.after.bytes)


_Key = tuple[str, str]


def _by_line(report: Mapping[str, Any]) -> tuple[dict[_Key, Amount], dict[_Key, str]]:
    """Return the collectives of each line, by its file and text, and the places of these."""
    amounts, places = dict[_Key, Amount](), dict[_Key, str]()
    for use in report["collectives"]:
        place = os.path.basename(use["source"])
        code = use.get("code", "")
        key = (place.rpartition(":")[0], code) if code else (place, "")
        amounts[key] = amounts.get(key, Amount()).plus(use)
        places.setdefault(key, place)
    return amounts, places
