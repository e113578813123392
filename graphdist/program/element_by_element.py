"""Warns once that a function reads the elements of a dataset one by one, and says why.

Loops over distributed datasets run in compiled chunks of steps. If the host reads one element after
the other, each step costs a call from Python, which takes longer than a step of a small model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any  # Any: elements

from graphdist.data.iterators import DistributedIterator, noticed
from graphdist.ir.source import Frame
from graphdist.tracing.user_lines import here


class ElementByElementWarning(UserWarning):
    """A function reads elements one by one. A loop over the dataset would run steps in chunks."""


class ElementNotice:
    """Warns if a line of a function reads one iterator several times in a call."""

    def __init__(self, name: str) -> None:
        """Start with no reads. `name` is the function's name."""
        self._name = name
        self._lines: dict[int, set[Frame | None]] = {}
        self._has_warned = False
        self.reasons: dict[str, str] = {}
        """The reasons why functions are not converted, by name; "": why a loop is not compiled."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the lines that read elements during a call of the function."""
        if self._has_warned:
            yield
            return
        self._lines.clear()
        with noticed(self._note_read):
            yield

    def _note_read(self, iterator: DistributedIterator[Any]) -> None:
        if id(iterator) not in self._lines:  # a single read is normal, so skip its line
            self._lines[id(iterator)] = set()
            return
        frame = here().frame
        if frame not in self._lines[id(iterator)]:
            self._lines[id(iterator)].add(frame)
        elif not self._has_warned:
            self._has_warned = True
            line = "" if frame is None else f" at {frame.file}:{frame.line}"
            why = self._reason("" if frame is None else frame.function)
            warnings.warn(
                f"{self._name} takes elements one by one{line}: {why}. A loop `for batch in "
                f"dataset` in the function runs several steps in one program, which is faster if "
                f"steps are short.",
                ElementByElementWarning,
                stacklevel=3,
            )

    def _reason(self, function: str) -> str:
        if function in self.reasons:
            return f"{function} is not converted, since {self.reasons[function]}"
        if "" in self.reasons:
            return self.reasons[""]
        if function in _EXPRESSIONS:
            return f"a {_EXPRESSIONS[function]} is no loop that is compiled"
        return "the line reads an iterator"


_EXPRESSIONS = {"<genexpr>": "generator expression", "<lambda>": "lambda"}
