"""Stand-ins for the parameters that the text of a graph does not hold.

The text has a number and a label of each, such as `<5: ndarray f32[64]>`. A graph that is parsed to
be looked at, and not to be run, has an `ArrayPlaceholder` for an array, whose type the graph's own
types depend on, and None for anything else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ARRAY = re.compile(r"<\d+: (?P<kind>[\w.]+) (?P<dtype>\w+)\[(?P<shape>[\d,]*)\]>")
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ArrayPlaceholder:
    """An array of which the text has the type alone."""

    kind: str
    dtype: str
    shape: tuple[int, ...]


class OpaquePlaceholders:
    """A side table for any text: it has a stand-in for every label."""

    def of(self, text: str) -> ArrayPlaceholder | None:
        """Return the stand-in for a parameter that is written so.

        >>> OpaquePlaceholders().of("<5: ndarray f32[64,2]>")
        ArrayPlaceholder(kind='ndarray', dtype='f32', shape=(64, 2))
        """
        match = _ARRAY.fullmatch(text)
        if match is None:
            return None
        sizes = [size for size in match["shape"].split(",") if size]
        if any(len(size) > _MOST_DIGITS for size in sizes):
            return None
        return ArrayPlaceholder(match["kind"], match["dtype"], tuple(map(int, sizes)))


PLACEHOLDERS = OpaquePlaceholders()
