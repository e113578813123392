"""Elements that could not be made: the exception takes the element's place until it is asked for.

A function given to `map`, or a source, may raise for one element without ending the iteration.
A `FailedElement` then takes the element's place and counts as one: transformations pass it on, and
a shuffle moves it as any element. A batch, pair or step that contains one fails entirely. The
exception is raised where the element is asked for; the iteration goes on with the next element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any  # Any: elements, and the user's functions

from graphdist.errors import GraphdistError, users_line


@dataclass(frozen=True, eq=False)
class FailedElement:
    """Takes the place of an element that could not be made, and keeps the error."""

    error: Exception
    kind = None
    """None, as for every step that `chunks.grouped` cannot stack with another step."""
    bytes = 0


def attempted(make: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or a `FailedElement` if it raises.

    >>> attempted(int, "x")
    FailedElement(error=ValueError("invalid literal for int() with base 10: 'x'"))
    """
    try:
        return make(*arguments)
    except StopIteration as error:
        stopped = RuntimeError("a function of the dataset raised StopIteration")
        stopped.__cause__ = error
        return FailedElement(stopped)
    except Exception as error:
        return FailedElement(error)


def made_from(parts: Sequence[Any], make: Callable[[Sequence[Any]], Any]) -> Any:
    """Return a function's result for several elements, or the first failed element among them."""
    failed = next((part for part in parts if isinstance(part, FailedElement)), None)
    return attempted(make, parts) if failed is None else failed


def caught(iterate: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the elements of a user's iterable, with a `FailedElement` where it raises an error.

    After an error the iterator is asked for the next element: a generator has ended, other
    iterators may go on.

    >>> [type(element).__name__ for element in caught(lambda: map(int, ["1", "x", "3"]))]
    ['int', 'FailedElement', 'int']
    """
    elements = attempted(lambda: iter(iterate()))
    if isinstance(elements, FailedElement):
        yield elements
        return
    while True:
        try:
            element = next(elements)
        except StopIteration:
            return
        except Exception as error:
            element = FailedElement(error)
        yield element


def element_or_raise(element: Any) -> Any:
    """Return an element; for a failed element raise its error at the user's line."""
    if isinstance(element, FailedElement):
        error = element.error
        if isinstance(error, GraphdistError) and error.source is None:  # made by a thread of ours
            error.source = users_line()
        raise error
    return element
