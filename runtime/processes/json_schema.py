"""Checks JSON from files and from the network against a schema, before anything reads it.

The JSON may be damaged, or written by somebody else. A schema describes every field that is read,
so that code behind the check can rely on the fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias  # Any: JSON

from graphdist.quoted import quoted

Wanted: TypeAlias = Any
"""A class; a dict with the schema of each key's value; a list with the schema of each element; or a
function that returns what is wrong with a value, or None."""
Check: TypeAlias = Callable[[Any, str], str | None]


def mismatch(actual: Any, wanted: Wanted, at: str = "", root: str = "it") -> str | None:
    """Return what is wrong with the first value in JSON that breaks a schema; None if none does.

    `at` is the path to the value; without one, the value is called `root`.

    >>> mismatch({"sizes": [1, "2"]}, {"sizes": [int]})
    "sizes[1] is '2', not an int"
    >>> mismatch({"sizes": [1, 2]}, {"sizes": [int]}) is None
    True
    """
    if isinstance(wanted, dict):
        if not isinstance(actual, dict):
            return wrong(at or root, actual, "not an object")
        for key, wanted_value in wanted.items():
            if key not in actual:
                return f"{at or root} has no {key}"
            if problem := mismatch(actual[key], wanted_value, _inside(at, key)):
                return problem
        return None
    if isinstance(wanted, list):
        if not isinstance(actual, list):
            return wrong(at, actual, "not a list")
        found = (mismatch(element, wanted[0], f"{at}[{i}]") for i, element in enumerate(actual))
        return next(filter(None, found), None)
    if isinstance(wanted, type):
        # In Python `True` is an `int`.
        if isinstance(actual, wanted) and (wanted is bool or not isinstance(actual, bool)):
            return None
        return wrong(at, actual, f"not {'an' if wanted is int else 'a'} {wanted.__name__}")
    problem = wanted(actual, at)
    return problem and str(problem)


def _inside(at: str, key: str) -> str:
    return f"{at}.{quoted(key)[1:-1]}" if at else key


def wrong(at: str, actual: Any, why: str) -> str:
    """Return the text that a value is wrong; the value may be large or deeply nested."""
    return f"{at} is {quoted(actual, 60)}, {why}"


def _check(is_right: Callable[[Any], bool], why: str) -> Check:
    """Return a check for values that are right; `why` says what a wrong value is not."""
    return lambda actual, at: None if is_right(actual) else wrong(at, actual, why)


def integer(least: int, most: int) -> Check:
    """Return a check for integers of a range."""
    why = f"not an integer from {least} to {most}"
    return _check(lambda actual: type(actual) is int and least <= actual <= most, why)


finite = _check(
    lambda actual: type(actual) in (int, float) and math.isfinite(actual), "not a finite number"
)
"""The check for finite numbers."""


def one_of(*known: Any) -> Check:
    """Return a check for values that are equal to one of `known`, and of the same type."""
    pairs = [(type(value), value) for value in known]
    why = f"not one of {', '.join(map(repr, known))}"
    return _check(lambda actual: (type(actual), actual) in pairs, why)


def text_like(pattern: str) -> Check:
    """Return a check for texts that a regular expression matches."""
    matches = re.compile(pattern, re.ASCII).fullmatch
    why = f"not a text like {pattern}"
    return _check(lambda actual: isinstance(actual, str) and matches(actual) is not None, why)


def or_none(wanted: Wanted) -> Check:
    """Return a check for None, or for values of a schema."""
    return lambda actual, at: None if actual is None else mismatch(actual, wanted, at)


def each_value(wanted: Wanted) -> Check:
    """Return a check for objects with any keys, whose values have a schema."""
    return lambda actual, at: mismatch(
        actual, dict.fromkeys(actual, wanted) if isinstance(actual, dict) else {}, at
    )


def shape_within(most_dimensions: int, most_elements: int) -> Check:
    """Return a check for shapes; dimensions of size 0 count as 1, as in NumPy."""

    def check(actual: Any, at: str) -> str | None:
        if problem := mismatch(actual, [integer(0, most_elements)], at):
            return problem
        elements = math.prod(max(1, size) for size in actual)
        if elements > most_elements or len(actual) > most_dimensions:
            most = f"{most_dimensions} dimensions or {most_elements} elements"
            return wrong(at, actual, f"more than {most}")
        return None

    return check
