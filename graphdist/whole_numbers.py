"""Reads whole numbers from text and from users, such as ports and numbers of tasks."""

from __future__ import annotations

import operator

from graphdist.errors import ArgumentError
from graphdist.quoted import quoted

MOST_TASKS = 1 << 20
"""The largest number of tasks of a cluster. A larger number is a mistake, and fills the memory."""


def whole_number(value: object, name: str, least: int = 0, most: int = MOST_TASKS) -> int:
    """Return a whole number, given as an integer or as decimal digits.

    Raises `ArgumentError`, which calls the number `name`, for any other value.

    >>> whole_number("7", "SLURM_PROCID")
    7
    >>> whole_number(1.5, "the task index", most=9)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    graphdist.errors.ArgumentError: the task index is 1.5, not a whole number from 0 to 9
    ...
    """
    number = None
    if isinstance(value, str):
        if value.isascii() and value.isdecimal() and len(value) <= len(str(most)):
            number = int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        number = operator.index(value)
    if number is None or not least <= number <= most:
        raise ArgumentError(f"{name} is {quoted(value)}, not a whole number from {least} to {most}")
    return number
