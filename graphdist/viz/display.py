"""Programs in a notebook, in the browser, and in a folder of pages with an index.

`gd.config.set_dump` sets the folder. When a function is compiled again, the index gets one more
row, which says why, and a page that compares the new program with the previous one is written. A
new index replaces the old file as a whole, so a reader never sees half of it. Every worker except
worker 0 writes to a folder of its own, such as `worker1`. A process that finds another process
writing to the folder does the same, in a folder such as `process4242`.

A failure to write pages does not fail the run. The first failure in a folder is logged. Of one
function, at most `MOST` programs get pages.
"""

from __future__ import annotations

import html
import logging
import sys
import tempfile
import webbrowser
from collections import Counter
from functools import cache, cached_property
from pathlib import Path
from threading import Lock

import jax

from graphdist.ir.graph import Graph
from graphdist.program.stages import Lowered
from graphdist.runtime.files.checkpoint_owner import OwnerProcess
from graphdist.viz import page
from graphdist.viz.formats import Shown, render
from graphdist.viz.graph_diff import diff
from graphdist.viz.page import IndexRow, figures_of, file_name, render_index
from graphdist.viz.program import ShownProgram, ShownStep, program_of

_HEIGHT = 720


def show(shown: Shown, format: str = "html") -> None:
    """Show a program. "html" opens in the notebook, or else in a browser; other formats print."""
    if format != "html":
        print(render(shown, format), end="")
    elif _in_notebook():
        from IPython.display import HTML, display

        display(HTML(notebook_cell(shown)))
    else:
        open_page(render(shown, "html"))


def notebook_cell(shown: Shown) -> str:
    """Return the HTML for a notebook's cell: an iframe that contains the page."""
    content = html.escape(render(shown, "html"), quote=True)
    return (
        f'<iframe srcdoc="{content}" sandbox="allow-scripts" title="graphdist" '
        f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884"></iframe>'
    )


def open_page(page: str, path: Path | None = None) -> Path:
    """Write a page to `path`, or to a temporary file without a path, and open it in a browser."""
    path = path or Path(tempfile.mkdtemp(prefix="graphdist-"), "program.html")
    path.write_text(page, encoding="utf-8")
    return open_file(path)


def open_file(path: Path) -> Path:
    """Open the page at `path` in a browser. Print the path if no browser starts."""
    if not webbrowser.open(path.resolve().as_uri()):
        print(f"no browser could be started; the page is in {path}", file=sys.stderr)
    return path


def _in_notebook() -> bool:
    """Return whether this runs in a notebook's kernel. IPython in a terminal shows no HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


MOST = 50
OWNER = ".owner"
"""The file that says which process writes to the folder."""
_log = logging.getLogger("graphdist")


def dump_stage(lowered: Lowered, folder: Path, function: int, reason: str) -> None:
    """Write the page of a program, and the index.

    `function` is the id of the program's function. `reason` says why the function was compiled
    again, and is "" for the first program of the function.
    """
    with _lock:
        _dump_folder(folder.absolute()).add(lowered, function, reason)


class _DumpFolder:
    """The pages of one folder, and the last graph of each function."""

    def __init__(self, asked: Path) -> None:
        self._asked = asked
        self._entries: list[IndexRow] = []
        self._names: list[str] = []
        self._last: dict[int, Graph] = {}
        self._counts: Counter[int] = Counter()
        self._has_failed = False

    def add(self, lowered: Lowered, function: int, reason: str) -> None:
        """Write the page of a program and the index; log the first failure."""
        self._counts[function] += 1
        if self._counts[function] > MOST:
            return
        try:
            self._write(program_of(lowered), function, reason)
        except Exception as error:
            if not self._has_failed:
                _log.warning("the page of %s is not written: %s", lowered.graph.name, error)
            self._has_failed = True

    @cached_property
    def _own(self) -> Path:
        """Return the folder that this process writes to."""
        worker = jax.process_index()
        return _claimed(self._asked / f"worker{worker}" if worker else self._asked)

    def _write(self, program: ShownProgram, function: int, reason: str) -> None:
        earlier = self._last.get(function)
        self._last[function] = program.graph
        own = self._page(program.graph.name, program)
        changes, notes = "", [f"compiled again: {reason}"] if reason else []
        if earlier is not None:
            change = diff(earlier, program.graph)
            num_changed = len(change.rewired) + len(change.changed)
            counts = f"{len(change.added)} nodes added, {len(change.removed)} removed"
            notes.append(f"{counts}, {num_changed} changed")
            both = ShownStep("last program", earlier), ShownStep("this program", program.graph)
            changes = self._page(f"{own[:-5]}-changes", ShownProgram(both, compares=True))
        if self._counts[function] == MOST:
            notes.append("later programs of this function leave no pages")
        row = IndexRow(program.graph.name, own, figures_of(program), "; ".join(notes), changes)
        self._entries.append(row)
        title = f"{self._asked.name}: compiled functions"
        self._replace("index.html", render_index(title, self._entries))

    def _page(self, name: str, program: ShownProgram) -> str:
        own = file_name(name, self._names)
        self._names.append(own)
        self._replace(own, page.render(program))
        return own

    def _replace(self, name: str, text: str) -> None:
        """Write a file so that a reader never sees half of the file."""
        part = self._own / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._own / name)


def _claimed(folder: Path) -> Path:
    """Return a folder that no other process writes to: `folder`, or else a new folder in it."""
    folder.mkdir(parents=True, exist_ok=True)
    ours, record = OwnerProcess.this_process(), folder / OWNER
    try:
        with record.open("xb") as file:
            file.write(ours.record(0))
    except FileExistsError:
        other = OwnerProcess.of(record.read_bytes())  # None while the other writes its record
        if other is None or other.is_gone(has_lock=False) is not True:
            own = folder / f"process{ours.process}"
            own.mkdir(exist_ok=True)
            return own
        record.write_bytes(ours.record(0))
    return folder


_lock = Lock()
_dump_folder = cache(_DumpFolder)
"""Return the `_DumpFolder` of a path, always the same object for the same path."""
