"""`python -m graphdist.tools.truth`: compare predicted steps with published training runs.

    python -m graphdist.tools.truth                      # all rows
    python -m graphdist.tools.truth --kept               # those whose modules are kept: seconds
    python -m graphdist.tools.truth --row 1 --row 13     # some
    python -m graphdist.tools.truth --row 1 --again      # compiled again: this takes minutes
    python -m graphdist.tools.truth --write docs
    python -m graphdist.tools.truth --kept --graphs      # graphs beside compiled modules

For each row, the slowdown of its chip is fitted to the rows of all other families. Rows for GPUs
are compiled if the CUDA plugin of JAX is installed, rows for TPUs if libtpu is.

A chip has one fitted constant, the slowdown of its computation. It is a mean of logarithms that is
drawn towards the other chips, since runs are few, and the runs of a family agree with each other
more than with other families. A family counts as one observation of its chip, a chip as one of its
platform, and each mean has one more observation: for a chip the mean of its platform's other chips,
for a platform a slowdown of 1. That is the posterior mean of a normal model with equal variances at
each level (Gelman and Hill 2007, Data analysis using regression and multilevel models, chapter 12).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.chips import CHIPS
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.given_options import given_options, refuse_unused
from graphdist.tools.targets import prepare_command
from graphdist.tools.truth.graphs import Counted, counted, graphs_table
from graphdist.tools.truth.page import Judged, errors_line, write_page, write_table
from graphdist.tools.truth.runs import (
    MODULES,
    ROOT,
    TABLE,
    CompiledRun,
    PublishedRun,
    compiled_run,
    kept_run,
    read_table,
)


def judged(runs: Sequence[CompiledRun]) -> list[Judged]:
    """Return each run with its prediction, with a slowdown fitted without the run's family."""
    observed = [_observed(compiled) for compiled in runs]
    results = []
    for compiled in runs:
        run = compiled.run
        others = [each for each in observed if each.family != run.family]
        slowdown = slowdown_of(run.chip.name, run.chip.platform, others)
        timing = replace(TIMINGS[run.chip.name], slowdown=slowdown)
        unfitted = replace(timing, slowdown=1.0)
        results.append(Judged(run, compiled.seconds(timing), compiled.seconds(unfitted), slowdown))
    return results


def fitted(runs: Sequence[CompiledRun]) -> dict[str, float]:
    """Return the slowdown of each chip, fitted to all runs; also of chips without runs."""
    observed = [_observed(compiled) for compiled in runs]
    return {chip: slowdown_of(chip, CHIPS[chip].platform, observed) for chip in TIMINGS}


def _observed(compiled: CompiledRun) -> Observed:
    run = compiled.run
    timing = TIMINGS[run.chip.name]
    low, high = (compiled.seconds(replace(timing, slowdown=end)) for end in ENDS)
    slowdown = slowdown_at(run.seconds, (low, high))
    return Observed(run.family, run.chip.name, run.chip.platform, slowdown)


@console_tool("truth")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = command_line().parse_args(arguments)
    prepare_command()
    _refuse_unused_options(options)
    runs = list(_compiled(options))
    if options.graphs:
        return _compare_with_graphs(options, list(counted(runs)))
    results = judged(runs)
    if options.write is not None:
        write_page(options.write, results)
    _print(results, fitted(runs), as_json=options.json)
    return 0


def _compare_with_graphs(options: argparse.Namespace, results: Sequence[Counted]) -> int:
    if options.write is not None:
        write_table(options.write, "graphs", graphs_table(results))
    if options.json:
        rows = {each.run.row: [each.compiled, each.counted] for each in results}
        print(json.dumps(rows, indent=1))
    elif results:
        print(*graphs_table(results), sep="\n")
    return 0


def _compiled(options: argparse.Namespace) -> Iterator[CompiledRun]:
    """Yield the runs that are asked for; print why others cannot be predicted."""
    # The default folder has the modules of the default table alone.
    modules = options.modules or (None if options.table else ROOT / MODULES)
    for run in _chosen(options, read_table(options.table or ROOT / TABLE)):
        if run.not_expressed:
            _say_not_predicted(run, f"it takes {run.not_expressed}")
            continue
        try:
            compiled = _kept_or_compiled(options, run, modules)
        except GraphdistError as error:
            _say_not_predicted(run, error.what)
            continue
        if compiled is None:
            _say_not_predicted(run, "its module is not kept")
        else:
            yield compiled


