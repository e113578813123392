"""`graphdist-viz`: a program as text, as a page, and in the formats of other tools.

A target is a factory (`file.py:make_step`, `module:make_step`), a function (`module:function`, with
`--args` if it takes any), an artifact (`step.gdx`) or a saved graph text. An invalid command is one
message on stderr and exit status 2.

`graphdist-viz file.py --all` writes a page for each function that a module defines, factories of
steps and functions of `gd.function`, and an index of them. A function that cannot be shown, for
instance because its arguments are unknown, has a row that says why. Only factories are called, and
only those of `makes_a_step`: a function that is called by mistake may train for an hour.
"""

from __future__ import annotations

import argparse
import inspect
import pydoc
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap

from graphdist.aot.saving import require_file_path
from graphdist.config import at_least_cpu_devices, prepare_pager, wants_no_colour
from graphdist.errors import ArgumentError, GraphdistError
from graphdist.program.function import Function
from graphdist.report.amounts import WIDTH, plural
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.chosen_strategy import strategy_named
from graphdist.tools.compilation import StepOptions, chosen_for
from graphdist.tools.console import console_tool
from graphdist.tools.given_files import require_file
from graphdist.tools.steps import is_factory, makes_a_step, parse_settings
from graphdist.tools.targets import import_target, prepare_command
from graphdist.tools.viz_options import (
    command_line,
    format_of,
    is_compiled_for_topology,
    refuse_unused_options,
)
from graphdist.tools.viz_targets import VizTarget, is_saved, load_saved, load_step, read_earlier
from graphdist.tracing.user_lines import here
from graphdist.viz import page, text
from graphdist.viz.comparison import comparison_of
from graphdist.viz.display import open_file, open_page
from graphdist.viz.document import compared
from graphdist.viz.formats import DRAWINGS, FORMATS, MODULES, render
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram


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
        require_file_path(options.output)
    if options.compare is not None:
        require_file(options.compare)
    target = _target(options, options.target, form)
    is_terminal = _is_terminal()
    colour = form == "text" and options.output is None and is_terminal and not wants_no_colour()
    shown = _shown(target, options, form, colour)
    is_long = shown.count("\n") >= shutil.get_terminal_size().lines
    if options.open:
        print(open_page(shown, options.output))
    elif options.output is not None:
        options.output.write_text(shown, encoding="utf-8", errors="surrogateescape")
    elif is_terminal and form in ("text", *MODULES) and is_long:
        _page(shown)
    else:
        sys.stdout.write(shown)


def _write_all(options: argparse.Namespace) -> None:
    program, folder = options.target, options.output
    if ":" in program or is_saved(program):
        raise ArgumentError(
            f"--all shows the functions of a file or module, not of {program}",
            hint="leave out the colon and the name after it: train.py --all",
        )
    if folder is None:
        if not options.open:
            raise ArgumentError("--all writes several pages", hint="name a folder: -o pages")
        folder = Path(tempfile.mkdtemp(prefix="graphdist-"))
    with at_least_cpu_devices(strategy_named(options.strategy).cpu_devices):
        functions, left_out = shown_functions(program, parse_settings(options.set))
    # Settings are for the factories, and types for the functions.
    for option, kind in (("set", "factory"), ("args", "function")):
        if vars(options)[option] and (kind == "factory") not in functions.values():
            raise ArgumentError(f"--all has no use for --{option}, since {program} has no {kind}")

    def load(name: str) -> ShownProgram:
        unused: dict[str, object] = {"args": ""} if functions[name] else {"set": []}
        own = argparse.Namespace(**{**vars(options), **unused})
        return _target(own, f"{program}:{name}", "html").program

    index = write_index(program, folder, load, list(functions))
    print(index)
    if left_out:
        said = wrap(f"graphdist-viz: {_left_out(left_out)}", WIDTH, subsequent_indent="  ")
        print(*said, sep="\n", file=sys.stderr)
    if options.open:
        open_file(index)


def _target(options: argparse.Namespace, name: str, form: str) -> VizTarget:
    """Return the target, compiled for a topology if one is named and the target is a step."""
    topology = options.topology and find_topology(options.topology, options.num_slices, at=here())
    step = StepOptions.of(options)
    if is_compiled_for_topology(options):
        chosen = chosen_for(topology, options.shard_parameters, options.cores)
        reports = form in ("html", "json", "perfetto") or options.compare is not None
        return load_step(name, chosen, step, topology, reports=reports)
    if not is_saved(name):
        return load_step(name, strategy_named(options.strategy), step, topology)
    return load_saved(Path(name), topology)


