"""Whole numbers that come as text or from users: of tasks, ports and restarts."""

from __future__ import annotations

import operator

from graphdist.errors import ArgumentError
from graphdist.quoted import quoted
from graphdist.tracing.user_lines import here

MOST_TASKS = 1 << 20
"""The most tasks of a cluster: what is beyond is a mistake, and would fill the memory."""


def whole_number(value: object, name: str, least: int = 0, most: int = MOST_TASKS) -> int:
    """Return a number that is given as an integer or in decimal digits.

    Raises `ArgumentError` for another value, which says the `name` of the number.

    >>> whole_number("7", "SLURM_PROCID")
    7
    >>> whole_number(1.5, "the task index", most=9)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: the task index is 1.5, not a whole number from 0 to 9
    ...
    """
    found = None
    if isinstance(value, str):
        if value.isascii() and value.isdecimal() and len(value) <= len(str(most)):
            found = int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        found = operator.index(value)
    if found is None or not least <= found <= most:
        raise ArgumentError(
            f"{name} is {quoted(value)}, not a whole number from {least} to {most}", source=here()
        )
    return found
