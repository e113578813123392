"""`graphdist-compile`: compile a step for accelerators that are not here, and say what it will do.

    graphdist-compile examples/aot_transformer.py:make_step --topology v5e:16x16 -o step.gdx

The target is a factory of a step: see `graphdist.tools.targets`. The output is a page: whether the
step fits, what it computes and moves, and an estimate of its time. The exit status is 0 if it fits,
3 if it does not, 2 for invalid input.

`--fit batch=1..64` finds the largest value of a setting with which the step fits. `--compare`
compares topologies, `--scale` counts of chips. `--list-topologies` prints the known topologies,
`--list-variables step.gdx` the variables of the step in a file.
`--timeline step.json` writes the predicted timeline as a trace for Perfetto.
`--against old.gdx --allow 5%` compares the step with an earlier report of it, and exits with 4 if
it grew by more. Ctrl-C ends the command at once, with status 130.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any  # Any: users' settings, JSON

from graphdist import aot
from graphdist.aot.saving import require_replaceable, require_writable
from graphdist.errors import ArgumentError, DeviceMemoryError
from graphdist.program.stages import Compiled, Lowered
from graphdist.report.step_report import Report, report_of_refused
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tools.comparisons import Reporter, Survey, compare_sizes, compare_topologies
from graphdist.tools.compilation import (
    COMPILATION,
    StepOptions,
    add_compilation_options,
    chosen_for,
    lower_target,
)
from graphdist.tools.console import console_tool
from graphdist.tools.given_options import given_options, refuse_unused, require_with, written
from graphdist.tools.interrupts import ending_at_interrupts
from graphdist.tools.listings import topology_table, variable_table
from graphdist.tools.regression import (
    Regression,
    compare_reports,
    parse_allowed,
    read_report,
)
from graphdist.tools.targets import prepare_command

FITS, DOES_NOT_FIT, GREW = 0, 3, 4

_TABLE = ("target", *COMPILATION, "json", "quiet")
_USES = {
    "list_topologies": ("json",),
    "list_variables": ("json",),
    "compare": _TABLE,
    "scale": (*_TABLE, "topology"),
    "fit": (*(name for name in _TABLE if name != "args"), "topology"),
}
"""The modes in which the command does not compile one step, and the options that each uses."""


@console_tool("graphdist-compile")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = command_line().parse_args(arguments)
    prepare_command()
    _refuse_unused_options(options)
    if options.list_topologies:
        print(topology_table(as_json=options.json))
        return FITS
    if options.list_variables is not None:
        print(variable_table(options.list_variables, as_json=options.json))
        return FITS
    if options.target is None:
        raise ArgumentError(
            "no target is given", hint="name one: examples/train_digits.py:make_step"
        )
    if options.output is not None:
        require_replaceable(options.output)  # before compiling, which may take minutes
    if options.timeline is not None:
        require_writable(options.timeline)
    step = StepOptions.of(options)
    reporter = partial(_report, options, step)
    if options.compare is not None:
        names = options.compare.split(",")
        return _print(options, compare_topologies(names, options.num_slices, reporter))
    if options.topology is None:
        raise ArgumentError(
            "no topology is given", hint="such as --topology v5e:16x16; --list-topologies has all"
        )
    if options.scale is not None:
        chip, sizes = find_topology(options.topology).chip, options.scale.split(",")
        return _print(options, compare_sizes(chip, sizes, options.num_slices, reporter))
    topology = find_topology(options.topology, options.num_slices)
    if options.fit is not None:
        return _print(options, find_largest(options.fit, topology, reporter, step.settings))
    return _compile(options, step, topology)


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="graphdist-compile",
        description="Compile a step for accelerators that are not here, and say what it will do.",
    )
    add = parser.add_argument
    add("target", nargs="?", help="file.py:make_step or module:make_step")
    add("--topology", help="such as v5e:16x16 (TPU chips) or h100:8x8 (hosts x GPUs)")
    add("-o", "--output", help="write the compiled step to this file, by custom name.gdx")
    add("--platforms", help="the platforms of the file's portable module, such as tpu,cpu")
    add_compilation_options(parser)
    add("--fit", metavar="NAME=LOW..HIGH", help="find the largest value that fits")
    add("--compare", metavar="A,B,..", help="a table over topologies")
    add("--scale", metavar="N,M,..", help="a table over counts of chips of the topology's kind")
    add("--against", metavar="FILE", help="compare with the report in step.gdx, or of --json")
    add("--allow", metavar="N%", help="how much the step may grow (default: 0%%)")
    add("--list-variables", metavar="step.gdx", help="print the variables of the step in a file")
    add("--list-topologies", action="store_true", help="print the table of topologies")
    add("--timeline", metavar="FILE", help="write the predicted timeline, which Perfetto shows")
    add("--json", action="store_true", help="print JSON")
    add("--quiet", action="store_true", help="print nothing; the exit status tells")
    return parser


def _refuse_unused_options(options: argparse.Namespace) -> None:
    given = given_options(command_line(), options)
    for mode, uses in _USES.items():
        if mode in given:
            refuse_unused(given, written(mode), (mode, *uses))
    require_with(given, "platforms", "output")
    require_with(given, "allow", "against")
    if "quiet" in given:
        refuse_unused(given & {"json"}, "--quiet", ())


def _print(options: argparse.Namespace, survey: Survey) -> int:
    if not options.quiet:
        print(json.dumps(survey.to_json(), indent=1) if options.json else survey)
    return FITS if survey.fits else DOES_NOT_FIT


def _compile(options: argparse.Namespace, step: StepOptions, topology: Topology) -> int:
    # Read first: the earlier step may be in the file that this one is written to.
    earlier = read_report(options.against) if options.against is not None else None
    allowed = 0.0 if options.allow is None else parse_allowed(options.allow)
    compiled, report = _compiled(options, step, topology)
    regression = None
    if earlier is not None:
        regression = compare_reports(options.against, earlier, report, allowed)
    if not options.quiet:  # before the file, which may fail
        _print_report(options, report, regression)
    if options.output is not None:
        _write(options, compiled)
    if options.timeline is not None:
        _write_timeline(options, report)
    if not report.fits:
        return DOES_NOT_FIT
    return GREW if regression and regression.grown else FITS


def _print_report(
    options: argparse.Namespace, report: Report, regression: Regression | None
) -> None:
    if options.json:
        compared = {"against": regression.to_json()} if regression else {}
        print(json.dumps({**report.to_json(), **compared}, indent=1), flush=True)
    else:
        print(report, *(["", regression] if regression else []), sep="\n", flush=True)


def _write(options: argparse.Namespace, compiled: Compiled | None) -> None:
    if compiled is not None:
        platforms = None if options.platforms is None else options.platforms.split(",")
        aot.save(options.output, compiled, platforms=platforms)
    _say_written(options, options.output, compiled is not None)


def _write_timeline(options: argparse.Namespace, report: Report) -> None:
    if report.timeline is not None:
        trace = trace_of(report.timeline, report.name)
        Path(options.timeline).write_text(json.dumps(trace), encoding="utf-8")
    elif not report.refusal:
        why = report.no_timeline
        raise ArgumentError(f"there is no timeline to write to {options.timeline}: {why}")
    opened = "; open it in https://ui.perfetto.dev"
    _say_written(options, options.timeline, report.timeline is not None, opened)


def _say_written(options: argparse.Namespace, path: str, is_written: bool, more: str = "") -> None:
    if not options.quiet and not options.json:
        print(f"written: {path}{more}" if is_written else f"not written: {path}")


def _report(
    options: argparse.Namespace, step: StepOptions, topology: Topology, **changed: Any
) -> Report:
    """Return the report for a topology, with some settings changed."""
    return _compiled(options, step, topology, **changed)[1]


def _compiled(
    options: argparse.Namespace, step: StepOptions, topology: Topology, **changed: Any
) -> tuple[Compiled | None, Report]:
    """Return the compiled step, if it fits the compiler's limits, and its report."""
    values = ", ".join(f"{name}={value}" for name, value in changed.items())
    _progress(options, f"compiling for {topology}{' with ' if values else ''}{values}")
    with ending_at_interrupts("graphdist-compile"):
        step = replace(step, settings={**step.settings, **changed})
        chosen = chosen_for(topology, options.shard_parameters)
        try:
            lowered = lower_target(options.target, chosen, step)
            return _compiled_or_refused(lowered, step)
        finally:
            _progress(options, "")


