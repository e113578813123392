"""The limit of the time for which a user waits."""

from __future__ import annotations

import time
from threading import TIMEOUT_MAX
from typing import Any  # Any: values of users

from graphdist.errors import ArgumentError


class TimeLimit:
    """A limit of time from now on; None: no limit."""

    def __init__(self, timeout: Any) -> None:
        """Begin a limit of `timeout` seconds; raise `ArgumentError` if that is no number."""
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if timeout is not None and not (is_number and timeout >= 0):
            raise ArgumentError(
                f"timeout is {timeout!r}, not a number of seconds",
                hint="leave it out to wait as long as it takes",
            )
        self._seconds = float("inf") if timeout is None else float(timeout)
        self._deadline = time.monotonic() + self._seconds

    def left(self) -> float | None:
        """Return the seconds that are left; None without a limit."""
        left = max(0.0, self._deadline - time.monotonic())
        return None if left > TIMEOUT_MAX else left

    def __str__(self) -> str:
        return f"{self._seconds:g} s"
