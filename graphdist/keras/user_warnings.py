"""Warnings at the user's line: the call of Keras, such as `fit`, that leads to them."""

from __future__ import annotations

import warnings

from graphdist.tracing.user_lines import here


def warn_user(message: str) -> None:
    """Warn at the user's line."""
    frame = here().frame
    file, line = (frame.file, frame.line) if frame else ("<unknown>", 0)
    warnings.warn_explicit(message, UserWarning, file, line)
