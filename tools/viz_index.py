"""`graphdist-viz file.py --all`: a page for each function of a program, and an index of them.

The functions are those that the module defines: factories of steps, and functions of
`gd.function`. One that cannot be shown, say since its arguments are not known, has a row that says
why; the others are shown all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from graphdist.errors import ArgumentError, GraphdistError
from graphdist.program.function import Function
from graphdist.tools.steps import is_factory
from graphdist.tools.targets import import_target
from graphdist.tools.viz_targets import VizTarget
from graphdist.tracing.user_lines import here
from graphdist.viz import page
from graphdist.viz.index_page import IndexRow, figures_of, file_name, render, report_note

__all__ = ["shown_functions", "write_index"]

INDEX = "index.html"


def shown_functions(place: str) -> dict[str, bool]:
    """Return the functions of a file or module that can be shown, and whether each is a factory.

    They are in the order of their lines. Raises `ArgumentError` for a place with none.
    """
    module = import_target(place)
    found = {
        name: value
        for name, value in vars(module).items()
        if _is_own(value, module.__name__) and not name.startswith("_")
    }
    if not found:
        raise ArgumentError(
            f"{place} defines no factory of a step and no gd.function",
            source=here(),
            hint="a factory takes the strategy and returns (function, args)",
        )
    return {name: is_factory(value) for name, value in found.items()}


def _is_own(value: object, module: str) -> bool:
    if isinstance(value, Function):
        return value.fn.__module__ == module
    is_function = inspect.isfunction(value) and value.__module__ == module
    return is_function and callable(value) and is_factory(value)


def write_index(
    place: str, folder: Path, load: Callable[[str], VizTarget], names: Sequence[str]
) -> Path:
    """Write a page for each function, and the index; returns the index.

    Raises `ArgumentError` if no function can be shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries: list[IndexRow] = []
    for name in names:
        try:
            program = load(name).program
        except GraphdistError as error:
            entries.append(IndexRow(name, note=error.what))
            continue
        own = file_name(name, [entry.page for entry in entries])
        (folder / own).write_text(page.render(program), encoding="utf-8", errors="backslashreplace")
        entries.append(IndexRow(name, own, figures_of(program), report_note(program)))
    if not any(entry.page for entry in entries):
        reasons = "; ".join(f"{entry.name}: {entry.note}" for entry in entries)
        raise ArgumentError(f"no function of {place} can be shown: {reasons}", source=here())
    index = folder / INDEX
    index.write_text(render(place, entries), encoding="utf-8", errors="backslashreplace")
    return index
