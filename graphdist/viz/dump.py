"""Pages of the programs that a run compiles, in a folder, with an index of them.

`gd.config.set_dump` sets the folder. A function that is compiled again has one more row in the
index, which says why, and a page that compares its new program with the last one. The index is
replaced each time in one step, so that a reader finds it complete while the run goes on. Workers
but the first write to folders of their own, `worker1`, ..., and so does a process that finds
another one writing, `process4242`.

Nothing that fails here fails the run: it is logged, once for a folder. A function that is compiled
for ever leaves `MOST` pages.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from threading import Lock

import jax

from graphdist.ir.graph import Graph
from graphdist.program.stages import Lowered
from graphdist.runtime.files.checkpoint_owner import OwnerProcess
from graphdist.viz import page
from graphdist.viz.graph_diff import diff
from graphdist.viz.index_page import IndexRow, figures_of, file_name, render
from graphdist.viz.program import ShownProgram, ShownStep, program_of

__all__ = ["dump_stage"]

MOST = 50
OWNER = ".owner"
"""The file that says which process writes to the folder."""
_log = logging.getLogger("graphdist")


def dump_stage(lowered: Lowered, folder: Path, function: int, reason: str) -> None:
    """Write the page of a program of the function of this number, and the index."""
    with _lock:
        found = _folders.get(folder.absolute())
        if found is None:
            found = _folders[folder.absolute()] = _DumpFolder(folder.absolute())
        found.add(lowered, function, reason)


class _DumpFolder:
    """The pages of one folder, and the last graph of each function."""

    def __init__(self, asked: Path) -> None:
        self._asked = asked
        self._own: Path | None = None
        self._entries: list[IndexRow] = []
        self._names: list[str] = []
        self._last: dict[int, Graph] = {}
        self._counts: Counter[int] = Counter()
        self._has_failed = False

    def add(self, lowered: Lowered, function: int, reason: str) -> None:
        """Write the page of a program and the index; log what fails, the first time."""
        self._counts[function] += 1
        if self._counts[function] > MOST:
            return
        try:
            self._write(program_of(lowered), function, reason)
        except Exception as error:
            if not self._has_failed:
                _log.warning("the page of %s is not written: %s", lowered.graph.name, error)
            self._has_failed = True

    def _write(self, program: ShownProgram, function: int, reason: str) -> None:
        if self._own is None:
            worker = jax.process_index()
            self._own = _claimed(self._asked / f"worker{worker}" if worker else self._asked)
        earlier = self._last.get(function)
        self._last[function] = program.graph
        own = self._page(program.graph.name, program)
        changes, note = "", reason and f"compiled again: {reason}"
        if earlier is not None:
            change = diff(earlier, program.graph)
            note += (
                f"; {len(change.added)} nodes added, {len(change.removed)} removed, "
                f"{len(change.rewired) + len(change.changed)} changed"
            )
            both = ShownStep("last program", earlier), ShownStep("this program", program.graph)
            changes = self._page(f"{own[:-5]}-changes", ShownProgram(both, compares=True))
        if self._counts[function] == MOST:
            note += "; later programs of this function leave no pages"
        self._entries.append(
            IndexRow(program.graph.name, own, figures_of(program), note.lstrip("; "), changes)
        )
        self._replace(
            "index.html", render(f"{self._asked.name}: compiled functions", self._entries)
        )

    def _page(self, name: str, program: ShownProgram) -> str:
        own = file_name(name, self._names)
        self._names.append(own)
        self._replace(own, page.render(program))
        return own

    def _replace(self, name: str, text: str) -> None:
        """Write a file so that a reader never sees a part of it."""
        assert self._own is not None
        part = self._own / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._own / name)


def _claimed(folder: Path) -> Path:
    """Return a folder that no other process writes to: this one, or one of our own in it."""
    folder.mkdir(parents=True, exist_ok=True)
    ours, record = OwnerProcess.this_process(), folder / OWNER
    try:
        with record.open("xb") as file:
            file.write(ours.record(0))
    except FileExistsError:
        other = OwnerProcess.of(record.read_bytes())  # None while the other is writing it
        if other is None or other.is_gone(has_lock=False) is not True:
            own = folder / f"process{ours.process}"
            own.mkdir(exist_ok=True)
            return own
        record.write_bytes(ours.record(0))
    return folder


_lock = Lock()
_folders: dict[Path, _DumpFolder] = {}
