"""Warnings of what may happen thousands of times a second: at once, and then once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_BETWEEN = 60.0


class CountedWarnings:
    """Says the first text at once; later at most one line a minute, with their number and the last.

    `remind` says what is due, also if nothing comes any more. `warn` is given each line, `clock`
    tells the seconds.

    >>> seconds, lines = [0.0], []
    >>> refused = CountedWarnings(lines.append, lambda: seconds[0])
    >>> for text in ("a was refused", "b was refused", "c was refused"):
    ...     refused.add(text)
    >>> seconds[0] = 60.0
    >>> refused.remind()
    >>> lines
    ['a was refused', 'c was refused (2 of this kind in 60 s)']
    """

    def __init__(
        self, warn: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take what writes a line, and the clock."""
        self._warn, self._clock = warn, clock
        self._last, self._count = "", 0
        self._said_at = float("-inf")

    def add(self, text: str) -> None:
        """Say a text, or count it."""
        self._last, self._count = text, self._count + 1
        self.remind()

    def remind(self) -> None:
        """Say the last text and the number of all since the last line, once a minute."""
        since = self._clock() - self._said_at
        if self._count and since >= SECONDS_BETWEEN:
            counted = f" ({self._count:,} of this kind in {since:.0f} s)" if self._count > 1 else ""
            self._warn(self._last + counted)
            self._count, self._said_at = 0, self._clock()
