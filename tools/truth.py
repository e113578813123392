"""`python -m graphdist.tools.truth`: predicted steps against published training runs.

    python -m graphdist.tools.truth                      # all rows, compiled one after the other
    python -m graphdist.tools.truth --row 1 --row 13     # some
    python -m graphdist.tools.truth --modules modules    # keep compiled modules, and use them again

The table is `tests/truth/published.json` of a checkout. A row is compiled ahead of time as a step
of `examples/aot_transformer.py`, and its timeline is laid out. The constants (`ChipTiming`) are
fitted to the rows of other families than the row that is judged.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any  # Any: JSON, users' steps

import numpy as np

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.program.step_timeline import kernels_of
from graphdist.runtime.scheduled_module import ScheduledModule
from graphdist.runtime.targets.chip_timing import ChipTiming
from graphdist.runtime.targets.durations import ChipDurations, KernelFlops
from graphdist.runtime.targets.lanes import laid_out
from graphdist.runtime.targets.topologies import find_topology
from graphdist.strategies.tpu import TPUStrategy
from graphdist.tools.targets import prepare_command

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path("tests/truth/published.json")
EXAMPLE = Path("examples/aot_transformer.py")
SLOWDOWNS = np.arange(0.6, 1.31, 0.05)
KERNEL_SHARES = (0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
LINK_SHARES = (0.5, 0.65, 0.8, 1.0)


@dataclass(frozen=True)
class PublishedRun:
    """A row of the table: `rows` of `length` tokens on a chip took `seconds` a step."""

    row: int
    family: str
    model: str
    topology: str
    rows: int
    length: int
    seconds: float
    source: str
    recompute: str
    microbatches: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    not_expressed: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        """Return model, hardware and batch in words."""
        return f"{self.model}, {self.topology}, {self.rows} x {self.length}"


@dataclass(frozen=True)
class CompiledRun:
    """A run's compiled module, and the operations of its kernels."""

    run: PublishedRun
    module: ScheduledModule
    kernels: KernelFlops

    def seconds(self, timing: ChipTiming) -> float:
        """Return the predicted seconds with these constants and the chip's clock."""
        topology = find_topology(self.run.topology)
        return laid_out(self.module, ChipDurations(topology, timing, self.kernels)).seconds


@dataclass(frozen=True)
class Judged:
    """A row with its prediction, by constants that its family has no part in."""

    run: PublishedRun
    predicted: float
    constants: ChipTiming

    @property
    def error(self) -> float:
        """Return the relative error: above 0 if the prediction is too long."""
        return self.predicted / self.run.seconds - 1


