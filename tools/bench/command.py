"""`python -m graphdist.tools.bench`: measure what graphdist costs and gains, against others.

    python -m graphdist.tools.bench                       # overheads, and all programs
    python -m graphdist.tools.bench small large           # some, by name
    python -m graphdist.tools.bench --json run.json --svg run.svg
    python -m graphdist.tools.bench --topology v5e:16x16  # compiled ahead of time, not run
    python -m graphdist.tools.bench passes --topology v5e:4x4 --topology h100:1x8
    python -m graphdist.tools.bench small --no-record     # leaves the file of all runs alone
    python -m graphdist.tools.bench keras                 # Keras's fit, against DataParallel
    python -m graphdist.tools.bench parameter_server      # closures per second, against TensorFlow

Systems run in turns and medians are compared: machines are noisy, so a figure means something only
beside its peer. TensorFlow and torch take part if they are installed: `pip install -e '.[bench]'`.
`docs/benchmarks.md` lists the figures and says how to read them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import graphdist as gd
from graphdist.errors import ArgumentError
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.bench import history
from graphdist.tools.bench.measurement import Effort, compiled_on, measured
from graphdist.tools.bench.overheads import OVERHEADS
from graphdist.tools.bench.parameter_servers import main as measure_closures
from graphdist.tools.bench.passes_saved import SHOWCASES, check_devices, effects_elsewhere
from graphdist.tools.bench.picture import draw_picture
from graphdist.tools.bench.process import ALL_PACKAGES, is_installed, runs_on
from graphdist.tools.bench.programs import PROGRAMS, TINY
from graphdist.tools.bench.report import Run, passes_table, program_table
from graphdist.tools.bench.systems import SHARDED_SYSTEMS, SYSTEMS
from graphdist.tools.compilation import strategy_for
from graphdist.tools.console import CommandParser, console_tool
from graphdist.tools.given_options import given_options, refuse_unused
from graphdist.tools.targets import prepare_command

PASSES, KERAS, PARAMETER_SERVER = "passes", "keras", "parameter_server"
HERE = {**SYSTEMS, **SHARDED_SYSTEMS}
ALL_SYSTEMS = (*HERE, *ALL_PACKAGES)
_RECORDED = ("names", "json", "record", "no_record")


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
    add, names = parser.add_argument, [*OVERHEADS, *PROGRAMS, PASSES]
    add(
        "names",
        nargs="*",
        metavar="name",
        help=f"of {', '.join(names)}; if none, all but {PASSES}, on CPUs without those for "
        f"accelerators",
    )
    add("--systems", help=f"of {', '.join(ALL_SYSTEMS)}, with commas; all if none")
    add(
        "--devices",
        help='CPU devices (default 2), or names: "gpu:0,gpu:1"; for passes numbers, as "2,4,8"',
    )
    add("--topology", action="append", default=[], help="compile for it: v5e:16x16, h100:1x8")
    effort = Effort()
    add("--rounds", type=int, default=effort.rounds, help="turns of each system")
    add("--turn", type=float, default=effort.turn_seconds, help="its seconds")
    add("--compilations", type=int, default=effort.compilations)
    add("--tiny", action="store_true", help="tiny models, to see that all runs")
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    add("--svg", type=Path, metavar="FILE", help="write a picture of it")
    add(
        "--record",
        type=Path,
        metavar="FILE",
        help="append the run to this file (default docs/figures/benchmarks.jsonl of a checkout)",
    )
    add("--no-record", action="store_true", help="append it to no file")
    return parser


@console_tool("bench")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the measurements that the command line names."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == [KERAS]:
        return _keras(given[1:])
    if given[:1] == [PARAMETER_SERVER]:
        return measure_closures(given[1:])
    options = command_line().parse_args(given)
    names = _checked(options)
    _refuse_unused_options(options, names)
    if PASSES in names:
        run = _passes(options)
    elif options.topology:
        run = _ahead_of_time(options, names)
    else:
        run = _here(options, names)
    if options.json:
        run.write(options.json)
    if options.svg:
        title = f"graphdist and others, {run.target}"
        drawn = draw_picture(title, run.titles, run.measurements)
        options.svg.write_text(drawn, encoding="utf-8")
    _record(options, run)
    return 0


def _refuse_unused_options(options: argparse.Namespace, names: Sequence[str]) -> None:
    given = given_options(command_line(), options)
    if options.no_record:
        refuse_unused(given & {"record"}, "--no-record", ())
    if PASSES in names:
        refuse_unused(given, PASSES, (*_RECORDED, "devices", "topology"))
    elif options.topology:
        refuse_unused(given, "--topology", (*_RECORDED, "topology", "systems", "tiny", "svg"))
        _refuse_what_runs(options, names)
    elif not set(names).intersection(PROGRAMS):
        refuse_unused(given, " and ".join(names), _RECORDED)


def _refuse_what_runs(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Raise `ArgumentError` for measurements that run, if programs are only compiled."""
    systems = [] if options.systems is None else options.systems.split(",")
    for what, asked, compiled in (("", names, PROGRAMS), ("--systems ", systems, HERE)):
        others = [name for name in asked if name not in compiled]
        if others:
            raise ArgumentError(
                f"--topology has no use for {what}{','.join(others)}: leave one of them out",
                hint=f"compiled ahead of time are {', '.join(compiled)}",
            )


