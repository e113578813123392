"""Cases that cannot or should not behave as TensorFlow's, by pattern, each with the reason.

A pattern is a case's name, with `*` for anything and `{a,b}` for one of several; `at` is the path
of the part of the result that differs, for cases that try many things at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Declared:
    """A pattern of names of cases, of a part of their results, and why that part differs."""

    pattern: str
    reason: str
    at: str = "*"

    def covers(self, name: str, path: str) -> bool:
        """Return whether a difference at a path of a case is declared."""
        return self.names(name) and bool(expression(self.at).fullmatch(path))

    def names(self, name: str) -> bool:
        """Return whether the pattern is about a case."""
        return bool(expression(self.pattern).fullmatch(name))


@cache
def expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression."""
    pieces = re.split(r"(\*|\{[^}]*\})", pattern)
    return re.compile("".join(map(_piece, pieces)))


def _piece(piece: str) -> str:
    if piece == "*":
        return ".*"
    if piece.startswith("{"):
        return f"(?:{'|'.join(map(re.escape, piece[1:-1].split(',')))})"
    return re.escape(piece)


DECLARED: tuple[Declared, ...] = ()
