"""The names in the code of a function: globals, modules, attributes, variables of its closure."""

from __future__ import annotations

import dis
import types
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any  # Any: users' values

from graphdist.tracing.user_lines import CodeOwner, owner_of

_ANY_ATTRIBUTE = frozenset(
    ("getattr", "hasattr", "vars", "asdict", "astuple", "attrgetter", "methodcaller")
)
"""Functions that read attributes whose names are not in the code."""


@dataclass(frozen=True)
class CodeNames:
    """The names in code, those in nested functions included."""

    globals: tuple[str, ...]
    modules: tuple[str, ...]
    attributes: frozenset[str]
    reads_any_attribute: bool
    owner: CodeOwner


@lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> CodeNames:
    """Return the names in code."""
    names: dict[str, set[str]] = {"global": set(), "module": set(), "attribute": set()}
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(each):
            opname = instruction.opname
            kind = _KINDS.get(opname) or _KINDS.get(opname.rpartition("_")[2])
            if kind is not None:
                names[kind].add(str(instruction.argval))
    attributes = frozenset(names["attribute"])
    return CodeNames(
        tuple(sorted(names["global"])),
        tuple(sorted(names["module"])),
        attributes,
        bool(_ANY_ATTRIBUTE & (names["global"] | attributes) or "__dict__" in attributes),
        owner_of(code.co_filename),
    )


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of a function's closure that have a value."""
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # the cell is empty
            values[name] = cell.cell_contents
    return values


_KINDS = {
    **dict.fromkeys(("GLOBAL", "NAME"), "global"),
    **dict.fromkeys(("ATTR", "METHOD", "IMPORT_FROM"), "attribute"),
    "IMPORT_NAME": "module",
}
"""The kinds of names in bytecode, by the instruction or the last word of the instruction."""
