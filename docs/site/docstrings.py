"""Examples in docstrings as code: an extension of griffe, which reads docstrings for the site.

Docstrings have their examples in paragraphs that begin with `>>>`, as doctest runs them. Markdown
takes such a paragraph for a quotation, and lists in the output for links.
"""

from __future__ import annotations

import re
from typing import Any  # what griffe hands to every extension, by name

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n(?!>>> )|\Z)", re.MULTILINE | re.DOTALL)


def fenced(docstring: str) -> str:
    r"""Return a docstring with its examples in fences.

    >>> fenced("Return it.\n\n>>> f()\n[1]\n\nOr not.")
    'Return it.\n\n```pycon\n>>> f()\n[1]\n```\n\nOr not.'
    """
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match.group().rstrip()}\n```", docstring)


class Examples(griffe.Extension):
    """Put the examples of every docstring in fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