def _keras(arguments: Sequence[str]) -> int:
    """Measure models of Keras, which is imported only then."""
    from graphdist.tools.bench.keras_models import main as measure_keras

    return measure_keras(arguments)


def _record(options: argparse.Namespace, run: Run) -> None:
    """Append the run to the file of all runs, unless its models were tiny."""
    path = options.record or history.FIGURES
    is_wanted = options.record or (history.FIGURES.is_file() and not options.tiny)
    if is_wanted and not options.no_record:
        history.append(path, history.record_of(run))
        print(f"recorded in {path}")


def _checked(options: argparse.Namespace) -> list[str]:
    known = [*OVERHEADS, *PROGRAMS, PASSES]
    for what, chosen, all_of_them in (
        ("measurement", options.names, known),
        ("system", _systems(options), ALL_SYSTEMS),
    ):
        for name in chosen:
            if name not in all_of_them:
                raise ArgumentError(
                    f"there is no {what} {name!r}",
                    hint=f"choose from {', '.join(all_of_them)}",
                )
    for path in (options.json, options.svg, options.record):
        if path is not None and not path.parent.is_dir():
            raise ArgumentError(f"there is no folder {str(path.parent)!r}")
    names = list(options.names)
    _check_numbers(options, is_list=PASSES in names)
    if PASSES in names:
        check_devices([int(number) for number in (options.devices or "2").split(",")])
    if PASSES in names and len(names) > 1:
        raise ArgumentError(
            f"{PASSES} and {', '.join(set(names) - {PASSES})} are asked for in one run: each "
            f"count of devices needs a process",
            hint=f"run {PASSES} by itself",
        )
    if names:
        return names
    if options.topology:
        return list(PROGRAMS)
    is_on_cpus = ":" not in (options.devices or "") or options.devices.startswith("cpu")
    chosen = [
        name for name, each in PROGRAMS.items() if not (each.is_for_accelerators and is_on_cpus)
    ]
    return [*OVERHEADS, *chosen]


def _check_numbers(options: argparse.Namespace, *, is_list: bool) -> None:
    devices = options.devices.split(",") if options.devices else []
    are_counts = all(count.isdigit() and int(count) for count in devices)
    is_count = are_counts and len(devices) < 2
    if not (are_counts if is_list else is_count or all(":" in name for name in devices)):
        raise ArgumentError(
            f"{options.devices!r} devices are asked for",
            hint="give a number, such as 2, or names, such as gpu:0; for passes numbers, as 2,4,8",
        )
    for what in ("rounds", "compilations"):
        if getattr(options, what) < 1:
            raise ArgumentError(
                f"{getattr(options, what)} {what} are asked for: there must be at least 1"
            )
    if not options.turn >= 0:
        raise ArgumentError(f"turns of {options.turn} seconds are asked for")
    if len(options.topology) > 1 and not is_list:
        raise ArgumentError(
            f"{len(options.topology)} topologies are asked for in one run",
            hint="run the programs for each by itself",
        )