def _shown(target: VizTarget, options: argparse.Namespace, form: str, colour: bool) -> str:
    if form in MODULES:
        return render(target.stage(form), form)
    program, after = target.program, vars(options)["pass"]
    if options.compare:
        earlier = read_earlier(options.compare)
        program = compared(program.only(after), earlier, options.compare.name)
        summary = f"{comparison_of(program)}\n\n" if form == "text" else ""
        return summary + _changes(program, form, colour)
    if options.diff:
        steps = program.step(options.diff[0], first=True), program.step(options.diff[1])
        return _changes(replace(program, steps=steps, others=()), form, colour)
    if after != "all":
        # The page and the other formats of many graphs show all passes.
        several = after == "last" and form in ("html", "json", "model-explorer")
        program = program if several else program.only(after)
    if options.collectives:
        return text.collectives_table(program, colour=colour)
    if options.filter or options.focus:
        return _selection(program, options, form, colour)
    if form == "text":
        return text.render(program, sources=options.sources, colour=colour)
    return FORMATS[form](program)


def _changes(program: ShownProgram, form: str, colour: bool) -> str:
    """Return a program of two steps in the format `form`. The format "text" shows the changes."""
    if form != "text":
        return FORMATS[form](program)
    before, after = program.steps
    change = diff(before.graph, after.graph)
    return text.difference_text(change, before.name, after.name, colour=colour)


def _selection(program: ShownProgram, options: argparse.Namespace, form: str, colour: bool) -> str:
    model = model_of(program.graph)
    chosen = set(range(len(model.records)))
    if options.filter:
        chosen &= text.matching(model, options.filter)
    if options.focus:
        chosen &= text.neighbourhood(model, options.focus, options.depth)
    if form == "text" and not chosen:
        of = f"of {plural(model.num_nodes, 'node')}"
        nodes = f"around {options.focus}" if options.focus else of
        return f"nothing {nodes} matches --filter {options.filter!r}\n"
    if form == "text":
        return text.selected(model, chosen, colour=colour)
    return DRAWINGS[form](program, chosen)


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _page(shown: str) -> None:
    """Show a text in the pager, which handles Ctrl-C itself. Without a pager, print the text."""
    prepare_pager()
    handler = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        pydoc.pager(shown)
    finally:
        signal.signal(signal.SIGINT, handler)


def shown_functions(
    program: str, settings: Collection[str]
) -> tuple[dict[str, bool], Sequence[str]]:
    """Return the functions of a file or module that can be shown, and whether each is a factory.

    Also return the names of the other functions, which neither are a `gd.function` nor make a step
    from the strategy and the settings alone. All are in the order of their lines. Raise
    `ArgumentError` if no function can be shown.
    """
    module = import_target(program)
    own = {
        name: value
        for name, value in vars(module).items()
        if _is_own(value, module.__name__) and not name.startswith("_")
    }
    functions = {
        name: is_factory(value)
        for name, value in own.items()
        if isinstance(value, Function) or makes_a_step(value, settings)
    }
    others = [name for name in own if name not in functions]
    if not functions:
        raise ArgumentError(
            f"{program} defines no factory of a step and no gd.function",
            hint=_left_out(others),
        )
    return functions, others


def _left_out(names: Sequence[str]) -> str:
    """Return which functions `--all` leaves out, if there are any, and what a factory is."""
    are = "is" if len(names) == 1 else "are"
    those = f"{plural(len(names), 'function')} {are} left out: {', '.join(names)}; "
    factory = "a factory takes `strategy` first, all else from --set, and returns (function, args)"
    return (those if names else "") + factory


def _is_own(value: object, module: str) -> bool:
    if isinstance(value, Function):
        return value.fn.__module__ == module
    return inspect.isfunction(value) and value.__module__ == module


def write_index(
    title: str, folder: Path, load: Callable[[str], ShownProgram], names: Sequence[str]
) -> Path:
    """Write a page for each function, and the index; returns the index.

    Raises `ArgumentError` if no function can be shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[page.IndexRow] = []
    for name in names:
        try:
            program = load(name)
        except GraphdistError as error:
            entries.append(page.IndexRow(name, note=error.what))
            continue
        own = page.file_name(name, [entry.page for entry in entries])
        _write_page(folder / own, page.render(program))
        row = page.IndexRow(name, own, page.figures_of(program), page.report_note(program))
        entries.append(row)
    if not any(entry.page for entry in entries):
        notes = [f"{entry.name}: {entry.note}" for entry in entries]
        reasons = [line for note in notes for line in wrap(note, 74, subsequent_indent="  ")]
        raise ArgumentError(
            f"no function of {title} can be shown",
            where="since",
            node="\n".join(reasons),
            hint=f"graphdist-viz {title}:{entries[0].name} names the line",
        )
    return _write_page(folder / "index.html", page.render_index(title, entries))


def _write_page(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", errors="backslashreplace")
    return path


if __name__ == "__main__":
    sys.exit(main())
