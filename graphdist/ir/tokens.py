"""The tokens of the text of a graph, and a cursor that reads them line by line.

1. A statement is one line; empty lines and comments (`#` to the end of the line) are no lines.
2. Every complaint names line and column and shows the line, with a caret under the wrong token.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from graphdist.ir.errors import ParseError

__all__ = ["Cursor"]

_TOKEN = re.compile(
    r"""[ \t\r]+ | \#.*
    | (?P<value>%\w+)
    | (?P<type>[A-Za-z_]\w*(?:<\w+>)?\[[\d,]*\])
    | (?P<number>-?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|inf\b|nan\b))
    | (?P<word>[A-Za-z_][\w.]*(?:-[\w.]+)*)
    | (?P<arrow>->)
    | (?P<opaque><\d+:[^<>]*>)
    | (?P<mark>[(){}\[\],:=<>])
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<variable>@(?:[\w./-]+|"(?:[^"\\]|\\.)*"))
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
    r"""A place in the text: a line and a token in it.

    >>> cursor = Cursor("# a comment\n%y = scale(%x)")
    >>> cursor.take("value"), cursor.accept("="), cursor.text
    ('%y', True, 'scale')
    """

    def __init__(self, text: str) -> None:
        """Stand at the first token of the first line."""
        self._texts = text.split("\n")
        self._lines = [  # indices of those with a token
            index
            for index, line in enumerate(self._texts)
            if (stripped := line.strip()) and not stripped.startswith("#")
        ]
        if not self._lines:
            raise ParseError("the text has no graph in it")
        self._goto(0)

    def _goto(self, line: int) -> None:
        self._line = line
        self._tokens = _tokens(self._texts[self._lines[line]])
        self._position = 0
        self.kind, self.text, _ = self._tokens[0]

    def advance(self) -> None:
        """Step to the next token of the line."""
        self._position += 1
        self.kind, self.text, _ = self._tokens[self._position]

    def take(self, kind: str) -> str:
        """Step over a token of this kind and return its text."""
        if self.kind != kind:
            self.fail(f"expected a {kind}, found {self._found()}")
        text = self.text
        self.advance()
        return text

    def accept(self, text: str) -> bool:
        """Step over the token if it is this one, and say whether it was."""
        if self.text != text:
            return False
        self.advance()
        return True

    def expect(self, text: str) -> None:
        """Step over this token."""
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {self._found()}")

    def name(self) -> str:
        """Step over a name, plain or quoted, and return it."""
        # `inf` and `nan` read as numbers, but may be names all the same.
        if self.kind == "string" or self.text in ("inf", "nan"):
            text = self.text
            quoted = self.kind == "string"
            self.advance()
            return self.unquote(text) if quoted else text
        return self.take("word")

    def unquote(self, text: str) -> str:
        """Return what a quoted string stands for."""
        try:
            return str(json.loads(text))
        except ValueError:
            self._position -= 1
            self.fail(f"{text} is not a string: what is in the quotes is written as in JSON")

    def integer(self) -> int:
        """Step over an integer and return it."""
        if not re.fullmatch(r"-?\d+", self.text):
            self.fail(f"expected an integer, found {self._found()}")
        return int(self.take("number"))

    def opens_block(self) -> bool:
        """Whether the line that follows opens a nested graph."""
        if self._line + 1 == len(self._lines):
            return False
        line = self._texts[self._lines[self._line + 1]]
        if "#" in line:  # perhaps in a string, perhaps after the brace
            return _tokens(line)[-2][1] == "{"
        return line.rstrip().endswith("{")

    def next_line(self) -> None:
        """Step to the first token of the next line; this one must have been read to its end."""
        if self.kind != "end":
            self.fail(f"expected the end of the line, found {self._found()}")
        if self._line + 1 == len(self._lines):
            self.fail("the text ends here, inside a graph")
        self._goto(self._line + 1)

    def finish(self) -> None:
        """Complain if anything is left."""
        if self.kind == "end" and self._line + 1 < len(self._lines):
            self._goto(self._line + 1)
        if self.kind != "end":
            self.fail(f"expected the end of the text, found {self._found()}")

    @property
    def place(self) -> tuple[int, int]:
        """The line and the token, for a later `fail`."""
        return self._line, self._position

    def fail(
        self, problem: str, at: tuple[int, int] | None = None, because: Exception | None = None
    ) -> NoReturn:
        """Raise a `ParseError` about the token at a place; without one, about the present token."""
        line, position = at or self.place
        shown = self._texts[self._lines[line]]
        column = _tokens(shown)[position][2]
        margin = len(shown) - len(shown.lstrip())
        text = f"{shown.strip()}\n{' ' * (column - margin)}^"
        where = f"line {self._lines[line] + 1}, column {column + 1}"
        raise ParseError(f"{where}: {problem}", node=text) from because

    def _found(self) -> str:
        return repr(self.text) if self.text else "the end of the line"