def _compiled_or_refused(lowered: Lowered, step: StepOptions) -> tuple[Compiled | None, Report]:
    try:
        compiled = lowered.compile(step.compiler)
    except DeviceMemoryError as error:
        return None, report_of_refused(lowered.graph, lowered.devices, error)
    return compiled, compiled.report()


def _progress(options: argparse.Namespace, text: str) -> None:
    """Show the progress in a line of the terminal, which the next output replaces."""
    if sys.stderr.isatty() and not options.quiet:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


_RANGE = re.compile(r"(\w+)=(\d{1,18})\.\.(\d{1,18})")


def find_largest(
    text: str, topology: Topology, report: Reporter, settings: Collection[str] = ()
) -> Survey:
    """Return a survey that finds the largest value of a setting with which the step fits.

    It bisects: a step that fits with a value is assumed to fit with every smaller one. `settings`
    are the names that have values already.
    """
    match = _RANGE.fullmatch(text)
    if match is None or int(match[2]) > int(match[3]) or int(match[2]) < 1:
        raise ArgumentError(
            f"{text!r} is not of the form name=low..high", hint="such as batch=1..64"
        )
    name, low, high = match[1], int(match[2]), int(match[3])
    if name in settings:
        raise ArgumentError(f"--fit and --set both give {name}: leave one of them out")
    tried: dict[int, Report] = {}

    def fits(value: int) -> bool:
        tried[value] = report(topology, **{name: value})
        return tried[value].fits

    best = 0
    if fits(low):
        best = low
        if high > low and fits(high):
            best = low = high
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                best = low = middle
            else:
                high = middle
    verdict = f"largest that fits: {name}={best}" if best else f"not even {name}={low} fits"
    reports = tuple((f"{name}={value}", tried[value]) for value in sorted(tried))
    return Survey(f"{name} on {topology}", reports, bool(best), verdict)


if __name__ == "__main__":
    sys.exit(main())
