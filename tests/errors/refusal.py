"""How a case of the error tests says which statement is refused, and what is kept of the error."""

from __future__ import annotations

import linecache
import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import graphdist as gd

CASES = Path(__file__).parent / "cases"
_PLACE = re.compile(rf"{re.escape(str(CASES))}/\w+\.py:\d+")
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d{4,}")
_REPRODUCER = re.compile(r"/\S+/(?=[\w.]+\.gd\b)")
_FOLDER = re.compile(rf"{re.escape(tempfile.gettempdir())}/tmp\w+")


class Refused:
    """Given to a case, which puts the refused statement, and no other, under `with refused(..)`.

    What stands after the block shows that the program goes on as if the refused step had not been.
    """

    def __init__(self) -> None:
        self.text = ""

    @contextmanager
    def __call__(self, builtin: type[Exception]) -> Iterator[None]:
        """Expect a graphdist error that is also of the class a `tf.distribute` user would catch."""
        with pytest.raises(builtin) as caught:
            yield
        assert isinstance(caught.value, gd.GraphdistError), "the error is not graphdist's"
        self.text = stable_text(caught.value)

    @contextmanager
    def with_a_warning(self) -> Iterator[None]:
        """Expect a warning at the user's line, which is kept in place of an error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        (warning,) = {str(each.message): each for each in caught}.values()
        assert issubclass(warning.category, UserWarning)
        place, line = f"{warning.filename}:{warning.lineno}", getline(warning)
        text = (
            f"{warning.category.__name__}: {warning.message}\n  {place}, in a warning\n    {line}"
        )
        self.text = _PLACE.sub("case.py:LINE", text) + "\n"


def getline(warning: warnings.WarningMessage) -> str:
    """Return the line of the user at which a warning was given."""
    return linecache.getline(warning.filename, warning.lineno).strip()


def stable_text(error: gd.GraphdistError) -> str:
    """Return all that the user reads of an error, without what differs between checkouts."""
    notes = [
        f"note: {note}"
        for note in getattr(error, "__notes__", [])
        if "JAX_TRACEBACK_FILTERING" not in note  # JAX's, about its own frames
    ]
    text = "\n".join([f"{type(error).__name__}: {error}", *notes])
    text = _FOLDER.sub("FOLDER", _PORT.sub("PORT", text))
    return _REPRODUCER.sub("FOLDER/", _PLACE.sub("case.py:LINE", text)) + "\n"
