"""Bytes, counts and seconds as text for people, and tables and lines that fit a terminal.

A text has at most `WIDTH` columns. Lines are broken between words. A word that is longer than its
line, such as a long name, loses its middle. A heading begins at the left margin, and all other
lines are indented, so that a terminal can show headings in bold (`graphdist.tools.console`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

WIDTH = 80
"""The columns of a terminal of the usual width."""
_NARROW = 12
"""The width of a column with text below which columns of numbers become narrower, too."""


def size_text(size: float) -> str:
    """Return a number of bytes as text.

    >>> size_text(3 * 2**29)
    '1.50 GiB'
    """
    return (
        f"{size:.0f} B" if abs(size) < 1024 else _scaled(size, 1024, ["KiB", "MiB", "GiB", "TiB"])
    )


def count_text(count: float) -> str:
    """Return a large number as text.

    >>> count_text(1.5e12)
    '1.50 T'
    """
    return f"{count:.0f} " if abs(count) < 1000 else _scaled(count, 1000, "KMGTPE")


def _scaled(number: float, base: int, units: Sequence[str]) -> str:
    exponent = 1
    while abs(number) >= base ** (exponent + 1) and exponent < len(units):
        exponent += 1
    return f"{number / base**exponent:.2f} {units[exponent - 1]}"


def time_text(seconds: float) -> str:
    """Return a time as text.

    >>> time_text(0.00123)
    '1.23 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.2f} {unit}"
    return f"{seconds / 1e-6:.2f} us"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "device"), plural(1200, "device")
    ('1 device', '1,200 devices')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class ShownText(str):
    r"""A text that a REPL and a notebook show as `print` does.

    >>> ShownText("one\ntwo")
    one
    two
    """

    __slots__ = ()
    __repr__ = str.__str__


def wrapped(text: str, width: int = WIDTH) -> list[str]:
    """Return the lines of a text, broken between words.

    >>> wrapped("three short words", 12)
    ['three short', 'words']
    >>> wrapped("a_very_long_name", 10)
    ['a_ve..name']
    """
    text = " ".join(_shortened(word, width) for word in _words(text))
    lines = textwrap.wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]


NO_BREAK = "\xa0"
"""A space at which `wrapped` does not break a line."""


def _words(text: str) -> list[str]:
    """Return the words of a text. A number and its unit are one word."""
    return re.sub(r"(?<=\d) ", NO_BREAK, text).split(" ")


def _shortened(word: str, width: int) -> str:
    half = (width - 2) // 2
    return word if len(word) <= width else f"{word[:half]}..{word[len(word) - half :]}"


def fitted_lines(lines: Iterable[str]) -> Iterator[str]:
    r"""Yield lines, each broken where it is too long. The rest of a line is indented.

    >>> print(*fitted_lines(["  declined: " + "because " * 10]), sep="\n")
      declined: because because because because because because because because
        because because
    """
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        if len(line) <= WIDTH:
            yield line
            continue
        first, *rest = wrapped(line[indent:], WIDTH - indent - 2)
        yield " " * indent + first
        yield from (" " * (indent + 2) + each for each in rest)


def table(
    rows: Sequence[Sequence[str]], left: Container[int] = (0,), width: int = WIDTH
) -> list[str]:
    """Return the lines of a table; the columns with the indices `left` are aligned to the left.

    A table that is too wide has its widest texts broken into several lines.

    >>> table([["", "bytes"], ["one", "8"]])
    ['     bytes', 'one      8']
    >>> table([["8", "of a long text"]], left=(1,), width=14)
    ['8  of a long', '   text']
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max(len(word) for cell in column for word in _words(cell)) for column in columns]
    every = range(len(columns))
    while sum(widths) + 2 * len(widths) - 2 > width:
        several = [each for each in every if widths[each] > words[each]]
        texts = [each for each in every if each in left and widths[each] > _NARROW]
        widths[max(several or texts or every, key=widths.__getitem__)] -= 1
    return [line for row in rows for line in _row_lines(row, widths, left)]


def _row_lines(cells: Sequence[str], widths: Sequence[int], left: Container[int]) -> Iterator[str]:
    columns = map(wrapped, cells, widths)
    for line in zip_longest(*columns, fillvalue=""):
        yield "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()


def indented_table(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a table under a heading, indented by two columns."""
    return [f"  {line}" for line in table(rows, left, WIDTH - 2)] if rows else []


def record_table(records: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the lines of a table with a row for each record. The records' keys are the header.

    >>> record_table([{"": "one", "bytes": "8"}])
    ['     bytes', 'one      8']
    """
    return table(
        [list(records[0]), *(list(record.values()) for record in records)], (0,), WIDTH - 2
    )
