"""Patterns of names of cases, and of parts of their results.

A pattern is a name, with `*` for anything and `{a,b}` for one of several.
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
    """Return a pattern as a regular expression; braces may stand in braces."""
    pieces = re.split(r"([*{},])", pattern)
    depth, text = 0, ""
    for piece in pieces:
        depth += (piece == "{") - (piece == "}")
        text += "|" if piece == "," and depth else _PIECES.get(piece) or re.escape(piece)
    return re.compile(text)


_PIECES = {"*": ".*", "{": "(?:", "}": ")"}


def declare(reason: str, *patterns: str, at: str = "*") -> tuple[Declared, ...]:
    """Return the entries of cases that differ for one reason."""
    return tuple(Declared(pattern, reason, at) for pattern in patterns)
