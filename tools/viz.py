"""`graphdist-viz`: a program as text, as a page, and in the formats of other tools.

A target is a factory (`file.py:make_step`, `module:make_step`), a function (`module:function`, with
`--args` if it takes any), an artifact (`step.gdx`) or a saved graph text. An invalid command is one
message on stderr and exit status 2.
"""

from __future__ import annotations

import argparse
import pydoc
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphdist.aot.saving import require_place
from graphdist.config import wants_no_colour
from graphdist.errors import ArgumentError, GraphdistError
from graphdist.runtime.targets.topologies import find_topology
from graphdist.tools.compile import add_compilation_options
from graphdist.tools.targets import prepare_command, without_our_line
from graphdist.tools.viz_index import function_names, write_index
from graphdist.tools.viz_targets import VizTarget, is_saved, load_target, read_earlier
from graphdist.tools.viz_topologies import TopologyOptions, load_for_topology
from graphdist.tracing.user_lines import here
from graphdist.viz import text
from graphdist.viz.comparison import comparison_of
from graphdist.viz.display import open_file, open_page
from graphdist.viz.formats import DRAWINGS, FORMATS, MODULES, format_named, render
from graphdist.viz.graph_diff import diff
from graphdist.viz.model import model_of
from graphdist.viz.program import ShownProgram
from graphdist.viz.saved_document import compared

__all__ = ["main"]

_ENDINGS_OF_TEXT = ("", "gd", "txt", "log")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _parser().parse_args(arguments)
    prepare_command()
    try:
        _run(options)
    except (GraphdistError, OSError) as error:
        print(f"graphdist-viz: {without_our_line(error)}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphdist-viz", description="Show what the compiler makes of a step."
    )
    add = parser.add_argument
    add("target", help="file.py:make_step, module:function, step.gdx, or a graph's text in a file")
    add("--strategy", metavar="NAME[:N]", help="such as mirrored:8")
    add("--topology", metavar="CHIP:SHAPE", help="compile for chips that are not here: v5e:16x16")
    add_compilation_options(parser)
    add(
        "--args", default="", metavar="TYPES", help="what a function takes: 'f32[256,784] i32[256]'"
    )
    add("--pass", dest="step", default="last", metavar="NAME", help="after which pass, or all")
    add("--diff", nargs=2, metavar=("A", "B"), help="what changed from pass A to pass B")
    add("--all", action="store_true", help="a page for each function of file.py, in -o FOLDER")
    add("--compare", type=Path, metavar="old.json", help="with an earlier program of -o old.json")
    add("--format", help=", ".join((*FORMATS, *MODULES)))
    add("-o", "--output", type=Path, metavar="FILE", help="write to a file, in its ending's format")
    add("--open", action="store_true", help="open the page in a browser")
    add("--sources", action="store_true", help="the user's lines above the nodes, in text")
    add("--collectives", action="store_true", help="the table of collectives alone")
    add("--filter", metavar="REGEX", help="the nodes whose line, scope or source it matches")
    add("--focus", metavar="NODE", help="the nodes around this one")
    add("--depth", type=int, default=2, metavar="N", help="how far around (default: 2)")
    return parser


def _run(options: argparse.Namespace) -> None:
    form = _form(options)
    if options.depth < 0:
        raise ArgumentError(f"--depth {options.depth} is negative", source=here())
    if options.all:
        return _write_all(options)
    if options.output is not None:
        require_place(options.output)
    target = _target(options, options.target, form)
    colour = form == "text" and options.output is None and _is_coloured()
    shown = _shown(target, options, form, colour)
    if options.open:
        print(open_page(shown, options.output))
    elif options.output is not None:
        options.output.write_text(shown, encoding="utf-8", errors="surrogateescape")
    elif _is_terminal() and form in ("text", *MODULES):
        pydoc.pager(shown)  # pages longer texts than the screen, if a pager is there
    else:
        sys.stdout.write(shown)


def _write_all(options: argparse.Namespace) -> None:
    for name in ("compare", "diff", "collectives", "filter", "focus", "format"):
        if getattr(options, name):
            raise ArgumentError(f"--{name} goes with one function, not with --all", source=here())
    if ":" in options.target or is_saved(options.target):
        raise ArgumentError(
            f"--all shows the functions of a file or module, not of {options.target}",
            source=here(),
            hint="leave what follows the colon away: train.py --all",
        )
    folder = options.output
    if folder is None:
        if not options.open:
            raise ArgumentError(
                "--all writes several pages", source=here(), hint="name a folder for them: -o pages"
            )
        folder = Path(tempfile.mkdtemp(prefix="graphdist-"))
    index = write_index(
        options.target,
        folder,
        lambda target: _target(options, target, "html"),
        function_names(options.target),
    )
    print(index)
    if options.open:
        open_file(index)