def _kept_or_compiled(
    options: argparse.Namespace, run: PublishedRun, modules: Path | None
) -> CompiledRun | None:
    if options.kept:
        return None if modules is None else kept_run(run, modules)
    return compiled_run(run, modules, again=options.again)


def _say_not_predicted(run: PublishedRun, why: str) -> None:
    print(f"row {run.row}, {run.title}: not predicted: {why}", file=sys.stderr)


def _refuse_unused_options(options: argparse.Namespace) -> None:
    given = given_options(command_line(), options)
    if options.kept:
        refuse_unused(given & {"again"}, "--kept", ())
    if options.table is not None and options.modules is None:
        for name in sorted(given & {"kept", "again"}):
            raise ArgumentError(
                f"--{name} needs kept modules, and --table {options.table} has none: name "
                f"their folder with --modules, or leave one of them out"
            )


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("--row", type=int, action="append", default=[], help="a row, by number")
    add("--family", action="append", default=[], help="the rows of a family")
    add("--table", type=Path, help=f"another table than {TABLE}")
    add("--modules", type=Path, help=f"a folder that keeps compiled modules, if not {MODULES}")
    add("--kept", action="store_true", help="only rows whose modules are kept")
    add("--again", action="store_true", help="compile rows whose modules are kept")
    add("--graphs", action="store_true", help="compare with predictions from the graphs alone")
    add("--write", type=Path, help="the folder of the page with the predictions")
    add("--json", action="store_true", help="print JSON")
    return parser


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


def _print(results: Sequence[Judged], slowdowns: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "row": each.run.row,
                "measured": each.run.seconds,
                "predicted": each.predicted,
                "unfitted": each.unfitted,
            }
            for each in results
        ]
        print(json.dumps({"rows": rows, "slowdowns": slowdowns}, indent=1))
        return
    for each in results:
        print(
            f"{each.run.row:>3}  {each.run.title:<40} {each.run.seconds:8.3f} s measured "
            f"{each.predicted:8.3f} s predicted  {each.error:+.1%}"
        )
    if results:
        print(errors_line(results))
        print("slowdowns: " + ", ".join(f"{chip} {by:.3f}" for chip, by in slowdowns.items()))


ENDS = 0.7, 1.3


class Observed(NamedTuple):
    """The slowdown with which the prediction of a run equals its measurement."""

    family: str
    chip: str
    platform: str
    slowdown: float


def slowdown_at(measured: float, ends: tuple[float, float]) -> float:
    """Return the slowdown that gives a step's measured seconds.

    `ends` are the predicted seconds with slowdowns of 0.7 and 1.3. Between these slowdowns the
    overlap of communication changes little, so linear interpolation is exact enough.

    >>> round(slowdown_at(3.0, ends=(1.7, 2.3)), 6)
    2.0
    """
    low, high = ends
    slope = (high - low) / (ENDS[1] - ENDS[0])
    return max(ENDS[0] + (measured - low) / slope, 0.1)


def slowdown_of(chip: str, platform: str, observed: Iterable[Observed]) -> float:
    """Return the slowdown that is expected of a chip.

    >>> observed = [Observed("a", "v5e", "tpu", 0.8), Observed("b", "v6e", "tpu", 0.8)]
    >>> round(slowdown_of("v6e", "tpu", observed), 3), round(slowdown_of("v4", "tpu", observed), 3)
    (0.846, 0.862)
    >>> slowdown_of("h100", "gpu", observed)
    1.0
    """
    chips = _by_chip(each for each in observed if each.platform == platform)
    others = [fmean(families.values()) for name, families in chips.items() if name != chip]
    return exp(_drawn_to(_drawn_to(0.0, others), list(chips.get(chip, {}).values())))


def _drawn_to(expected: float, observed: Sequence[float]) -> float:
    return fmean([expected, *observed])


def _by_chip(observed: Iterable[Observed]) -> Mapping[str, Mapping[str, float]]:
    """Return the mean logarithm of each family, by chip."""
    logs: dict[str, dict[str, list[float]]] = {}
    for each in observed:
        logs.setdefault(each.chip, {}).setdefault(each.family, []).append(log(each.slowdown))
    return {
        chip: {family: fmean(values) for family, values in families.items()}
        for chip, families in logs.items()
    }
