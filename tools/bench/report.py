"""The output of the benchmark: tables for a terminal, and a JSON file.

The file has these fields of a run:

* `format`: 2;
* `target`: "2 CPU devices", or a topology's name; `replicas`: how many;
* `versions`: of the packages that took part, by name; `cores`: of the processor;
* `units`: "s" and "bytes" throughout;
* `measurements`: a list, one entry for each program and system, of `program`, `title`, `system`,
  `losses` (of the first steps), `results` (metrics after them), `step_seconds` (median),
  `quick_seconds` (of the quickest tenth), `turns` (each step's, a list for each round),
  `compile_seconds` (median; of systems outside JAX, the first step without a later one's time),
  `collectives` (of the compiled module, by kind, as often as they run), `num_collectives`,
  `moved_bytes` (a device sends in a step), `peak_bytes` (of a device). Unknown values are null;
* `bounds`: a list of `program`, `system`, `ratio` (of our time to the system's in the same round,
  the median), `bound`, `met`;
* `overheads`: a list of `name`, `ours`, `peer` (seconds) and `bound` (words);
* `passes`: a list of `pass`, `program`, `target`, `replicas`, and `with` and `without` it:
  `collectives`, `num_collectives`, `moved_bytes`, `peak_bytes`, `held_bytes` (of variables).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any  # Any: JSON

from graphdist.report.amounts import size_text, table, time_text
from graphdist.tools.bench.measurement import OURS, Measurement
from graphdist.tools.bench.overheads import Overhead
from graphdist.tools.bench.passes_saved import PassSaving
from graphdist.tools.bench.programs import BenchProgram
from graphdist.version import VERSION

_PACKAGES = ("jax", "jaxlib", "libtpu", "tensorflow", "tensorflow-cpu", "torch", "numpy")


@dataclass(frozen=True)
class Bound:
    """The ratio of our step's time to a system's, and the largest ratio that it may have."""

    program: str
    system: str
    ratio: float
    bound: float

    @property
    def met(self) -> bool:
        """Return whether the bound is kept."""
        return self.ratio <= self.bound

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.ratio:.2f}x {self.system}, at most {self.bound:g}x: {verdict}"


@dataclass
class Run:
    """All results of one run of the benchmark."""

    target: str
    replicas: int
    titles: dict[str, str] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    overheads: list[Overhead] = field(default_factory=list)
    passes: list[PassSaving] = field(default_factory=list)

    def add(self, program: BenchProgram, measurements: Sequence[Measurement]) -> list[Bound]:
        """Add the measurements of a program; return its ratios of times, each with its bound."""
        self.titles[program.name] = program.title
        self.measurements += measurements
        bounds = bounds_of(program, measurements)
        self.bounds += bounds
        return bounds

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON has it; see the module's docstring."""
        return {
            "format": 2,
            "target": self.target,
            "replicas": self.replicas,
            "versions": package_versions(),
            "cores": os.cpu_count(),
            "units": {"time": "s", "size": "bytes"},
            "measurements": [
                {**measurement.to_json(), "title": self.titles[measurement.program]}
                for measurement in self.measurements
            ],
            "bounds": [{**asdict(bound), "met": bound.met} for bound in self.bounds],
            "overheads": [overhead.to_json() for overhead in self.overheads],
            "passes": [effect.to_json() for effect in self.passes],
        }

    def write(self, path: Path) -> None:
        """Write the run as JSON."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that matter here, if they are installed."""
    installed = {"graphdist": VERSION}
    for name in _PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def bounds_of(program: BenchProgram, measurements: Sequence[Measurement]) -> list[Bound]:
    """Return the measured ratios beside the program's bounds."""
    by_system = {measurement.system: measurement for measurement in measurements}
    bounds = []
    for system, bound in program.bounds.items():
        if OURS in by_system and system in by_system:
            ratio = by_system[OURS].of(by_system[system])
            if ratio is not None:
                bounds.append(Bound(program.name, system, ratio, bound))
    return bounds


_HEADER = (
    "",
    "step",
    "ours is",
    "quickest tenth",
    "compile",
    "collectives",
    "moved",
    "peak per device",
)


def program_table(
    program: BenchProgram, measurements: Sequence[Measurement], bounds: Sequence[Bound]
) -> str:
    """Return the measurements of a program, one line per system."""
    ours = next((measurement for measurement in measurements if measurement.system == OURS), None)
    rows = [_HEADER, *(_row(measurement, ours) for measurement in measurements)]
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines = table(list(zip(*columns, strict=True)))
    if any(".." in line for line in lines):  # a terminal is too narrow for all, and numbers are cut
        columns = [column for column in columns if column[0] != "quickest tenth"]
        lines = table(list(zip(*columns, strict=True)))
    verdicts = [f"  {bound}" for bound in bounds]
    return "\n".join([f"{program.name}: {program.title}", *lines, *verdicts, ""])


def _row(measurement: Measurement, ours: Measurement | None) -> tuple[str, ...]:
    module = measurement.module
    ratio = None if ours is None or measurement is ours else ours.of(measurement)
    return (
        f"  {measurement.system}",
        "" if measurement.step_seconds is None else time_text(measurement.step_seconds),
        "" if ratio is None else f"{ratio:.2f}x",
        "" if measurement.quick_seconds is None else time_text(measurement.quick_seconds),
        "" if measurement.compile_seconds is None else time_text(measurement.compile_seconds),
        "" if module is None else f"{module.num_collectives:,}",
        "" if module is None else size_text(module.moved_bytes),
        "" if module is None else size_text(module.peak_bytes),
    )


_PASSES_HEADER = ("on", "collectives", "", "moved", "", "peak", "", "variables", "")


def passes_table(name: str, program: str, effects: Sequence[PassSaving]) -> str:
    """Return the effect of one pass on its program, one line per target."""
    rows = [_PASSES_HEADER]
    for effect in effects:
        before, after = effect.without, effect.with_it
        rows.append(
            (
                effect.target,
                _kinds(before.module.collectives),
                f"-> {_kinds(after.module.collectives)}",
                size_text(before.module.moved_bytes),
                f"-> {size_text(after.module.moved_bytes)}",
                size_text(before.module.peak_bytes),
                f"-> {size_text(after.module.peak_bytes)}",
                size_text(before.held_bytes),
                f"-> {size_text(after.held_bytes)}",
            )
        )
    return "\n".join([f"{name}: {program}", *(f"  {line}" for line in table(rows))])


def _kinds(collectives: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in collectives.items()) or "none"