def _target(options: argparse.Namespace, name: str, form: str) -> VizTarget:
    """Return the target, compiled for a topology if one is named and the target is a step."""
    if options.topology is None:
        for option in ("num_slices", "shard_parameters", "passes", "option"):
            if getattr(options, option) not in (None, 1, []):
                raise ArgumentError(
                    f"--{option.replace('_', '-')} goes with --topology",
                    source=here(),
                    hint="such as --topology v5e:16x16",
                )
        strategy = options.strategy or "default"
        return load_target(name, strategy, options.set, options.args)
    topology = find_topology(options.topology, options.num_slices, at=here())
    if is_saved(name) or options.strategy:  # its graphs are there: times alone
        found = load_target(name, options.strategy or "default", options.set, options.args)
        return replace(found, program=replace(found.program, topology=topology))
    return load_for_topology(
        name,
        topology,
        options.set,
        options.args,
        TopologyOptions(options.shard_parameters, options.passes, options.option),
        reports=form in ("html", "json") or options.compare is not None,
    )


def _form(options: argparse.Namespace) -> str:
    """Return the format that is asked for, or that the file's name ends in; else text."""
    if options.format is None:
        ending = options.output.suffix[1:] if options.output else ""
        if options.open:
            return "html"
        if ending not in (*FORMATS, *MODULES, *_ENDINGS_OF_TEXT):
            raise ArgumentError(
                f"no format has the ending of {options.output}",
                source=here(),
                hint=f"say which with --format: {', '.join((*FORMATS, *MODULES))}",
            )
        return "text" if ending in _ENDINGS_OF_TEXT else ending
    form = format_named(options.format)
    if options.open and form != "html":
        raise ArgumentError(
            f"--open shows a page, not {form}",
            source=here(),
            hint="leave --format away, or write to a file with -o",
        )
    return form


def _shown(target: VizTarget, options: argparse.Namespace, form: str, colour: bool) -> str:
    if form in MODULES:
        return render(target.stage(form), form)
    program = target.program
    if options.compare:
        return _comparison(target, options, form, colour)
    if options.diff:
        before = program.step(options.diff[0], first=True)
        after = program.step(options.diff[1])
        if form == "text":
            change = diff(before.graph, after.graph)
            return text.difference_text(change, before.name, after.name, colour=colour)
        return FORMATS[form](replace(program, steps=(before, after)))
    if options.step != "all":
        # The page and the other formats of many graphs show the way to the last pass.
        several = options.step == "last" and form in ("html", "json", "model-explorer")
        program = program if several else program.only(options.step)
    if options.collectives and form != "text":
        raise _refused_selection("collectives", form)
    if options.collectives:
        return text.collectives_table(program, colour=colour)
    if options.filter or options.focus:
        return _selection(program, options, form, colour)
    if form == "text":
        return text.render(program, sources=options.sources, colour=colour)
    return FORMATS[form](program)


def _comparison(target: VizTarget, options: argparse.Namespace, form: str, colour: bool) -> str:
    if form not in ("text", "html", "json"):
        raise ArgumentError(
            f"--compare writes text, html or json, not {form}",
            source=here(),
            hint="leave --format away, or write a page: -o changes.html",
        )
    shown = target.program.only("last" if options.step == "all" else options.step)
    program = compared(shown, read_earlier(options.compare), options.compare.name)
    if form != "text":
        return FORMATS[form](program)
    before, after = program.steps
    change = diff(before.graph, after.graph)
    nodes = text.difference_text(change, before.name, after.name, colour=colour)
    return f"{comparison_of(program)}\n\n{nodes}"


def _selection(program: ShownProgram, options: argparse.Namespace, form: str, colour: bool) -> str:
    if form not in ("text", *DRAWINGS):
        raise _refused_selection("filter" if options.filter else "focus", form)
    model = model_of(program.graph)
    chosen = set(range(len(model.records)))
    if options.filter:
        chosen &= text.matching(model, options.filter)
    if options.focus:
        chosen &= text.neighbourhood(model, options.focus, options.depth)
    if form == "text":
        return text.selected(model, chosen, colour=colour)
    return DRAWINGS[form](program, chosen)


def _refused_selection(name: str, form: str) -> ArgumentError:
    formats = ["text"] if name == "collectives" else ["text", *DRAWINGS]
    return ArgumentError(
        f"--{name} selects for {', '.join(formats)}, not for {form}",
        source=here(),
        hint="leave --format away, or search in the page",
    )


def _is_coloured() -> bool:
    return _is_terminal() and not wants_no_colour()


def _is_terminal() -> bool:
    return sys.stdout.isatty()


if __name__ == "__main__":
    sys.exit(main())
