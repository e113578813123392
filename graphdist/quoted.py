"""Values of others in messages: of the environment, of users, of strangers on the network.

They come as they are, of any length and with any characters, and are short and on one line here.
"""

from __future__ import annotations

import reprlib


def quoted(value: object, most: int = 80) -> str:
    r"""Return a value as Python writes it, with what is long or deep left out.

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
    r"""Return a text of others as `quoted` does, without its quotation marks.

    >>> print(unquoted("no such\nuser"))
    no such\nuser
    """
    return quoted(text, most)[1:-1]
