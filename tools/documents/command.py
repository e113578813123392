"""`python -m graphdist.tools.documents`: write the pages of docs/ that tables and docstrings make.

    python -m graphdist.tools.documents --check

`passes.md` is made of the table of passes and the docstrings of their modules, `ops.md` of the
table of operations, `errors.md` of the error classes, `files.md` of the docstrings of all modules.
`--check` writes nothing; it names the pages
that are not what the code says now, and exits with 1 if there are any.

The words of docstrings are copied unchanged. Paragraphs and lists are wrapped again, examples and
the graphs after `Before:` become code.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import graphdist as gd
from graphdist import errors, passes
from graphdist.ir import errors as ir_errors
from graphdist.ir import ops as operations
from graphdist.ir.graph import Op, Stage
from graphdist.ir.ops import COND, CROSS_REPLICA, LOGICAL_ONLY, OPS, SCAN, WHILE
from graphdist.passes import manager
from graphdist.passes.layouts.sharded_updates import UpdateSharding
from graphdist.passes.manager import ANY_STAGE, Pass
from graphdist.passes.packs.pack_limits import PackLimits
from graphdist.passes.pipelines import PASSES, module_of_pass
from graphdist.tools.console import CommandParser, console_tool

FOLDER = Path(__file__).resolve().parents[2] / "docs"
WIDTH = 120
PLATFORMS = ("cpu", "gpu", "tpu")

_ITEM = re.compile(r"\* |\d+\. ")
_NOTICE = (
    "<!-- Written by `python -m graphdist.tools.documents`: change the code, not this page. -->"
)

_OF_PASSES = """
How to write one is in [writing-a-pass.md](writing-a-pass.md), how graphs are written in
[ir.md](ir.md).
"""

_OF_PARAMETERS = """
Some passes take parameters, which depend on the platform.
"""

_PARAMETERS = {UpdateSharding: "sharding", PackLimits: "limits"}
"""The classes of parameters, and the field of a pass that has them."""

_OF_ERRORS = """
The classes, with those they are derived from:
"""

_OF_OPS = """
What each operation is, and after the colon how its results are distributed. Parameters are set in
code; collectives, `replica_id` and `select_replica` have `group_size` besides, the number of
replicas. The kinds:
"""

_OF_JAX = """
Every other operation is one of JAX, named `jax.<primitive>`, with JAX's own parameters. It is
local, and its results are distributed as the join of its operands, or per_replica if it may answer
each replica differently. The join is mirrored if all operands are, and per_replica otherwise. An
operation that computes each element by itself keeps slices that are cut along one dimension; see
[layouts.md](layouts.md).
"""


_OF_FILES = """
Every source file, with the first lines of its docstring. The way of a program through them is in
[ARCHITECTURE.md](../ARCHITECTURE.md).
"""

SOURCES = ("graphdist", "passes", "runtime", "tools")


def markdown(docstring: str | None) -> str:
    r"""Return a docstring as Markdown.

    >>> markdown("Return\n    one.\n\n    Before:  %a\n    After:   %b\n")
    'Return one.\n\n```\nBefore:  %a\nAfter:   %b\n```'
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    if text.startswith("Before:"):
        return f"```\n{text}\n```"
    return "\n".join(_filled(text))


def _filled(text: str) -> Iterator[str]:
    """Yield the lines of a paragraph or of a list's items, filled up to `WIDTH` characters."""
    items: list[list[str]] = [[]]
    for line in text.splitlines():
        if _ITEM.match(line):
            items.append([])
        items[-1].append(line.strip())
    for item in filter(None, items):
        marker = _ITEM.match(item[0])
        yield textwrap.fill(
            " ".join(item),
            WIDTH,
            subsequent_indent=" " * len(marker.group()) if marker else "",
            break_long_words=False,
            break_on_hyphens=False,
        )


def summary(docstring: str | None) -> str:
    r"""Return the first paragraph of a docstring on one line.

    >>> summary("Return the\nsum.\n\nOf all.")
    'Return the sum.'
    """
    return " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())


def rest(docstring: str | None) -> str:
    """Return what follows the first paragraph of a docstring."""
    return inspect.cleandoc(docstring or "").partition("\n\n")[2]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((_NOTICE, f"# {title}", *filter(None, parts))) + "\n"


def passes_page() -> str:
    """Return the page of the passes."""
    rows = [
        (
            f"[`{name}`](#{name})",
            _stages(place.takes),
            place.gives.value if place.gives else "the same",
            summary(_docstring(name)),
        )
        for name, place in PASSES.items()
    ]
    pipelines: dict[str, list[str]] = {}
    for platform in PLATFORMS:
        names = " → ".join(f"`{entry.name}`" for entry in passes.pipeline(platform))
        pipelines.setdefault(names, []).append(f"`{platform}`")
    sections = [f"## {name}\n\n{markdown(rest(_docstring(name)))}" for name in PASSES]
    return _page(
        "The passes",
        markdown(_OF_PASSES),
        _table(("pass", "takes", "gives", "what it does"), rows),
        markdown(rest(manager.__doc__)),
        "## The pipelines",
        _table(
            ("platform", "passes, in order"),
            [(", ".join(platforms), names) for names, platforms in pipelines.items()],
        ),
        markdown(_OF_PARAMETERS),
        _parameters_section(),
        *sections,
    )


def _docstring(name: str) -> str | None:
    """Return the docstring of the module of a pass, which describes it."""
    return import_module(module_of_pass(name)).__doc__


def _stages(stages: Sequence[Stage]) -> str:
    return "any" if tuple(stages) == ANY_STAGE else ", ".join(stage.value for stage in stages)


