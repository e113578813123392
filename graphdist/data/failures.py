"""Elements that could not be made: an exception travels like an element, to whom it is for.

What raises for one element, a function given to `map` or a source, does not end an iteration.
`Failed` stands in the element's place and has its number: transformations pass it on, and a shuffle
gives it a place in its order. A batch, a pair or a step with one in it fails whole. It is raised
where it is asked for, and the next element is the one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any  # Any: elements, and the user's functions


@dataclass(frozen=True, eq=False)
class Failed:
    """In place of an element: why it could not be made."""

    error: Exception


def attempted(make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or that it failed.

    >>> attempted(int, "x")
    Failed(error=ValueError("invalid literal for int() with base 10: 'x'"))
    """
    try:
        return make(*arguments)
    except StopIteration as error:
        stopped = RuntimeError("a function of the dataset raised StopIteration")
        stopped.__cause__ = error
        return Failed(stopped)
    except Exception as error:
        return Failed(error)


def of_parts(parts: Sequence[Any], make: Callable[[Sequence[Any]], Any]) -> Any:
    """Return what is made of several elements; the first that failed fails the whole."""
    failed = next((part for part in parts if isinstance(part, Failed)), None)
    return attempted(make, parts) if failed is None else failed


def caught(iterate: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the elements of an iterable of the user's; where it raises, that it failed.

    It is asked for more after that: a generator has no more, and other iterators may.

    >>> [type(element).__name__ for element in caught(lambda: map(int, ["1", "x", "3"]))]
    ['int', 'Failed', 'int']
    """
    elements = attempted(lambda: iter(iterate()))
    if isinstance(elements, Failed):
        yield elements
        return
    while True:
        try:
            element = next(elements)
        except StopIteration:
            return
        except Exception as error:
            element = Failed(error)
        yield element


def made(element: Any) -> Any:
    """Return an element, or raise what it failed with."""
    if isinstance(element, Failed):
        raise element.error
    return element
