"""`graphdist-viz`: a program as text, as a page, and in the formats of other tools.

A target is a factory (`file.py:make_step`, `module:make_step`), a function (`module:function`, with
`--args` if it takes any), an artifact (`step.gdx`) or a saved graph text. An invalid command is one
message on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import pydoc
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphdist.aot.saving import require_place
from graphdist.config import at_least_cpu_devices, prepare_pager, wants_no_colour
from graphdist.errors import ArgumentError
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.chosen_strategy import strategy_named
from graphdist.tools.compilation import StepOptions, chosen_for
from graphdist.tools.console import console_tool
from graphdist.tools.given_files import require_file
from graphdist.tools.targets import prepare_command
from graphdist.tools.viz_index import shown_functions, write_index
from graphdist.tools.viz_options import (
    command_line,
    format_of,
    is_compiled_for_topology,
    refuse_unused_options,
)
from graphdist.tools.viz_targets import (
    VizTarget,
    is_saved,
    load_saved,
    load_step,
    read_earlier,
)
from graphdist.tracing.user_lines import here
from graphdist.viz import text
from graphdist.viz.comparison import comparison_of
from graphdist.viz.display import open_file, open_page
from graphdist.viz.formats import DRAWINGS, FORMATS, MODULES, render
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.saved_document import compared

__all__ = ["main"]


@console_tool("graphdist-viz")
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = command_line().parse_args(arguments)
    prepare_command()
    form = format_of(options)
    refuse_unused_options(options, form)
    if options.depth < 0:
        raise ArgumentError(f"--depth {options.depth} is negative")
    if options.all:
        _write_all(options)
    else:
        _write(options, form)
    return 0


def _write(options: argparse.Namespace, form: str) -> None:
    if options.output is not None:
        require_place(options.output)
    if options.compare is not None:
        require_file(options.compare)
    target = _target(options, options.target, form)
    colour = form == "text" and options.output is None and _is_coloured()
    shown = _shown(target, options, form, colour)
    if options.open:
        print(open_page(shown, options.output))
    elif options.output is not None:
        options.output.write_text(shown, encoding="utf-8", errors="surrogateescape")
    elif _is_terminal() and form in ("text", *MODULES) and _is_longer_than_the_screen(shown):
        _page(shown)
    else:
        sys.stdout.write(shown)


def _write_all(options: argparse.Namespace) -> None:
    place, folder = options.target, options.output
    if ":" in place or is_saved(place):
        raise ArgumentError(
            f"--all shows the functions of a file or module, not of {place}",
            hint="leave what follows the colon away: train.py --all",
        )
    if folder is None:
        if not options.open:
            raise ArgumentError("--all writes several pages", hint="name a folder: -o pages")
        folder = Path(tempfile.mkdtemp(prefix="graphdist-"))
    with at_least_cpu_devices(strategy_named(options.strategy).cpu_devices):
        functions = shown_functions(place)
    # Settings are for the factories, and types for the functions.
    for option, kind in (("set", "factory"), ("args", "function")):
        if vars(options)[option] and (kind == "factory") not in functions.values():
            raise ArgumentError(f"--all has no use for --{option}, since {place} has no {kind}")

    def load(name: str) -> VizTarget:
        own = argparse.Namespace(**vars(options))
        if functions[name]:
            own.args = ""
        else:
            own.set = []
        return _target(own, f"{place}:{name}", "html")

    index = write_index(place, folder, load, list(functions))
    print(index)
    if options.open:
        open_file(index)


def _target(options: argparse.Namespace, name: str, form: str) -> VizTarget:
    """Return the target, compiled for a topology if one is named and the target is a step."""
    topology = options.topology and find_topology(options.topology, options.num_slices, at=here())
    step = StepOptions.of(options)
    if is_compiled_for_topology(options):
        chosen = chosen_for(topology, options.shard_parameters)
        reports = form in ("html", "json") or options.compare is not None
        return load_step(name, chosen, step, topology, reports=reports)
    if not is_saved(name):
        return load_step(name, strategy_named(options.strategy), step, topology)
    found = load_saved(Path(name))
    return replace(found, program=replace(found.program, topology=topology))


def _shown(target: VizTarget, options: argparse.Namespace, form: str, colour: bool) -> str:
    if form in MODULES:
        return render(target.stage(form), form)
    program, after = target.program, vars(options)["pass"]
    if options.compare:
        return _comparison(target, options, form, colour)
    if options.diff:
        before = program.step(options.diff[0], first=True)
        later = program.step(options.diff[1])
        if form == "text":
            change = diff(before.graph, later.graph)
            return text.difference_text(change, before.name, later.name, colour=colour)
        return FORMATS[form](replace(program, steps=(before, later), others=()))
    if after != "all":
        # The page and the other formats of many graphs show the way to the last pass.
        several = after == "last" and form in ("html", "json", "model-explorer")
        program = program if several else program.only(after)
    if options.collectives:
        return text.collectives_table(program, colour=colour)
    if options.filter or options.focus:
        return _selection(program, options, form, colour)
    if form == "text":
        return text.render(program, sources=options.sources, colour=colour)
    return FORMATS[form](program)


def _comparison(target: VizTarget, options: argparse.Namespace, form: str, colour: bool) -> str:
    shown = target.program.only(vars(options)["pass"])
    program = compared(shown, read_earlier(options.compare), options.compare.name)
    if form != "text":
        return FORMATS[form](program)
    before, after = program.steps
    change = diff(before.graph, after.graph)
    nodes = text.difference_text(change, before.name, after.name, colour=colour)
    return f"{comparison_of(program)}\n\n{nodes}"


def _selection(program: ShownProgram, options: argparse.Namespace, form: str, colour: bool) -> str:
    model = model_of(program.graph)
    chosen = set(range(len(model.records)))
    if options.filter:
        chosen &= text.matching(model, options.filter)
    if options.focus:
        chosen &= text.neighbourhood(model, options.focus, options.depth)
    if form == "text":
        return text.selected(model, chosen, colour=colour)
    return DRAWINGS[form](program, chosen)


def _is_coloured() -> bool:
    return _is_terminal() and not wants_no_colour()


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _page(shown: str) -> None:
    """Show a text in the pager, whose Ctrl-C is its own; print it where there is none."""
    prepare_pager()
    handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        pydoc.pager(shown)
    finally:
        signal.signal(signal.SIGINT, handler)


def _is_longer_than_the_screen(shown: str) -> bool:
    return shown.count("\n") >= shutil.get_terminal_size().lines


if __name__ == "__main__":
    sys.exit(main())
