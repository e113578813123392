"""Compiled functions for calls of `run`, `reduce` and the like outside every `gd.function`.

A compiled function is cached under a key that identifies the computation. For a function of the
user the key is the identity of the function, as long as the function exists. When a lambda is
garbage collected, the program of the lambda and the variables in its closure are dropped, too. Each
strategy drops the functions that were used least recently.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import CodeType, MethodType
from typing import Any  # Any: users' functions
from weakref import WeakKeyDictionary

from graphdist.program.function import Function
from graphdist.program.kept_programs import WARN_AT, RetraceWarning
from graphdist.program.leaked_values import leaks_refused
from graphdist.program.step_functions import FunctionOptions
from graphdist.user_warnings import warn_user

_MAX_FUNCTIONS = 256
"""The largest number of functions that a strategy keeps."""


class ImplicitFunctions:
    """The compiled functions of one strategy, by key.

    >>> functions = ImplicitFunctions()
    >>> double = functions.of(("double",), lambda x: x * 2)
    >>> double(3), functions.of(("double",), lambda x: x * 2) is double
    (6, True)
    """

    def __init__(self) -> None:
        """Start without functions."""
        self._functions: OrderedDict[Any, Function] = OrderedDict()
        self._made: WeakKeyDictionary[CodeType, int] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._functions)

    def of(self, key: tuple[Any, ...], body: Callable[..., Any], name: str = "") -> Function:
        """Return the function compiled for a key; if there is none, one that compiles `body`."""
        functions = self._functions
        key = tuple(map(_hashable, key))  # ids stay valid: `body` keeps the objects alive
        if key not in functions:
            label = f"{key[0]}_{name}" if name else str(key[0])
            functions[key] = Function(
                body, options=FunctionOptions(name=label, python_numbers_are_static=True)
            )
            if len(functions) > _MAX_FUNCTIONS:
                functions.popitem(last=False)
        functions.move_to_end(key)
        return functions[key]

    def of_function(self, kind: str, fn: Callable[..., Any], call: Callable[..., Any]) -> Function:
        """Return a compiled function of (args, kwargs) that returns `call(fn, args, kwargs)`.

        The compiled function is dropped when `fn` is garbage collected.
        """
        name = getattr(fn, "__name__", "function")
        if isinstance(fn, Function):
            fn = fn.function  # the Function of a method is a new object at each look-up
        reference: Callable[[], Any] = _weak_reference(fn) or (lambda: fn)

        def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            with leaks_refused(reference(), (*args, *kwargs.values()), name):
                return call(reference(), args, kwargs)

        if not isinstance(reference, weakref.ref):
            return self.of((kind, fn), body, name)
        key = (kind, id(fn))
        if key not in self._functions:
            weakref.finalize(fn, self._functions.pop, key, None).atexit = False
            self._warn_if_often(kind, fn, name)
        return self.of(key, body, name)

    def _warn_if_often(self, kind: str, fn: Any, name: str) -> None:
        """Warn of a function that is defined, and so compiled, again for every call."""
        while isinstance(fn, functools.partial):
            fn = fn.func
        code = getattr(fn, "__code__", None)
        if code is None:
            return
        self._made[code] = self._made.get(code, 0) + 1
        if self._made[code] not in WARN_AT:
            return
        warn_user(
            f"{kind} compiled {name} {self._made[code]} times: its definition was executed each "
            f"time and made another function. Define it once, outside the loop, and pass what "
            f"changes as an argument.",
            RetraceWarning,
        )


def _weak_reference(fn: Callable[..., Any]) -> Callable[[], Any] | None:
    """Return a weak reference to a function; None for a method, which each access makes anew."""
    if isinstance(fn, MethodType):
        return None
    try:
        return weakref.ref(fn)
    except TypeError:
        return None


def _hashable(part: Any) -> Any:
    """Return a part of a key, or the `id` of the part if the part has no hash."""
    try:
        hash(part)
    except TypeError:
        return id(part)
    return part
