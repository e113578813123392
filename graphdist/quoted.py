"""Foreign values in messages, such as text from users and the network, and names like them.

Foreign values may have any length and any characters. Messages show them short and on one line.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


def quoted(value: object, most: int = 80) -> str:
    r"""Return a value as Python writes it, shortened if it is long or deep.

    >>> print(quoted("\x1b[31m red"), quoted([[[[[[["a:1"]]]]]]]), quoted("x" * 200, most=11))
    '\x1b[31m red' [[[[[[[...]]]]]]] 'xxx...xxx'
    """
    short = reprlib.Repr()
    short.maxstring = short.maxother = most
    try:
        return short.repr(value)
    except ValueError:  # Python writes no integers of more than 4300 digits
        return f"a number of type {type(value).__name__}"


def unquoted(text: str, most: int = 400) -> str:
    r"""Return a foreign text as `quoted` does, without the quotation marks.

    >>> print(unquoted("no such\nuser"))
    no such\nuser
    """
    return quoted(text, most)[1:-1]


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint with the known names that are most like `name`; `otherwise` if none is.

    >>> did_you_mean("memraid", ["mermaid", "svg"])
    'did you mean mermaid?'
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