def _systems(options: argparse.Namespace) -> list[str]:
    return list(ALL_SYSTEMS) if options.systems is None else options.systems.split(",")


def _require_one(systems: Sequence[str], hint: str) -> None:
    if not systems:
        raise ArgumentError("there is no system left to measure", hint=hint)


def _here(options: argparse.Namespace, names: Sequence[str]) -> Run:
    """Measure on devices of this process."""
    devices = _devices(options.devices or "2")
    title = f"{len(devices)} {devices[0].partition(':')[0].upper()} devices"
    programs, run = TINY if options.tiny else PROGRAMS, Run(title, len(devices))
    overheads = [name for name in names if name in OVERHEADS]
    if overheads:
        print(f"{'':<46} {'ours':>13}  {'peer':>13}  {'ratio':>7}  bound")
    for name in overheads:
        for result in OVERHEADS[name]():
            run.overheads.append(result)
            print(result, flush=True)
    systems = _systems(options)
    platform = devices[0].partition(":")[0]
    for name in ALL_PACKAGES:
        if name in systems and not (is_installed(name) and runs_on(name, platform)):
            why = "is not installed here" if runs_on(name, platform) else f"runs on no {platform}s"
            print(f"{name} {why}: not measured against it")
            systems.remove(name)
    _require_one(
        systems, f"pip install -e .[bench] brings some; {', '.join(HERE)} run on all devices"
    )
    effort = Effort(options.rounds, options.turn, options.compilations)
    for name in [name for name in names if name in programs]:
        program = programs[name]
        strategy = gd.MirroredStrategy(devices, **program.strategy_options)
        results = measured(program, strategy, systems, effort, is_tiny=options.tiny)
        print(program_table(program, results, run.add(program, results)), flush=True)
    return run


def _devices(asked: str) -> list[str]:
    """Return the names of devices; a count stands for new CPU devices."""
    count = int(asked) if asked.isdigit() else 0
    # Overheads are measured on two, whichever devices programs run on.
    gd.config.set_logical_cpu_devices(max(count, 2))
    return [f"cpu:{i}" for i in range(count)] or asked.split(",")


def _ahead_of_time(options: argparse.Namespace, names: Sequence[str]) -> Run:
    """Compile for a topology: count collectives, bytes and memory, and run nothing."""
    systems = list(HERE) if options.systems is None else options.systems.split(",")
    prepare_command()
    (name,) = options.topology
    topology = find_topology(name)
    strategy = strategy_for(topology)
    run = Run(str(topology), strategy.num_replicas_in_sync)
    compiled_on(TINY["small"], strategy, list(SYSTEMS)[:1])  # the compiler is loaded once
    for chosen in names:
        program = (TINY if options.tiny else PROGRAMS)[chosen]
        strategy = strategy_for(topology, **program.strategy_options)
        _, compiled = compiled_on(program, strategy, systems)
        measurements = list(compiled.values())
        print(program_table(program, measurements, run.add(program, measurements)), flush=True)
    return run


def _passes(options: argparse.Namespace) -> Run:
    """Compile a program for each pass, with it and without, on each count of devices."""
    devices = (options.devices or ("" if options.topology else "2,4,8")).split(",")
    targets = [target for target in (*devices, *options.topology) if target]
    savings = [effect for target in targets for effect in effects_elsewhere(target)]
    run = Run(", ".join(targets), 0, passes=savings)
    for showcase in SHOWCASES:
        name = showcase.pass_name
        shown = [effect for effect in savings if effect.pass_name == name]
        print(passes_table(name, showcase.program.title, shown), end="\n\n", flush=True)
    return run
