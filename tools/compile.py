"""`graphdist-compile`: compile a step for accelerators that are not here, and say what it will do.

    graphdist-compile examples/aot_transformer.py:make_step --topology v5e:16x16 -o step.gdx

The target is a factory of a step: see `graphdist.tools.targets`. The output is a page: whether the
step fits, what it computes and moves, and an estimate of its time. The exit status is 0 if it fits,
3 if it does not, 2 for invalid input.

`--fit batch=1..64` finds the largest value of a setting with which the step fits. `--compare`
compares topologies, `--scale` numbers of chips. `--list-topologies` prints the known topologies,
`--list-variables step.gdx` the variables of the step in a file.
`--timeline step.json` writes the predicted timeline as a trace for Perfetto.
`--against old.gdx --allow 5%` compares the step with an earlier report of it, and exits with 4 if
it grew by more. Ctrl-C ends the command at once, with status 130.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any  # Any: users' settings, JSON

from graphdist import aot
from graphdist.aot.saving import require_writable
from graphdist.errors import ArgumentError, DeviceMemoryError, GraphdistError
from graphdist.program.report import Report, report_of_refused
from graphdist.program.stages import Compiled, Lowered
from graphdist.program.timeline_trace import trace_of
from graphdist.runtime.targets.topologies import Topology, find_topology
from graphdist.strategies.base import Strategy
from graphdist.strategies.mirrored import MirroredStrategy
from graphdist.strategies.tpu import TPUStrategy
from graphdist.tools.comparisons import compare_sizes, compare_topologies
from graphdist.tools.interrupts import INTERRUPTED, ending_at_interrupts, say_interrupted
from graphdist.tools.largest_fit import find_largest
from graphdist.tools.named_passes import with_passes
from graphdist.tools.regression import (
    Regression,
    compare_reports,
    parse_allowed,
    read_report,
)
from graphdist.tools.targets import (
    make_step,
    parse_settings,
    prepare_command,
    trace_step,
    without_our_line,
)
from graphdist.tools.topology_list import topology_table
from graphdist.tools.variable_list import variable_table

FITS, BAD_INPUT, DOES_NOT_FIT, GREW = 0, 2, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    prepare_command()
    try:
        return _run(options)
    except (GraphdistError, OSError) as error:
        print(f"graphdist-compile: {without_our_line(error)}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        say_interrupted("graphdist-compile")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphdist-compile",
        description="Compile a step for accelerators that are not here, and say what it will do.",
    )
    add = parser.add_argument
    add("target", nargs="?", help="file.py:make_step or module:make_step")
    add("--topology", help="such as v5e:16x16 (TPU chips) or h100:8x8 (hosts x GPUs)")
    add("-o", "--output", help="write the compiled step to this file, by custom name.gdx")
    add("--platforms", help="what the file's portable module is for, such as tpu,cpu")
    add_compilation_options(parser)
    add("--fit", metavar="NAME=LOW..HIGH", help="find the largest value that fits")
    add("--compare", metavar="A,B,..", help="a table over topologies")
    add("--scale", metavar="N,M,..", help="a table over numbers of chips of the topology's kind")
    add("--against", metavar="FILE", help="compare with the report in step.gdx, or of --json")
    add("--allow", metavar="N%", help="how much the step may grow (default: 0%%)")
    add("--list-variables", metavar="step.gdx", help="print the variables of the step in a file")
    add("--list-topologies", action="store_true", help="print the table of topologies")
    add("--timeline", metavar="FILE", help="write the predicted timeline, which Perfetto shows")
    add("--json", action="store_true", help="print JSON")
    add("--quiet", action="store_true", help="print nothing; the exit status tells")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.list_topologies:
        print(topology_table(as_json=options.json))
        return FITS
    if options.list_variables:
        print(variable_table(options.list_variables, as_json=options.json))
        return FITS
    if options.target is None:
        raise ArgumentError(
            "no target is given", hint="name one: examples/train_digits.py:make_step"
        )
    for option in ("output", "against", "timeline"):
        if getattr(options, option) and (options.compare or options.scale or options.fit):
            raise ArgumentError(
                f"--{option} goes with one step, and --compare, --scale and --fit compile several",
                hint="leave one of them out",
            )
    if options.allow is not None and not options.against:
        raise ArgumentError(
            "--allow goes with --against", hint="name the earlier report: --against old.gdx"
        )
    for path in filter(None, (options.output, options.timeline)):
        require_writable(path)  # not after minutes of compiling
    if options.compare:
        names = options.compare.split(",")
        return _print(options, compare_topologies(names, options.num_slices, _reporter(options)))
    if options.topology is None:
        raise ArgumentError(
            "no topology is given", hint="such as --topology v5e:16x16; --list-topologies has all"
        )
    topology = find_topology(options.topology, options.num_slices)
    if options.scale:
        return _print(
            options, compare_sizes(topology.chip, options.scale.split(","), _reporter(options))
        )
    if options.fit:
        return _print(options, find_largest(options.fit, topology, _reporter(options)))
    return _compile(options, topology)


def _print(options: argparse.Namespace, survey: Any) -> int:
    if not options.quiet:
        print(json.dumps(survey.to_json(), indent=1) if options.json else survey)
    return FITS if survey.fits else DOES_NOT_FIT


def _compile(options: argparse.Namespace, topology: Topology) -> int:
    # Read first: the earlier step may be in the file that this one is written to.
    earlier = read_report(options.against) if options.against else None
    allowed = 0.0 if options.allow is None else parse_allowed(options.allow)
    compiled, report = _compiled(options, topology, {})
    regression = None
    if earlier is not None:
        regression = compare_reports(options.against, earlier, report, allowed)
    if not options.quiet:  # before the file, which may fail
        _print_report(options, report, regression)
    if options.output:
        _write(options, compiled)
    if options.timeline:
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
        platforms = options.platforms and options.platforms.split(",")
        aot.save(options.output, compiled, platforms=platforms)
    if not options.quiet and not options.json:
        print(f"written: {options.output}" if compiled else f"not written: {options.output}")


def _write_timeline(options: argparse.Namespace, report: Report) -> None:
    if report.timeline is None:
        why = report.no_timeline or "the compiler refused the step"
        raise ArgumentError(f"there is no timeline to write to {options.timeline}: {why}")
    trace = trace_of(report.timeline, report.name)
    Path(options.timeline).write_text(json.dumps(trace), encoding="utf-8")
    if not options.quiet and not options.json:
        print(f"written: {options.timeline}; open it in https://ui.perfetto.dev")


def _reporter(options: argparse.Namespace) -> Any:
    """Return what makes the report for a topology, with some settings changed."""
    return lambda topology, **changed: _compiled(options, topology, changed)[1]


def _compiled(
    options: argparse.Namespace, topology: Topology, changed: dict[str, Any]
) -> tuple[Compiled | None, Report]:
    """Return the compiled step, if it fits the compiler's limits, and its report."""
    settings = {**parse_settings(options.set), **changed}
    said = ", ".join(f"{name}={value}" for name, value in changed.items())
    _progress(options, f"compiling for {topology}{' with ' if said else ''}{said}")
    with ending_at_interrupts("graphdist-compile"):
        strategy = strategy_for(topology, **sharding(options.shard_parameters))
        lowered = lower_step(options.target, strategy, settings, options.passes)
        try:
            compiled = lowered.compile(parse_settings(options.option) or None)
        except DeviceMemoryError as error:
            return None, report_of_refused(lowered, error)
        finally:
            _progress(options, "")
        return compiled, compiled.report()


