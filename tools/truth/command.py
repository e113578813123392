"""`python -m graphdist.tools.truth`: predicted steps against published training runs.

    python -m graphdist.tools.truth                      # all rows
    python -m graphdist.tools.truth --kept               # those whose modules are kept: seconds
    python -m graphdist.tools.truth --row 1 --row 13     # some
    python -m graphdist.tools.truth --row 1 --again      # compiled again: this takes minutes
    python -m graphdist.tools.truth --write docs

The slowdown of a chip (`fit.py`) is fitted to the rows of other families than the row that is
judged. Rows for GPUs are compiled where the CUDA plugin of JAX is installed, rows for TPUs where
libtpu is.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.runtime.targets.chip_timing import TIMINGS
from graphdist.runtime.targets.chips import CHIPS
from graphdist.tools.console import console_tool
from graphdist.tools.given_options import given_options, refuse_unused
from graphdist.tools.targets import prepare_command
from graphdist.tools.truth.fit import ENDS, Observed, slowdown_at, slowdown_of
from graphdist.tools.truth.page import Judged, errors_line, write_page
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
    """Return each run with its prediction, by a slowdown that its family has no part in."""
    observed = [_observed(compiled) for compiled in runs]
    found = []
    for compiled in runs:
        run = compiled.run
        others = [each for each in observed if each.family != run.family]
        slowdown = slowdown_of(run.chip.name, run.chip.platform, others)
        timing = replace(TIMINGS[run.chip.name], slowdown=slowdown)
        unfitted = replace(timing, slowdown=1.0)
        found.append(Judged(run, compiled.seconds(timing), compiled.seconds(unfitted), slowdown))
    return found


def fitted(runs: Sequence[CompiledRun]) -> dict[str, float]:
    """Return the slowdown of each chip by all runs, also of chips that have none."""
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
    found = judged(runs)
    if options.write is not None:
        write_page(options.write, found)
    _print(found, fitted(runs), as_json=options.json)
    return 0


def _compiled(options: argparse.Namespace) -> Iterator[CompiledRun]:
    """Yield the runs that are asked for, and say of those that cannot be predicted why."""
    # A row of another table is not the row of this number in ours.
    modules = options.modules or (None if options.table else ROOT / MODULES)
    for run in _chosen(options, read_table(options.table or ROOT / TABLE)):
        if run.not_expressed:
            _say_not_predicted(run, f"it takes {run.not_expressed}")
            continue
        try:
            found = _found(options, run, modules)
        except GraphdistError as error:
            _say_not_predicted(run, error.what)
            continue
        if found is None:
            _say_not_predicted(run, "its module is not kept")
        else:
            yield found


def _found(
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
                f"--{name} is of kept modules, and there are none of --table {options.table}: name "
                f"their folder with --modules, or leave one of them out"
            )


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m graphdist.tools.truth",
        description="Predicted steps against published training runs.",
    )
    found.add_argument("--row", type=int, action="append", default=[], help="a row, by number")
    found.add_argument("--family", action="append", default=[], help="the rows of a family")
    found.add_argument("--table", type=Path, help=f"another table than {TABLE}")
    found.add_argument(
        "--modules", type=Path, help=f"a folder that keeps compiled modules, if not {MODULES}"
    )
    found.add_argument("--kept", action="store_true", help="compile none: rows that are kept")
    found.add_argument("--again", action="store_true", help="compile rows whose modules are kept")
    found.add_argument("--write", type=Path, help="the folder of the page with the predictions")
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


def _print(found: Sequence[Judged], slowdowns: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "row": each.run.row,
                "measured": each.run.seconds,
                "predicted": each.predicted,
                "unfitted": each.unfitted,
            }
            for each in found
        ]
        print(json.dumps({"rows": rows, "slowdowns": slowdowns}, indent=1))
        return
    for each in found:
        print(
            f"{each.run.row:>3}  {each.run.title:<40} {each.run.seconds:8.3f} s measured "
            f"{each.predicted:8.3f} s predicted  {each.error:+.1%}"
        )
    if found:
        print(errors_line(found))
        print("slowdowns: " + ", ".join(f"{chip} {by:.3f}" for chip, by in slowdowns.items()))
