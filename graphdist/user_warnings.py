"""Warnings at the user's line. Each older name warns once, and the warning says the newer name."""

from __future__ import annotations

import warnings

from graphdist.ir.source import Source
from graphdist.tracing.user_lines import here

_warned: set[str] = set()


def line_to_warn_at(source: Source | None) -> tuple[str, int]:
    """Return file and line of a source, else of the user's current line."""
    frame = (source.frame if source else None) or here().frame
    return (frame.file, frame.line) if frame else ("<unknown>", 0)


def warn_user(
    message: str, category: type[Warning] = UserWarning, source: Source | None = None
) -> None:
    """Warn at the line of `source`, by default at the user's current line."""
    warnings.warn_explicit(message, category, *line_to_warn_at(source))


def warn_of_older_name(old: str, new: str) -> None:
    """Warn of an older name at the user's line, the first time it is used.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_older_name("Strategy.older", "Strategy.newer")
    ...     warn_of_older_name("Strategy.older", "Strategy.newer")
    >>> [str(warning.message) for warning in caught]
    ['Strategy.older is an older name: use Strategy.newer']
    """
    if old in _warned:
        return
    _warned.add(old)
    warn_user(f"{old} is an older name: use {new}", DeprecationWarning)
