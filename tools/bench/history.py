"""Draw the figures of runs by commit, of a file with one line of JSON for each run.

    python -m graphdist.tools.bench.history            # draws docs/figures/benchmarks.svg
    python -m graphdist.tools.bench.history --check    # exits with 1 if it is not that picture

`graphdist.tools.bench` appends a line for each run. A line has

* `commit` and `is_modified`: the code that ran, and whether files differed from the commit; null
  in runs that were copied from the page of that commit;
* `date`; `machine`: `processor` ("" if unknown) and `cores`; `target`; `versions`;
* `programs`: by program and system `step_seconds`, `ratio` (of graphdist's time to the system's),
  `compile_seconds`, `moved_bytes`, `peak_bytes`, as far as they were measured;
* `overheads`: by name `ours` and `peer`, in seconds; `passes`: as in the JSON of a run.

The picture shows ratios, not seconds: machines differ, and the systems of a run share a machine.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.report.svg_document import svg_document
from graphdist.tools.bench.measurement import OURS, Measurement
from graphdist.tools.bench.programs import PROGRAMS
from graphdist.tools.bench.report import Run, package_versions
from graphdist.tools.console import CommandParser, console_tool

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "figures" / "benchmarks.jsonl"
PICTURE = FIGURES.with_suffix(".svg")
PEERS = ("shard_map", "tensorflow")
"""Systems whose ratios are drawn."""

Record = dict[str, Any]


def record_of(run: Run) -> Record:
    """Return the record of a run, as JSON has it."""
    return {
        **_commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {"processor": _processor(), "cores": os.cpu_count()},
        "target": run.target,
        "versions": package_versions(),
        "programs": _programs(run.measurements),
        "overheads": {
            overhead.name: {"ours": overhead.ours, "peer": overhead.peer}
            for overhead in run.overheads
        },
        "passes": [effect.to_json() for effect in run.passes],
    }


def _programs(measurements: Sequence[Measurement]) -> Record:
    ours = {
        measurement.program: measurement
        for measurement in measurements
        if measurement.system == OURS
    }
    programs: Record = {}
    for measurement in measurements:
        mine, module = ours.get(measurement.program), measurement.module
        figures = {
            "step_seconds": measurement.step_seconds,
            "ratio": mine.of(measurement) if mine and mine is not measurement else None,
            "compile_seconds": measurement.compile_seconds,
            "moved_bytes": module and module.moved_bytes,
            "peak_bytes": module and module.peak_bytes,
        }
        of_program = programs.setdefault(measurement.program, {})
        of_program[measurement.system] = {
            name: value for name, value in figures.items() if value is not None
        }
    return programs


def _commit() -> Record:
    return {"commit": _git("rev-parse", "HEAD"), "is_modified": bool(_git("status", "--porcelain"))}


def _git(*arguments: str) -> str:
    """Return the output of git for the checkout; "" if there is none."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor()


def append(path: Path, record: Record) -> None:
    """Add a run to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def recorded(path: Path) -> list[Record]:
    """Return the runs of a file, in order."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


WIDTH, _COLUMNS = 760, 4
_PANEL_WIDTH, _PANEL_HEIGHT, _TOP = 182, 150, 74
_LEFT, _RIGHT, _ABOVE, _BELOW = 34, 12, 24, 22
_COLOURS = {"shard_map": ("#4a6fa5", "#86a8e0"), "tensorflow": ("#d98e2b", "#f0ab4a")}
"""The colours of each system, in a light and in a dark theme, as in a run's picture."""