def read_table(path: Path) -> tuple[PublishedRun, ...]:
    """Return the rows of a table; raises `ArgumentError` if there is none."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise ArgumentError(
            f"{path} is no table of published runs: {error}",
            hint="run the command in a checkout, or name a table with --table",
        ) from error
    return tuple(PublishedRun(**row) for row in rows)


def compiled_run(run: PublishedRun, folder: Path | None) -> CompiledRun:
    """Return a run compiled ahead of time, from the folder if it is there."""
    kept = None if folder is None else folder / f"row{run.row}.json.gz"
    if kept is not None and kept.exists():
        read = json.loads(gzip.decompress(kept.read_bytes()))
        return CompiledRun(run, ScheduledModule(read["module"]), _kernels(read["kernels"]))
    text, kernels = _compile(run)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        listed = [[[list(array) for array in key], list(cost)] for key, cost in kernels.items()]
        kept.write_bytes(gzip.compress(json.dumps({"module": text, "kernels": listed}).encode()))
    return CompiledRun(run, ScheduledModule(text), kernels)


def _kernels(listed: Any) -> KernelFlops:
    return {
        tuple((dtype, tuple(sizes)) for dtype, sizes in key): (str(cost[0]), int(cost[1]))
        for key, cost in listed
    }


def _compile(run: PublishedRun) -> tuple[str, KernelFlops]:
    spec = importlib.util.spec_from_file_location("published_model", ROOT / EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    spec.loader.exec_module(example)
    strategy = TPUStrategy(topology=run.topology, shard_parameters=True)
    devices = find_topology(run.topology).chip.devices
    step, arguments = example.make_step(
        strategy,
        size=run.model,
        batch=run.rows // devices,
        length=run.length,
        **run.settings,
    )
    lowered = step.trace(*arguments).lower()
    compiled = lowered.compile(run.options or None)
    return compiled.as_text("hlo"), kernels_of(lowered.graph)


def judged(runs: Sequence[CompiledRun]) -> Iterator[Judged]:
    """Yield each run with its prediction, by constants fitted to the other families."""
    surfaces = {compiled.run.row: _surface(compiled) for compiled in runs}
    for compiled in runs:
        others = [
            (surfaces[other.run.row], other.run.seconds)
            for other in runs
            if other.run.family != compiled.run.family
        ]
        constants = fitted(others) if others else ChipTiming()
        yield Judged(compiled.run, compiled.seconds(constants), constants)


_Constants = tuple[float, float, float]


def _surface(compiled: CompiledRun) -> dict[_Constants, float]:
    """Return the predicted seconds by slowdown, share of kernels and share of links."""
    found = {}
    for kernel, link in product(KERNEL_SHARES, LINK_SHARES):
        ends = (SLOWDOWNS[0], SLOWDOWNS[-1])
        seconds = [compiled.seconds(ChipTiming(end, kernel, link)) for end in ends]
        # Between the ends what hides communication changes little: a line is near enough.
        for slowdown in SLOWDOWNS:
            found[float(slowdown), kernel, link] = float(np.interp(slowdown, ends, seconds))
    return found


def fitted(rows: Sequence[tuple[Mapping[_Constants, float], float]]) -> ChipTiming:
    """Return the constants with the smallest mean relative error over rows."""

    def error(constants: _Constants) -> float:
        return float(np.mean([abs(surface[constants] / took - 1) for surface, took in rows]))

    best = min(rows[0][0], key=error)
    return ChipTiming(*best, source=f"fitted to {len(rows)} published runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = _parser().parse_args(arguments)
    prepare_command()
    try:
        chosen = _chosen(options, read_table(options.table or ROOT / TABLE))
        runs = []
        for run in chosen:
            if run.not_expressed:
                print(f"row {run.row}, {run.title}: not predicted, it takes {run.not_expressed}")
                continue
            try:
                runs.append(compiled_run(run, options.modules))
            except GraphdistError as error:
                print(f"row {run.row}, {run.title}: not predicted: {error.what}")
        found = list(judged(runs))
    except GraphdistError as error:
        print(f"truth: {error}", file=sys.stderr)
        return 2
    _print(found, as_json=options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m graphdist.tools.truth",
        description="Predicted steps against published training runs.",
    )
    found.add_argument("--row", type=int, action="append", default=[], help="a row, by number")
    found.add_argument("--family", action="append", default=[], help="the rows of a family")
    found.add_argument("--table", type=Path, help=f"another table than {TABLE}")
    found.add_argument("--modules", type=Path, help="a folder that keeps compiled modules")
    found.add_argument("--json", action="store_true", help="print JSON")
    return found


def _chosen(options: argparse.Namespace, runs: Sequence[PublishedRun]) -> tuple[PublishedRun, ...]:
    known = {run.row for run in runs}, {run.family for run in runs}
    for asked, names in ((options.row, known[0]), (options.family, known[1])):
        unknown = sorted(set(asked) - names)
        if unknown:
            there = ", ".join(map(str, sorted(names)))
            raise ArgumentError(f"the table has no {unknown[0]}", hint=f"it has {there}")
    if not options.row and not options.family:
        return tuple(runs)
    return tuple(run for run in runs if run.row in options.row or run.family in options.family)


def _print(found: Sequence[Judged], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {"row": each.run.row, "measured": each.run.seconds, "predicted": each.predicted}
            for each in found
        ]
        print(json.dumps(rows, indent=1))
        return
    for each in found:
        print(
            f"{each.run.row:>3}  {each.run.title:<40} {each.run.seconds:8.3f} s measured "
            f"{each.predicted:8.3f} s predicted  {each.error:+.1%}"
        )
    if found:
        errors = sorted(abs(each.error) for each in found)
        ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
        print(f"median error {median(errors):.1%}, 90th percentile {ninth:.1%}")


if __name__ == "__main__":
    sys.exit(main())
