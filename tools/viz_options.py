"""`graphdist-viz`: show what the compiler makes of a step.

    graphdist-viz examples/train_digits.py:make_step --strategy mirrored:2 --open
    graphdist-viz train.py:make_step --topology v5e:4x4 -o step.html
    graphdist-viz train.py:make_step --strategy mirrored:8 --collectives

This module has the parser of the options, and says which of them go together.

Each view has some options, and so has each format. An option that would change nothing raises an
error, which names the other option that makes this option useless.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from graphdist.errors import ArgumentError
from graphdist.tools.compilation import COMPILATION, add_compilation_options
from graphdist.tools.console import CommandParser
from graphdist.tools.given_options import given_options, refuse_unused, require_with, written
from graphdist.tools.viz_targets import is_saved
from graphdist.viz.formats import DRAWINGS, FORMATS, MODULES, format_named
from graphdist.viz.program import TRACE

_ENDINGS_OF_TEXT = ("", "gd", "txt", "log")
_STEP = ("strategy", "topology", *COMPILATION)
_WRITTEN = ("target", *_STEP, "output", "open")
_SELECTION = ("format", "pass", "filter", "focus", "depth")
_VIEWS = {
    "all": (),
    "compare": ("format", "pass"),
    "diff": ("format",),
    "collectives": ("format", "pass"),
    "filter": _SELECTION,
    "focus": _SELECTION,
}
"""The views other than the graph, and the options of each view in addition to `_WRITTEN`."""
_USED_BY_SAVED_GRAPHS = (
    *("target", "topology", "num_slices", "output", "open", "compare", "diff", "collectives"),
    *_SELECTION,
)
_HOLD_PASSES = ("text", "html", "json", "model-explorer")
"""The formats that show the graphs of several passes."""
_HOLD_TIMES = ("html", "json", "perfetto")
"""The formats that show the estimated times of nodes."""
_FORMATS_OF = {
    "sources": ("text",),
    "collectives": ("text",),
    "filter": ("text", *DRAWINGS),
    "focus": ("text", *DRAWINGS),
    "compare": ("text", "html", "json"),
    "diff": _HOLD_PASSES,
    "pass": tuple(FORMATS),
}
"""The formats of the options that are not for all formats."""


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandParser(__doc__)
    add = parser.add_argument
    add("target", help="file.py:make_step, module:function, step.gdx, or a graph's text in a file")
    add("--strategy", metavar="NAME[:N]", help="such as mirrored:8")
    add("--topology", metavar="CHIP:SHAPE", help="compile for chips that are not here: v5e:16x16")
    add_compilation_options(parser)
    add("--pass", default="last", metavar="NAME", help="after which pass, or all")
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


def format_of(options: argparse.Namespace) -> str:
    """Return the format that is asked for, or else by the file's ending, or else text."""
    if options.all:
        return "html"
    if options.format is not None:
        form = format_named(options.format)
        if options.open and form != "html":
            raise ArgumentError(
                f"--open shows a page, not {form}",
                hint="leave --format out, or write to a file with -o",
            )
        return form
    ending = options.output.suffix[1:] if options.output else ""
    if options.open:
        if ending not in ("", "html"):
            raise ArgumentError(
                f"--open shows a page, which -o {options.output} is not: leave one of them out"
            )
        return "html"
    if ending not in (*FORMATS, *MODULES, *_ENDINGS_OF_TEXT):
        raise ArgumentError(
            f"no format has the ending of {options.output}",
            hint=f"say which with --format: {', '.join((*FORMATS, *MODULES))}",
        )
    return "text" if ending in _ENDINGS_OF_TEXT else ending


def is_compiled_for_topology(options: argparse.Namespace) -> bool:
    """Return whether the step is compiled for a topology, and not only estimated on it."""
    return not (options.topology is None or options.strategy or is_saved(options.target))


def refuse_unused_options(options: argparse.Namespace, form: str) -> None:
    """Raise `ArgumentError` for an option that would change nothing."""
    given = given_options(command_line(), options)
    if is_saved(options.target):
        refuse_unused(given, "a saved graph", (*_USED_BY_SAVED_GRAPHS, *_VIEWS))
    for view, uses in _VIEWS.items():
        if view in given:
            refuse_unused(given, written(view), (view, *_WRITTEN, *uses))
    require_with(given, "depth", "focus")
    require_with(given, "num_slices", "topology")
    for name in ("shard_parameters", "cores"):
        require_with(given, name, "topology")
        if options.strategy and name in given:
            refuse_unused([name], "--strategy", ())
    _refuse_for_format(options, form, given)


def _refuse_for_format(options: argparse.Namespace, form: str, given: frozenset[str]) -> None:
    chosen = _choice(options, form)
    for name, forms in _FORMATS_OF.items():
        if name in given and form not in forms:
            raise ArgumentError(
                f"{chosen} has no use for {written(name)}, which is for {', '.join(forms)}: "
                f"leave one of them out"
            )
    shown = vars(options)["pass"]
    if shown == TRACE and options.passes is not None:
        raise ArgumentError(
            "--pass trace shows the graph before all passes, which --passes does not change: leave "
            "one of them out"
        )
    if shown == "all":
        view = next((written(view) for view in _VIEWS if view in given), None)
        if view or form not in _HOLD_PASSES:
            raise ArgumentError(f"{view or chosen} shows one graph: name the pass, not --pass all")
    is_for_topology = is_compiled_for_topology(options)
    if "topology" in given and not is_for_topology and form not in _HOLD_TIMES:
        why = "--strategy" if options.strategy else "a saved graph"
        raise ArgumentError(
            f"with {why}, --topology gives estimated times, for which {chosen} has no use: "
            f"write {', '.join(_HOLD_TIMES)}, or leave it out"
        )
    has_report = is_for_topology and (form in ("html", "json") or options.compare is not None)
    if "option" in given and form != "hlo" and not has_report:
        raise ArgumentError(
            f"--option is for XLA, which {chosen} has no use for: ask for --format hlo, or for a "
            f"page of --topology"
        )


def _choice(options: argparse.Namespace, form: str) -> str:
    """Return the option that chose the format, as in the command line."""
    if options.format is not None:
        return f"--format {form}"
    if options.open:
        return "--open"
    return f"-o {options.output}" if form != "text" else "the text"