def drawing(records: Sequence[Record]) -> str:
    """Return the ratios of graphdist's time to the others' by run, as SVG: a panel per program."""
    timed = [record for record in records if any(_ratios(record, name) for name in PROGRAMS)]
    names = [name for name in PROGRAMS if any(_ratios(record, name) for record in timed)]
    rows = -(-len(names) // _COLUMNS)
    height = _TOP + rows * _PANEL_HEIGHT + 8
    title = "graphdist's time of a step over the others', by run"
    commits = [record["commit"][:7] for record in timed]
    runs = f"{len(commits)} runs, {commits[0]} to {commits[-1]}" if commits else "no runs"
    return svg_document(
        title,
        (WIDTH, height),
        _style(),
        [
            f'<text class="title" x="16" y="26">{escape(title)}</text>',
            *_legend(),
            f'<text class="note" x="16" y="64">{escape(runs)}; a line joins runs on the same '
            f"devices; below 1 graphdist is quicker</text>",
            *(line for i, name in enumerate(names) for line in _panel(name, timed, i)),
        ],
    )


def _ratios(record: Record, program: str) -> dict[str, float]:
    systems = record["programs"].get(program, {})
    return {name: systems[name]["ratio"] for name in PEERS if "ratio" in systems.get(name, {})}


def _legend() -> Iterator[str]:
    for i, system in enumerate(PEERS):
        x = 20 + 120 * i
        yield f'<circle class="{system}" cx="{x}" cy="42" r="4"/>'
        yield f'<text x="{x + 10}" y="46">over {escape(system)}</text>'


def _panel(program: str, records: Sequence[Record], index: int) -> Iterator[str]:
    left = 8 + (index % _COLUMNS) * (_PANEL_WIDTH + 4) + _LEFT
    top = _TOP + (index // _COLUMNS) * _PANEL_HEIGHT + _ABOVE
    width = _PANEL_WIDTH - _LEFT - _RIGHT
    height = _PANEL_HEIGHT - _ABOVE - _BELOW
    ratios = [_ratios(record, program) for record in records]
    most = max(1.2, *(value for of_run in ratios for value in of_run.values()))
    xs = [left + width * (i + 0.5) / len(records) for i in range(len(records))]

    def y_of(value: float) -> float:
        return top + height * (1 - value / most)

    yield f'<text class="panel" x="{left}" y="{top - 8}">{escape(program)}</text>'
    for value in (0.0, 1.0):
        y = y_of(value)
        yield f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="axis" x="{left - 6}" y="{y + 4:.1f}">{value:g}</text>'
    for system in PEERS:
        points = [
            (x, y_of(of_run[system]), (record["machine"], record["target"]), of_run[system])
            for x, of_run, record in zip(xs, ratios, records, strict=True)
            if system in of_run
        ]
        for (x, y, where, _), (next_x, next_y, next_where, _) in pairwise(points):
            if where == next_where:
                yield f'<path class="{system}" d="M{x:.1f} {y:.1f}L{next_x:.1f} {next_y:.1f}"/>'
        for x, y, _, value in points:
            yield f'<circle class="{system}" cx="{x:.1f}" cy="{y:.1f}" r="3">'
            yield f"<title>{value:.2f} of {escape(system)}</title></circle>"


def _style() -> str:
    def colours(index: int) -> str:
        return "".join(
            f".{name}{{fill:{pair[index]};stroke:{pair[index]}}}" for name, pair in _COLOURS.items()
        )

    return (
        "text{font:12px system-ui,sans-serif;fill:#1c2430}.page{fill:#fff}line{stroke:#c9d1db}"
        ".title{font-size:16px;font-weight:600}.panel{font-weight:600}.axis{text-anchor:end}"
        f".note,.axis{{fill:#5a6675}}path{{stroke-width:1.5}}{colours(0)}"
        "@media(prefers-color-scheme:dark){text{fill:#e6ebf2}.page{fill:#12161c}"
        f"line{{stroke:#38424f}}.note,.axis{{fill:#9aa7b8}}{colours(1)}}}"
    )


@console_tool("history")
def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the picture, or compare it with the one that is there."""
    parser = CommandParser(__doc__)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the file of the runs")
    parser.add_argument("--svg", type=Path, default=PICTURE, help="the file of the picture")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args(arguments)
    if not options.figures.is_file():
        print(f"{options.figures} is not there: run this from a checkout", file=sys.stderr)
        return 2
    drawn = drawing(recorded(options.figures))
    if options.check:
        return 0 if options.svg.is_file() and options.svg.read_text("utf-8") == drawn else 1
    options.svg.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
