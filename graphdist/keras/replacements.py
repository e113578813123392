"""Replaces methods of Keras: of a class permanently, of one object in a `with` block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar  # Any: objects and methods of Keras

Held = TypeVar("Held")

_IS_WRAPPER = "_graphdist_is_wrapper"


def wrap_method(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Let a method or property of a class call `wrapper(original, self, ...)`.

    A method that was wrapped before, also in a base class, stays as it is.
    """
    found = getattr(owner, name)
    original: Any = found.fget if isinstance(found, property) else found
    if hasattr(original, _IS_WRAPPER):
        return

    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    vars(wrapped)[_IS_WRAPPER] = True
    setattr(owner, name, property(wrapped) if isinstance(found, property) else wrapped)


@contextmanager
def replaced(owner: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Replace methods of one object in a `with` block."""
    vars(owner).update(functions)
    try:
        yield
    finally:
        for name in functions:
            del vars(owner)[name]


@contextmanager
def value_set(variable: ContextVar[Held], value: Held) -> Iterator[None]:
    """Set a context variable in a `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
