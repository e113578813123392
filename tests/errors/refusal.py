"""How a case of the error tests says which statement is refused, and what is kept of the error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import graphdist as gd

CASES = Path(__file__).parent / "cases"
_PLACE = re.compile(rf"{re.escape(str(CASES))}/\w+\.py:\d+")
_REPRODUCER = re.compile(r"/\S+/(?=[\w.]+\.gd\b)")


class Refused:
    """Given to a case, which puts the refused statement, and no other, under `with refused(..)`.

    What stands after the block shows that the program goes on as if the refused step had not been.
    """

    def __init__(self) -> None:
        self.text = ""

    @contextmanager
    def __call__(self, builtin: type[Exception]) -> Iterator[None]:
        """Expect a graphdist error that is also of the class a `tf.distribute` user would catch."""
        try:
            yield
        except gd.GraphdistError as error:
            assert isinstance(error, builtin), f"{type(error).__name__} is no {builtin.__name__}"
            self.text = stable_text(error)
        else:
            raise AssertionError("nothing was refused")


def stable_text(error: gd.GraphdistError) -> str:
    """Return all that the user reads of an error, without what differs between checkouts."""
    notes = [f"note: {note}" for note in getattr(error, "__notes__", [])]
    text = "\n".join([f"{type(error).__name__}: {error}", *notes])
    return _REPRODUCER.sub("FOLDER/", _PLACE.sub("case.py:LINE", text)) + "\n"
