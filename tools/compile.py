"""`graphdist-compile`: compile a step for accelerators that are not here, and say what it will do.

    graphdist-compile examples/aot_transformer.py:make_step --topology v5e:16x16 -o step.gdx
    graphdist-compile train.py:make_step --topology v5e:4x4 --fit batch=1..64
    graphdist-compile train.py:make_step --topology v5e:4x4 --against old.gdx --allow 5%

The target is a factory of a step: see `graphdist.tools.targets`. The output is a page: whether the
step fits, what it computes and moves, and an estimate of its time. The exit status is 0 if it fits,
3 if it does not, 2 for invalid input.

`--fit batch=1..64` finds the largest value of a setting with which the step fits. `--compare`
compares topologies, `--scale` counts of chips. `--list-topologies` prints the known topologies,
`--list-variables step.gdx` the variables of the step in a file.
`--timeline step.json` writes the predicted timeline as a trace for Perfetto. `--quick` compiles
nothing: memory and time are counted on the graph, in seconds.
`--find-plan plan.json` finds how to run the step within the memory of a device, or `--memory`, and
`--plan plan.json` compiles the step so.
`--against old.gdx --allow 5%` compares the step with an earlier report, and exits with 4 if the
step grew by more. Ctrl-C ends the command at once, with status 130.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any  # Any: users' settings, JSON

from graphdist import aot
from graphdist.aot.saving import require_replaceable, require_writable
from graphdist.errors import ArgumentError, DeviceMemoryError
from graphdist.planning.found_plan import FoundPlan
from graphdist.planning.plan_function import DEFAULT_COMPILATIONS
from graphdist.program.stages import Compiled
from graphdist.report.amounts import fitted_lines
from graphdist.report.step_report import Report
from graphdist.report.timeline_trace import trace_of
from graphdist.runtime.files.artifact import replace_file
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.tools.comparisons import Survey, compare_topologies, find_largest, topology_of
from graphdist.tools.compilation import (
    COMPILATION,
    StepOptions,
    add_compilation_options,
    chosen_for,
    lower_target,
)
from graphdist.tools.console import CommandParser, console_tool, print_report
from graphdist.tools.find_plan import (
    STRATEGY_OPTIONS,
    PlanOptions,
    find_plan,
    parse_size,
    parse_varied,
)
from graphdist.tools.given_options import given_options, refuse_unused, require_with, written
from graphdist.tools.interrupts import ending_at_interrupts
from graphdist.tools.listings import topology_table, variable_table
from graphdist.tools.regression import compare_reports, parse_allowed, read_report
from graphdist.tools.targets import prepare_command, refuse_artifact

FITS, DOES_NOT_FIT, GREW = 0, 3, 4

_TABLE = ("target", *COMPILATION, "quick", "json", "quiet")
_USES = {
    "list_topologies": ("json",),
    "list_variables": ("json",),
    "compare": _TABLE,
    "scale": (*_TABLE, "topology"),
    "fit": (*(name for name in _TABLE if name != "args"), "topology"),
    "find_plan": (
        *(name for name in _TABLE if name not in ("plan", "passes")),
        *("topology", "memory", "compilations", "vary", "picture"),
    ),
}
"""The modes in which the command does not compile one step, and the options that each uses."""


@console_tool("graphdist-compile")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    options = command_line().parse_args(arguments)
    prepare_command()
    _refuse_unused_options(options)
    if options.list_topologies:
        print_report(topology_table(as_json=options.json))
        return FITS
    if options.list_variables is not None:
        print_report(variable_table(options.list_variables, as_json=options.json))
        return FITS
    if options.target is None:
        raise ArgumentError(
            "no target is given", hint="name one: examples/train_digits.py:make_step"
        )
    refuse_artifact(options.target)
    if options.output is not None:
        require_replaceable(options.output)  # before compiling, which may take minutes
    if options.timeline is not None:
        require_writable(options.timeline)
    step = StepOptions.of(options)

    def reporter(topology: Topology, **changed: Any) -> Report:
        return _compiled(options, step, topology, **changed)[1]

    slices = options.num_slices
    if options.compare is not None:
        topologies = [find_topology(name, slices) for name in options.compare.split(",")]
        title = "one step on several topologies"
        return _print(options, compare_topologies(title, topologies, reporter))
    if options.topology is None:
        raise ArgumentError(
            "no topology is given", hint="such as --topology v5e:16x16; --list-topologies has all"
        )
    if options.scale is not None:
        chip = find_topology(options.topology).chip
        topologies = [topology_of(chip, size, slices) for size in options.scale.split(",")]
        title = f"one step on more and more chips of {chip.name}"
        return _print(options, compare_topologies(title, topologies, reporter))
    topology = find_topology(options.topology, slices)
    if options.find_plan is not None:
        return _find_plan(options, step, topology)
    if options.fit is not None:
        return _print(options, find_largest(options.fit, topology, reporter, step.settings))
    return _compile(options, step, topology)


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
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
    add("--find-plan", metavar="FILE", help="find how to run the step; write the plan to this file")
    add("--memory", metavar="SIZE", help="the memory of a device for --find-plan, such as 12GiB")
    add("--compilations", type=int, help="how many plans to compile at most (default: 4)")
    add(
        "--vary", action="append", metavar="NAME=A,B", help="values of a setting that may be chosen"
    )
    add("--picture", metavar="FILE", help="draw the choices of --find-plan as SVG")
    add("--list-variables", metavar="step.gdx", help="print the variables of the step in a file")
    add("--list-topologies", action="store_true", help="print the table of topologies")
    add("--quick", action="store_true", help="count on the graph in seconds; compile nothing")
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
    for name in ("memory", "compilations", "vary", "picture"):
        require_with(given, name, "find_plan")
    if "quick" in given:
        refuse_unused(given & {"output", "option", "compilations"}, "--quick", ())
    if "quiet" in given:
        refuse_unused(given & {"json"}, "--quiet", ())


def _print(options: argparse.Namespace, result: Survey | FoundPlan) -> int:
    if not options.quiet:
        if options.json:
            print(json.dumps(result.to_json(), indent=1), flush=True)
        elif isinstance(result, Survey):
            print_report(result)
        else:
            print(*fitted_lines(str(result).split("\n")), sep="\n", flush=True)
    return FITS if result.fits else DOES_NOT_FIT


def _find_plan(options: argparse.Namespace, step: StepOptions, topology: Topology) -> int:
    path = Path(options.find_plan)
    require_writable(path)  # before compiling, which may take minutes
    if options.picture is not None:
        require_writable(options.picture)
    compilations = DEFAULT_COMPILATIONS if options.compilations is None else options.compilations
    search = PlanOptions(
        path,
        None if options.memory is None else parse_size(options.memory),
        0 if options.quick else compilations,
        parse_varied(options.vary or []),
    )
    sharding = {"shard_parameters": options.shard_parameters, "cores": options.cores}
    given = given_options(command_line(), options)
    for name in sharding.keys() & given & search.varied[0].keys():
        raise ArgumentError(f"--vary and {written(name)} both give {name}: leave one out")
    chosen = partial(chosen_for, topology, **sharding)
    with _progress(options) as show, ending_at_interrupts("graphdist-compile"):
        found = find_plan(options.target, chosen, step, search, show)
    status = _print(options, found)
    if options.picture is not None:
        replace_file(Path(options.picture), found.picture.encode())
    if found.fits and not options.quiet and not options.json:
        written_options = [_written_setting(each) for each in found.title.split(", ") if each]
        written_options += [f" --option {each}" for each in options.option]
        running = "plan=.., compiler_options=.." if options.option else "plan=.."
        compiling = f"compile it with --plan {path}{''.join(written_options)}"
        print(f"written: {path}; {compiling}, run it with gd.function({running})")
    return status


def _written_setting(setting: str) -> str:
    """Return a varied setting as an option: ` --cores 2`, ` --set batch=8`."""
    name, _, value = setting.partition("=")
    if name not in STRATEGY_OPTIONS:
        return f" --set {setting}"
    if value in ("True", "False"):
        return f" {written(name)}" * (value == "True")
    return f" {written(name)} {value}"


def _compile(options: argparse.Namespace, step: StepOptions, topology: Topology) -> int:
    # The earlier report is read first: it may be in the file to which the new step is written.
    earlier = read_report(options.against) if options.against is not None else None
    allowed = 0.0 if options.allow is None else parse_allowed(options.allow)
    compiled, report = _compiled(options, step, topology)
    regression = earlier and compare_reports(options.against, earlier, report, allowed)
    if options.json:
        compared = {"against": regression.to_json()} if regression else {}
        print(json.dumps({**report.to_json(), **compared}, indent=1), flush=True)
    elif not options.quiet:
        print_report(report, *(["", regression] if regression else []))
    for line in _written_files(options, compiled, report):  # after the report: this may fail
        if not options.quiet and not options.json:
            print(line)
    if not report.fits:
        return DOES_NOT_FIT
    return GREW if regression and regression.grown else FITS


def _written_files(
    options: argparse.Namespace, compiled: Compiled | None, report: Report
) -> Iterator[str]:
    """Write the files that are asked for, and yield a line about each."""
    if options.output is not None and compiled is not None:
        platforms = None if options.platforms is None else options.platforms.split(",")
        aot.save(options.output, compiled, platforms=platforms)
        yield f"written: {options.output}"
    elif options.output is not None:
        yield f"not written: {options.output}"
    if options.timeline is None:
        return
    if report.refusal:
        yield f"not written: {options.timeline}"
        return
    assert report.timeline is not None, "a step for a topology has a timeline"
    trace = trace_of(report.timeline, report.name)
    Path(options.timeline).write_text(json.dumps(trace), encoding="utf-8")
    yield f"written: {options.timeline}; open it in https://ui.perfetto.dev"


def _compiled(
    options: argparse.Namespace, step: StepOptions, topology: Topology, **changed: Any
) -> tuple[Compiled | None, Report]:
    """Return the compiled step and its report. The step is None if memory does not suffice."""
    values = ", ".join(f"{name}={value}" for name, value in changed.items())
    doing = "counting" if options.quick else "compiling"
    progress = f"{doing} for {topology}{' with ' if values else ''}{values}"
    with _progress(options) as show, ending_at_interrupts("graphdist-compile"):
        show(progress)
        step = replace(step, settings={**step.settings, **changed})
        chosen = chosen_for(topology, options.shard_parameters, options.cores)
        lowered = lower_target(options.target, chosen, step)
        if options.quick:
            return None, lowered.estimate()
        try:
            compiled = lowered.compile(step.compiler)
        except DeviceMemoryError as error:
            return None, lowered.report_of_refused(error)
        return compiled, compiled.report()


@contextmanager
def _progress(options: argparse.Namespace) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the progress in a line of the terminal; clear it at the end."""
    if options.quiet or not sys.stderr.isatty():
        yield lambda text: None
        return

    def show(text: str) -> None:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")


if __name__ == "__main__":
    sys.exit(main())
