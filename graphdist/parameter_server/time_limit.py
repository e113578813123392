"""How long a user is willing to wait."""

from __future__ import annotations

import time
from threading import TIMEOUT_MAX
from typing import Any  # Any: what users give

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import here


class TimeLimit:
    """A limit that begins now; None is for any time."""

    def __init__(self, timeout: Any) -> None:
        """Take a number of seconds; raises `ArgumentError` for anything else."""
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise ArgumentError(
                f"timeout is {timeout!r}, not a number of seconds",
                source=here(),
                hint="leave it out to wait as long as it takes",
            )
        self._seconds = float("inf") if timeout is None else float(timeout)
        self._deadline = time.monotonic() + self._seconds

    def left(self) -> float | None:
        """Return how many seconds are left, None for any number."""
        left = max(0.0, self._deadline - time.monotonic())
        return None if left > TIMEOUT_MAX else left

    def __str__(self) -> str:
        return f"{self._seconds:g} s"
