"""Bytes, counts and seconds as text for people, and tables of them."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence


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


class ShownText(str):
    r"""A text that a REPL and a notebook show as `print` does.

    >>> ShownText("one\ntwo")
    one
    two
    """

    __slots__ = ()
    __repr__ = str.__str__


def table(rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a table; the columns with the indices `left` are aligned to the left.

    >>> table([["", "bytes"], ["one", "8"]])
    ['     bytes', 'one      8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def record_table(records: Sequence[Mapping[str, str]], left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a table with a row for each record. The records' keys are the header.

    >>> record_table([{"": "one", "bytes": "8"}])
    ['     bytes', 'one      8']
    """
    return table([list(records[0]), *(list(record.values()) for record in records)], left)
