"""Hands each program that a function compiles to the viewer, where a folder for pages is set.

It is done before XLA compiles, so that a compilation that fails leaves its page too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from graphdist.config import dump_folder
from graphdist.program.stages import Lowered, leave_page

Dump: TypeAlias = Callable[[Lowered, str], None]
"""Takes a program, and why it is compiled again if the function does not know."""

next_function = count(1).__next__
"""Return the next number of a function, by which its programs are told from another's."""


def dump_of(function: int, why: Callable[[], str]) -> Dump:
    """Return what writes the pages of a function's program; `why` says why it is compiled.

    `why` is asked at once: it holds the arguments of a call, and the result is kept.
    """
    reason = "" if dump_folder() is None else why()

    def dump(lowered: Lowered, moved: str) -> None:
        folder = dump_folder()
        if folder is not None:
            leave_page(lowered, folder, function, moved or reason)

    return dump