def lower_step(
    target: str, strategy: Strategy, settings: Mapping[str, Any], passes: str | None = None
) -> Lowered:
    """Return the step of a target after its passes, or after the passes of these names."""
    traced = trace_step(target, strategy, make_step(target, strategy, settings))
    return with_passes(traced, passes).lower()


def add_compilation_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a step is compiled for a topology."""
    add = parser.add_argument
    add("--num-slices", type=int, default=1, help="slices of that topology (default: 1)")
    add(
        "--shard-parameters",
        nargs="?",
        const=True,
        type=int,
        metavar="GROUP",
        help="store parameters in slices, over all devices or over groups of this size",
    )
    add("--passes", help="the passes to run in place of the default ones: names with commas")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the step")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="an option of XLA")


def sharding(asked: int | bool | None) -> dict[str, Any]:
    """Return the options of a strategy for `--shard-parameters`."""
    return {} if asked is None else {"shard_parameters": asked}


def strategy_for(topology: Topology, **options: Any) -> Strategy:
    """Return a strategy of a topology's devices, with these options of its class."""
    name, slices = topology.name, topology.num_slices
    if topology.chip.platform == "tpu":
        return TPUStrategy(topology=name, num_slices=slices, **options)
    return MirroredStrategy(topology=name, **options)


def _progress(options: argparse.Namespace, text: str) -> None:
    """Show the progress in a line of the terminal, which the next output replaces."""
    if sys.stderr.isatty() and not options.quiet:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
