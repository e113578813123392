"""The names in the code of a function: what it can read and change without being given it."""

from __future__ import annotations

import dis
import types
from dataclasses import dataclass
from functools import lru_cache

from graphdist.tracing.user_lines import CodeOwner, owner_of

_ANY_ATTRIBUTE = frozenset(
    ("getattr", "hasattr", "vars", "asdict", "astuple", "attrgetter", "methodcaller")
)
"""Functions that are given the name of an attribute, or read all."""


@dataclass(frozen=True)
class CodeNames:
    """The names in code, and in the functions that are defined in it."""

    globals: tuple[str, ...]
    modules: tuple[str, ...]
    attributes: frozenset[str]
    reads_any_attribute: bool
    owner: CodeOwner


@lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> CodeNames:
    """Return the names in code."""
    found: dict[str, set[str]] = {"global": set(), "module": set(), "attribute": set()}
    codes = [code]
    for each in codes:
        codes += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
        for instruction in dis.get_instructions(each):
            kind = _KINDS.get(instruction.opname)
            if kind is not None:
                found[kind].add(str(instruction.argval))
    attributes = frozenset(found["attribute"])
    return CodeNames(
        tuple(sorted(found["global"])),
        tuple(sorted(found["module"])),
        attributes,
        bool(_ANY_ATTRIBUTE & (found["global"] | attributes) or "__dict__" in attributes),
        owner_of(code.co_filename),
    )


_KINDS = {
    **{
        f"{verb}_{kind}": "global"
        for verb in ("LOAD", "STORE", "DELETE")
        for kind in ("GLOBAL", "NAME")
    },
    **{f"{verb}_ATTR": "attribute" for verb in ("LOAD", "STORE", "DELETE", "LOAD_SUPER")},
    "LOAD_METHOD": "attribute",
    "IMPORT_FROM": "attribute",
    "IMPORT_NAME": "module",
}
"""The instructions of Python's code that have a name, by where the name is looked up."""
