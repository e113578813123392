"""Tells once of a function that takes the elements of a dataset one by one, and why.

Loops over distributed datasets run in compiled chunks of steps. Where the host asks an iterator for
one element after the other, each step costs a call from Python, which a small model does not hide.
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
    """A function takes elements one by one; a loop over the dataset would run several at once."""


class ElementNotice:
    """Notices that a line of a function asks one iterator again and again in a call."""

    def __init__(self, name: str) -> None:
        """Take the name of the function."""
        self._name = name
        self._asked: dict[int, set[Frame | None]] = {}
        self._is_told = False
        self.reasons: dict[str, str] = {}
        """Why functions were not converted, by their names; of the loop that is run, by ""."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the elements that are asked for in a call of the function."""
        if self._is_told:
            yield
            return
        self._asked.clear()
        with noticed(self._asks):
            yield

    def _asks(self, iterator: DistributedIterator[Any]) -> None:
        if id(iterator) not in self._asked:  # one element a call is a step, whose line costs time
            self._asked[id(iterator)] = set()
            return
        frame = here().frame
        if frame not in self._asked[id(iterator)]:
            self._asked[id(iterator)].add(frame)
        elif not self._is_told:
            self._is_told = True
            self._tell("" if frame is None else f" at {frame.file}:{frame.line}", frame)

    def _tell(self, place: str, frame: Frame | None) -> None:
        why = self._reason("" if frame is None else frame.function)
        warnings.warn(
            f"{self._name} takes elements one by one{place}: {why}. A loop `for batch in dataset` "
            f"in the function runs several steps in one program, which is faster where steps are "
            f"short.",
            ElementByElementWarning,
            stacklevel=4,
        )

    def _reason(self, function: str) -> str:
        if function in self.reasons:
            return f"{function} is not converted, since {self.reasons[function]}"
        if "" in self.reasons:
            return self.reasons[""]
        if function in _EXPRESSIONS:
            return f"a {_EXPRESSIONS[function]} is no loop that is compiled"
        return "the line asks an iterator for them"


_EXPRESSIONS = {"<genexpr>": "generator expression", "<lambda>": "lambda"}
