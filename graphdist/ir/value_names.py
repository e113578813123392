"""The names of values in a plan, which outlive changes of the program around them.

A value has the name that `jax.ad_checkpoint.checkpoint_name` gives it. A value without such a name
is named after the user's innermost function that computes it, the line relative to the function's
`def`, or in the file for a lambda, and the operation. The second and further values of a name have
a count:

    query                       checkpoint_name(.., "query")
    layer+12:dot_general        a product on the line 12 behind `def layer`
    layer+12:dot_general#2      the second one of this line
"""

from __future__ import annotations

import ast
import linecache
import re
from dataclasses import dataclass
from functools import lru_cache

from graphdist.ir.graph import Node
from graphdist.ir.source import Frame

_NAME = re.compile(r"(?P<text>.*?)(#(?P<count>[1-9][0-9]{0,8}))?", re.DOTALL)


@dataclass(frozen=True, order=True, slots=True)
class ValueName:
    """The name of a value: `text`, and its count among the values of this text, from 1.

    >>> ValueName("query"), str(ValueName("layer+12:dot_general", 2)), str(ValueName("mine#2"))
    (ValueName(text='query', count=1), 'layer+12:dot_general#2', 'mine#2#1')
    """

    text: str
    count: int = 1

    def __str__(self) -> str:
        is_plain = ValueName.parse(self.text).text == self.text
        return self.text if self.count == 1 and is_plain else f"{self.text}#{self.count}"

    @staticmethod
    def parse(text: str) -> ValueName:
        """Return the name that `str` has written.

        >>> ValueName.parse("query#2")
        ValueName(text='query', count=2)
        """
        found = _NAME.fullmatch(text)
        assert found is not None, "the pattern matches every text"
        return ValueName(found["text"], int(found["count"] or 1))


def text_of_name(node: Node, label: str | None) -> str:
    """Return the text of the names of a node's results; `label` is what the user calls them."""
    if label is not None:
        return label
    operation = node.op.name.removeprefix("jax.")
    frame = node.source.frame
    if frame is None:
        return operation
    return f"{frame.function}+{frame.line - _first_line(frame)}:{operation}"


@lru_cache(maxsize=4096)
def _first_line(frame: Frame) -> int:
    """Return the line of the `def` of a frame's function; 0 if its file cannot be read."""
    name = frame.function.rpartition(".")[2]
    found = [(first, last) for function, first, last in _functions(frame.file) if function == name]
    around = [first for first, last in found if first <= frame.line <= last]
    return max(around, default=0)


@lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """Return name, first and last line of the functions in a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):  # a cell of a notebook with magics
        return ()
    return tuple(
        (node.name, node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
