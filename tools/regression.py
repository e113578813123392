"""`graphdist-compile --against`: compare a step with an earlier report of the step.

The earlier report is in the file of a compiled step or in the JSON that `--json` prints. Totals of
the step, such as its memory and time, are compared. A total that grew by more than the allowed
share is a regression. Collectives are listed by the user's line that caused them. Two lines are
the same line if file and text are equal, so code may move.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Self  # Any: JSON

from graphdist.errors import ArgumentError
from graphdist.report.amounts import fitted_lines, indented_table, size_text, time_text
from graphdist.report.collective_uses import CollectiveUse
from graphdist.report.compared_figures import ComparedFigure
from graphdist.report.json_records import json_of
from graphdist.report.step_report import Report
from graphdist.runtime.files.artifact import LIMITS
from graphdist.tools.given_files import read_given

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Amount:
    """The collectives of a line in a step: number of runs, bytes per replica, estimated seconds."""

    runs: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, uses: Sequence[CollectiveUse]) -> Self:
        """Return the amount of some collectives."""
        return cls(
            sum(use.times for use in uses),
            sum(use.bytes_a_step for use in uses),
            sum((use.seconds for use in uses), 0.0),
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
    figures: tuple[ComparedFigure, ...]
    lines: tuple[Line, ...]

    @property
    def grown(self) -> tuple[ComparedFigure, ...]:
        """Return the figures that grew by more than is allowed."""
        return tuple(each for each in self.figures if each.growth > self.allowed + _ROUNDING)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON. The growth of a figure that was 0 is None."""
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
            "lines": json_of(self.lines),
        }

    def __str__(self) -> str:
        grown, rows = self.grown, [["", "before", "after", ""]]
        for figure in self.figures:
            growth = (figure.growth_text or "=") + "  GREW" * (figure in grown)
            rows.append([figure.name, *figure.texts, growth])
        names = ", ".join(figure.name for figure in grown)
        beyond = f" by more than {100 * self.allowed:g}%" if self.allowed else ""
        verdict = f"GREW{beyond}: {names}" if names else f"nothing grew{beyond}"
        lines = [
            f"against {self.earlier}",
            *indented_table(rows, left=(0, 3)),
            *self._by_line(),
            verdict,
        ]
        return "\n".join(fitted_lines(lines))

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
    """Return a percentage as a share. Raise `ArgumentError` for any other text.

    >>> parse_allowed("5%")
    0.05
    """
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / 100
        if text.endswith("%") and 0 <= share < inf:
            return share
    raise ArgumentError(f"--allow {text!r} is no percentage", hint="such as --allow 5%")


def read_report(path: str) -> Report:
    """Return the report in the file of a step, or in a file with the JSON of `--json`.

    Raises `ArtifactError` for a damaged file of a step, `ArgumentError` for a file without a
    report.
    """
    text = read_given(Path(path), "report.json", LIMITS["report.json"])
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    if not isinstance(found, dict) or not {"target", "collectives", "flops"} <= found.keys():
        raise ArgumentError(
            f"{path} has no report",
            hint="give the file of a step, step.gdx, or what graphdist-compile --json printed",
        )
    if "gathered" not in (found.get("parts") or ()):
        found["parts"] = None  # of version 0.2, which counted other parts
    try:
        return Report.from_json(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{path} has a report that lacks figures: {type(error).__name__}: {error}",
            hint="make the report again with this version of graphdist",
        ) from error


def compare_reports(path: str, earlier: Report, later: Report, allowed: float) -> Regression:
    """Return how a step's report differs from the earlier report, which was read from `path`.

    Raises `ArgumentError` for the report of another target.
    """
    if earlier.target != later.target:
        raise ArgumentError(
            f"{path} has the report of {earlier.target}, this is {later.target}",
            hint="compare steps for the same devices; --compare shows a step on several",
        )
    if earlier.is_compiled != later.is_compiled:
        how = {True: "compiled", False: "counted on its graph"}
        raise ArgumentError(
            f"{path} has the report of a step that was {how[earlier.is_compiled]}, this step is "
            f"{how[later.is_compiled]}",
            hint="give --quick for both, or for neither",
        )
    return Regression(path, allowed, tuple(_figures(earlier, later)), tuple(_lines(earlier, later)))


def _figures(*reports: Report) -> Iterator[ComparedFigure]:
    """Yield the totals of the earlier and of the later report."""
    totals = [Amount.of(each.collectives) for each in reports]
    yield ComparedFigure("peak memory", "bytes", *(each.needed_bytes for each in reports))
    yield ComparedFigure("FLOP", "count", *(each.total_flops for each in reports))
    yield ComparedFigure("memory traffic", "bytes", *(each.memory_traffic for each in reports))
    yield ComparedFigure("collectives", "count", *(total.runs for total in totals))
    yield ComparedFigure("bytes of collectives", "bytes", *(total.bytes for total in totals))
    times = [each.timeline for each in reports if each.timeline]
    # The prediction of a refused step is of its graph, and does not compare with a module's.
    are_alike = len(times) == len(reports) and len({each.is_compiled for each in times}) == 1
    for name in ("step", "compute", "exposed") if are_alike else ():
        yield ComparedFigure(f"{name} time", "seconds", *(getattr(each, name) for each in times))


def _lines(earlier: Report, later: Report) -> list[Line]:
    """Return the lines whose collectives changed, the line with the largest growth first."""
    before, after = _by_line(earlier), _by_line(later)
    lines = []
    for key in {**before, **after}:
        old, new = before[key], after[key]
        lines.append(Line((new or old)[0].place, key[1], Amount.of(old), Amount.of(new)))
    changed = [line for line in lines if line.before != line.after]
    return sorted(changed, key=lambda line: line.before.bytes - line.after.bytes)


def _by_line(report: Report) -> defaultdict[tuple[str, str], list[CollectiveUse]]:
    """Return the collectives of each line, by file and text of the line."""
    lines: defaultdict[tuple[str, str], list[CollectiveUse]] = defaultdict(list)
    for use in report.collectives:
        key = (use.place.rpartition(":")[0], use.code) if use.code else (use.place, "")
        lines[key].append(use)
    return lines
