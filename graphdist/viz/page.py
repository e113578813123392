"""The page of a program, and the index of several pages: HTML that makes no network request.

A page is a single file that opens from disk. The page contains the program as the JSON of
`graphdist.viz.document`, with the text of the user's files, deflated and in base64, so that nothing
in a user's program can be interpreted as HTML. A policy in the page forbids every request. The page
has no absolute name of a file: names are relative to the project or the package of the file. The
script and the style are built from `graphdist/viz/web` and are in `graphdist/viz/static`, with the
licences of their parts. The style of the index is there, too.

The index has one row for each program, with its numbers of nodes and bytes, and links to pages in
the same folder. The index has no script. Its rows are HTML, and text of the user's program is
escaped.
"""

from __future__ import annotations

import html
import json
import linecache
import os
import re
import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any  # Any: JSON
from urllib.parse import quote

from graphdist.garbage import collection_put_off
from graphdist.report.amounts import size_text, time_text
from graphdist.viz.document import program_document
from graphdist.viz.model import memory_timeline, model_of
from graphdist.viz.program import ShownProgram

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


@collection_put_off()  # a hundred thousand objects are made and kept, and none is garbage
def render(program: ShownProgram) -> str:
    """Return the page of a program with all its steps."""
    content = program_document(program)
    content["files"] = _files(content)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    text = _without_folders(text, {file for source in content["sources"] for file, *_ in source})
    # Level 1 takes a third of the time of the best level. Its result is a quarter larger.
    packed = b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), level=1)).decode()
    body = [
        '<body><div id="app"><p>This page needs JavaScript.</p></div>',
        f'<script type="application/octet-stream" id="program">{packed}</script>',
        f"<script>{_static('viewer.js')}</script>",
        "</body></html>\n",
    ]
    return _html(html.escape(program.graph.name), _POLICY, "viewer.css", *body)


def _html(title: str, policy: str, style: str, *body: str) -> str:
    """Return a page. `style` is the file name of the style sheet, `body` has the page's lines."""
    head = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title} - graphdist</title>",
        f"<style>{_static(style)}</style></head>",
    ]
    return "\n".join([*head, *body])


def _files(content: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each source file that still exists."""
    names = {file for source in content["sources"] for file, *_ in source}
    lines = {name: linecache.getlines(name) for name in sorted(names)}
    return {name: [line.rstrip("\r\n") for line in text] for name, text in lines.items() if text}


_PROJECT = "pyproject.toml", "setup.py", ".git"
_PACKAGES = "site-packages", "dist-packages"


def _without_folders(text: str, names: set[str]) -> str:
    """Return JSON in which absolute file names are relative to the files' projects or packages."""
    shown: dict[str, str] = {}
    for name in sorted(filter(os.path.isabs, names)):
        path = PurePath(name)
        own = len(path.parts) - 1  # parts that are left out
        for above, folder in enumerate(path.parents, 1):
            is_project = any(os.path.exists(folder / each) for each in _PROJECT)
            if folder.name in _PACKAGES or is_project:
                own = len(path.parts) - above
                break
        while PurePath(*path.parts[own:]).as_posix() in shown.values():
            own -= 1  # another file has this name
        shown[name] = PurePath(*path.parts[own:]).as_posix()
    for name in sorted(shown, key=len, reverse=True):
        old, new = (json.dumps(each, ensure_ascii=False)[1:-1] for each in (name, shown[name]))
        text = text.replace(old, new)
    return text


@cache
def _static(name: str) -> str:
    return files("graphdist.viz").joinpath("static", name).read_text("utf-8")


_POLICY_OF_INDEX = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_COLUMNS = ("Function", "Replicas", "Nodes", "Collectives", "Bytes moved", "Peak by the graph")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class IndexRow:
    """A row of the index: a program, its page, the texts of its columns, and a note.

    `changes` is the page that compares the program with the function's previous program, "" for the
    first program. If there is no page, the note says why.
    """

    name: str
    page: str = ""
    figures: tuple[str, ...] = ()
    note: str = ""
    changes: str = ""


def render_index(title: str, entries: Sequence[IndexRow]) -> str:
    """Return the index page."""
    head = "".join(f'<th scope="col">{column}</th>' for column in (*_COLUMNS, "Notes"))
    return _html(
        _escaped(title),
        _POLICY_OF_INDEX,
        "index.css",
        f"<body><main><h1>{_escaped(title)}</h1>",
        f"<table><thead><tr>{head}</tr></thead><tbody>",
        *map(_row, entries),
        "</tbody></table></main></body></html>\n",
    )


def figures_of(program: ShownProgram) -> tuple[str, ...]:
    """Return the texts of the index's columns for the last graph of a program."""
    model = model_of(program.graph)
    counts = program.graph.num_replicas, model.num_nodes, len(model.collectives)
    sizes = model.moved, memory_timeline(model).peak
    return (*map("{:,}".format, counts), *map(size_text, sizes))


def report_note(program: ShownProgram) -> str:
    """Return a note that says whether a program fits its topology, and its predicted time.

    The note is "" for a program without a report.
    """
    report = program.report
    if report is None:
        return ""
    fits = "fits" if report.fits else "does not fit"
    time = report.timeline
    return f"{fits} {program.topology}" + (f", {time_text(time.step)} per step" if time else "")


def file_name(name: str, taken: Sequence[str] = ()) -> str:
    """Return a file name for the page of a function that is not in `taken`.

    The name is made of letters, digits and `_.-`.

    >>> file_name("train/step<1>", taken=["train_step_1.html"])
    'train_step_1-2.html'
    """
    stem = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII).strip("_.")[:80] or "function"
    file, count = f"{stem}.html", 1
    while file in taken or file == "index.html":
        count += 1
        file = f"{stem}-{count}.html"
    return file


def _row(entry: IndexRow) -> str:
    figures = entry.figures or [""] * (len(_COLUMNS) - 1)
    name = _link(entry.page, entry.name) if entry.page else _escaped(entry.name)
    changes = f" {_link(entry.changes, 'what changed')}" if entry.changes else ""
    return (
        f'<tr><th scope="row">{name}</th>'
        + "".join(f'<td class="figure">{_escaped(figure)}</td>' for figure in figures)
        + f'<td class="note">{_escaped(entry.note)}{changes}</td></tr>'
    )


def _link(page: str, text: str) -> str:
    return f'<a href="{html.escape(quote(page))}">{_escaped(text)}</a>'


def _escaped(text: str) -> str:
    """Return text as HTML; invisible characters are written as their code points."""
    return html.escape(_UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text[:2000]))