def _parameters_section() -> str:
    """Return the meaning of the passes' parameters, and their values by platform."""
    entries = {platform: passes.pipeline(platform) for platform in PLATFORMS}
    every = [entry for pipeline in entries.values() for entry in pipeline]
    meanings, rows = [], []
    for kind, field in _PARAMETERS.items():
        takers = dict.fromkeys(f"`{entry.name}`" for entry in every if hasattr(entry.run, field))
        meanings.append(markdown(f"**`{kind.__name__}`** ({', '.join(takers)}): {kind.__doc__}"))
        for parameter in dataclasses.fields(kind):
            values = (_value(pipeline, field, parameter.name) for pipeline in entries.values())
            rows.append((f"`{kind.__name__}.{parameter.name}`", *values))
    platforms = (f"`{platform}`" for platform in PLATFORMS)
    return "\n\n".join((*meanings, _table(("parameter", *platforms), rows)))


def _value(pipeline: Sequence[Pass], field: str, parameter: str) -> str:
    """Return a parameter of the passes that have a field; "" if the pipeline has no such pass."""
    settings = (getattr(entry.run, field, None) for entry in pipeline)
    return str(getattr(next(filter(None, settings), None), parameter, ""))


_CONTROL_FLOW = frozenset({SCAN, WHILE, COND})

_KINDS = (
    (
        "variable",
        "state, in logical graphs: variables become inputs and outputs when they are placed",
        lambda op: op in LOGICAL_ONLY,
    ),
    (
        "cross-replica",
        "of cross-replica context, until the graph is SPMD",
        lambda op: op in CROSS_REPLICA,
    ),
    ("collective", "all replicas take part, at any stage", lambda op: op.is_collective),
    ("control flow", "has nested graphs, at any stage", lambda op: op in _CONTROL_FLOW),
    ("local", "each replica for itself, at any stage", lambda op: True),
)


def _kind(op: Op) -> str:
    return next(name for name, _, applies in _KINDS if applies(op))


def ops_page() -> str:
    """Return the page of the operations."""
    kinds = [f"* {name}: {meaning}" for name, meaning, _ in _KINDS]
    order = [name for name, _, _ in _KINDS]
    ops = sorted(OPS.values(), key=lambda op: order.index(_kind(op)))
    texts = descriptions()
    rows = [(f"`{op.name}`", _kind(op), texts[op.name]) for op in ops]
    return _page(
        "The operations",
        markdown(_OF_OPS),
        "\n".join(kinds),
        _table(("operation", "kind", "what it is"), rows),
        markdown(_OF_JAX),
    )


def descriptions() -> dict[str, str]:
    """Return the description of each operation: the string after its definition in `ops.py`."""
    ops = {name: op.name for name, op in vars(operations).items() if isinstance(op, Op)}
    found = {}
    for pair in pairwise(ast.parse(inspect.getsource(operations)).body):
        match pair:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if name in ops:
                found[ops[name]] = summary(text)
    return found


def errors_page() -> str:
    """Return the page of the errors."""
    classes = [getattr(errors, name) for name in errors.__all__]
    classes.sort(key=lambda kind: kind is not errors.GraphdistError)
    return _page(
        "The errors",
        markdown(rest(ir_errors.__doc__)),
        markdown(_OF_ERRORS),
        *(markdown(f"{_named(kind)}: {kind.__doc__}") for kind in classes),
    )


def _named(kind: type[BaseException]) -> str:
    """Return the name of a class, and the names of its bases."""
    public = "gd" if kind.__name__ in gd.__all__ else "gd.errors"
    bases = ", ".join(f"`{_public(base).__name__}`" for base in kind.__bases__)
    return f"**`{public}.{kind.__name__}`** ({bases})"


def _public(base: type) -> type:
    """Return a base class, or the base of a private one."""
    return _public(base.__bases__[0]) if base.__name__.startswith("_") else base


def files_page() -> str:
    """Return the page of the source files, folder by folder in the order of their names."""
    sections = []
    for top in SOURCES:
        for package in sorted((FOLDER.parent / top).rglob("__init__.py")):
            files = sorted(set(package.parent.glob("*.py")) - {package})
            title = f"## `{package.parent.relative_to(FOLDER.parent)}/`"
            lines = [f"* `{file.name}`: {_summary_of(file)}" for file in files]
            sections += [title, _summary_of(package), "\n".join(lines)]
    return _page("The files", markdown(_OF_FILES), *sections)


def _summary_of(file: Path) -> str:
    """Return the first paragraph of a module's docstring, without importing the module."""
    return summary(ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))))


PAGES: dict[str, Callable[[], str]] = {
    "passes.md": passes_page,
    "ops.md": ops_page,
    "errors.md": errors_page,
    "files.md": files_page,
}


def stale(folder: Path) -> list[str]:
    """Return the names of the pages in a folder that are not what the code says now."""
    found = []
    for name, page in PAGES.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != page():
            found.append(name)
    return found


@console_tool("documents")
def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages, or check them; return the exit status."""
    parser = CommandParser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name stale pages")
    is_check = parser.parse_args(arguments).check
    if not FOLDER.is_dir():
        print(f"{FOLDER} is not there: run this from a checkout", file=sys.stderr)
        return 1
    names = stale(FOLDER)
    for name in names:
        if is_check:
            print(f"docs/{name} is not what the code says: run python -m graphdist.tools.documents")
        else:
            (FOLDER / name).write_text(PAGES[name](), encoding="utf-8")
            print(f"docs/{name} written")
    return 1 if is_check and names else 0
