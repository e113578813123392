"""The tokens of the text of a graph, and a cursor that reads them line by line.

1. A statement is one line; empty lines and comments (`#` to the end of the line) are skipped.
2. Every error names line and column and shows the line, with a caret under the wrong token.
3. Text may come from untrusted files. So the length of a text is limited, and reading takes time
   and memory in proportion to the length, and a stack of at most `DEEPEST` levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from graphdist.ir.errors import ParseError

MOST_CHARACTERS = 2**24
"""The default limit on the length of a text; a graph of 100,000 nodes has 10 million characters."""
LONGEST_LINE = 2**20
LONGEST_NUMBER = 400
DEEPEST = 64
"""The largest depth of nested graphs, and of nested values."""

_SHOWN = 200
"""The number of characters of a long line that an error shows."""

_TOKEN = re.compile(
    r"""[ \t\r]+ | \#.*
    | (?P<value>%\w+)
    | (?P<type>[A-Za-z_]\w*(?:<\w+>)?\[[\d,]*\])
    | (?P<number>-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|inf\b|nan\b))
    | (?P<word>[A-Za-z_][\w.]*(?:-[\w.]+)*)
    | (?P<arrow>->)
    | (?P<opaque><\d+:(?:[^<>]|<\w+>)*>)
    | (?P<mark>[(){}\[\],:=<>])
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<variable>@(?:[\w./-]+|"(?:[^"\\]|\\.)*"))
    | (?P<unclosed>@?"(?:[^"\\]|\\.)*\\?)  # in one piece: else each quote is tried to the end
    | (?P<unknown>.)""",
    re.VERBOSE,
)


Token = tuple[str, str, int]
"""Kind (a group of the pattern, or "end"), text and column."""


def _tokens(line: str) -> list[Token]:
    tokens = [
        (match.lastgroup, match.group(), match.start())
        for match in _TOKEN.finditer(line)
        if match.lastgroup
    ]
    return [*tokens, ("end", "", len(line))]


class Cursor:
    r"""A position in the text: a line and a token in it.

    >>> cursor = Cursor("# a comment\n%y = scale(%x)")
    >>> cursor.take("value"), cursor.accept("="), cursor.text
    ('%y', True, 'scale')
    """

    def __init__(
        self, text: str, first_line: int = 1, max_characters: int = MOST_CHARACTERS
    ) -> None:
        """Begin at the first token of the first line, whose number in errors is `first_line`."""
        if len(text) > max_characters:
            raise ParseError(
                f"the text has {len(text):,} characters; the limit is {max_characters:,}",
                hint="if you trust it, allow more: parse(text, max_characters=..)",
            )
        self._first_line = first_line
        self._depth = 0
        self._texts = text.split("\n")
        self._lines = [  # indices of the lines with a token
            index
            for index, line in enumerate(self._texts)
            if (stripped := line.strip()) and not stripped.startswith("#")
        ]
        if not self._lines:
            raise ParseError("the text has no graph in it")
        self._goto(0)

    def _goto(self, line: int) -> None:
        self._line = line
        text = self._texts[self._lines[line]]
        if len(text) > LONGEST_LINE:
            raise ParseError(
                f"line {self._lines[line] + self._first_line} has {len(text):,} characters; "
                f"the limit is {LONGEST_LINE:,}"
            )
        self._tokens = _tokens(text)
        self._position = 0
        self.kind, self.text, _ = self._tokens[0]

    def advance(self) -> None:
        """Advance to the next token of the line."""
        self._position += 1
        self.kind, self.text, _ = self._tokens[self._position]

    def take(self, kind: str) -> str:
        """Read a token of this kind and return its text."""
        if self.kind != kind:
            self.fail(f"expected a {kind}, found {self._found()}")
        text = self.text
        self.advance()
        return text

    def accept(self, text: str) -> bool:
        """Read the next token if its text is `text`; return whether it was."""
        if self.text != text:
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        """Read the token `text`; raise `ParseError` if the next token is another one."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self._found()}")

    def items(self, end: str) -> Iterator[None]:
        """Yield before each item of a list; read the commas between the items, and `end`.

        If `end` is "", the list ends with the line.
        """
        is_first = True
        while self.text != end:
            if not is_first:
                self.expect(",")
            is_first = False
            yield
        if end:
            self.advance()

    def name(self) -> str:
        """Read a name, plain or quoted, and return it."""
        if self.kind == "string":
            return self.unquote(self.take("string"))
        # `inf` and `nan` are read as numbers, but may be names.
        return self.take("number" if self.text in ("inf", "nan") else "word")

    def unquote(self, text: str) -> str:
        """Return the value of a quoted string."""
        try:
            return str(json.loads(text))
        except ValueError:
            self._position -= 1
            self.fail(f"{text} is not a string: what is in the quotes is written as in JSON")

    def integer(self) -> int:
        """Read an integer and return it."""
        if not re.fullmatch(r"-?\d+", self.text):
            self.fail(f"expected an integer, found {self._found()}")
        return self.integer_of(self.take("number"))

    def integer_of(self, text: str) -> int:
        """Return the integer of the token just read, or of a part of it."""
        if len(text) > LONGEST_NUMBER:
            self._position -= 1
            self.fail(f"a number of {len(text):,} digits; the limit is {LONGEST_NUMBER}")
        return int(text)

    @contextmanager
    def refusing(self, at: tuple[int, int]) -> Iterator[None]:
        """Turn errors that a wrong text causes into a `ParseError` about the token at `at`."""
        try:
            yield
        except ParseError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            self.fail(str(error), at, because=error)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Enter a nested graph or value; raise an error at more than `DEEPEST` levels."""
        if self._depth == DEEPEST:
            self.fail(f"more than {DEEPEST} values or graphs inside each other")
        self._depth += 1
        yield
        self._depth -= 1

    def opens_block(self) -> bool:
        """Return whether the next line opens a nested graph."""
        if self._line + 1 == len(self._lines):
            return False
        line = self._texts[self._lines[self._line + 1]]
        if "#" in line:  # in a string, or in a comment after the brace
            return _tokens(line)[-2][1] == "{"
        return line.rstrip().endswith("{")

    def next_line(self) -> None:
        """Advance to the next line; the current line must have been read to its end."""
        if self.kind != "end":
            self.fail(f"expected the end of the line, found {self._found()}")
        if self._line + 1 == len(self._lines):
            self.fail("the text ends here, inside a graph")
        self._goto(self._line + 1)

    def finish(self) -> None:
        """Raise a `ParseError` if there is more text."""
        if self.kind == "end" and self._line + 1 < len(self._lines):
            self._goto(self._line + 1)
        if self.kind != "end":
            self.fail(f"expected the end of the text, found {self._found()}")

    @property
    def place(self) -> tuple[int, int]:
        """Return the indices of the current line and token, for a later `fail`."""
        return self._line, self._position

    def fail(
        self, problem: str, at: tuple[int, int] | None = None, because: Exception | None = None
    ) -> NoReturn:
        """Raise a `ParseError` about the token at a place; by default the current token."""
        line, position = at or self.place
        shown = self._texts[self._lines[line]]
        column = _tokens(shown)[position][2]
        start = len(shown) - len(shown.lstrip())
        shown = shown.rstrip()
        if len(shown) - start > 2 * _SHOWN:
            start = max(start, column - _SHOWN)
            shown = shown[: start + 2 * _SHOWN]
        text = f"{_printable(shown[start:])}\n{' ' * (column - start)}^"
        where = f"line {self._lines[line] + self._first_line}, column {column + 1}"
        raise ParseError(f"{where}: {_printable(_cut(problem))}", node=text) from because

    def _found(self) -> str:
        return repr(self.text) if self.text else "the end of the line"


def _printable(text: str) -> str:
    """Return the text with control characters replaced by characters of the same width."""
    return "".join(
        letter if letter.isprintable() else " " if letter == "\t" else "?" for letter in text
    )


def _cut(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."
