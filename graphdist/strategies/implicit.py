"""Functions compiled for `run`, `reduce` and the like called outside every `gd.function`.

A compiled function is found again by a key that says what it does. A function of the user's is its
own key, for as long as the user keeps it: when a lambda is gone, so is the program compiled for it,
with the variables it closes over. The functions used least recently are forgotten.
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
from graphdist.program.leaked_values import NamedValues
from graphdist.program.retracing import WARN_AT, RetraceWarning
from graphdist.user_warnings import warn_user

_MOST_FUNCTIONS = 256
"""How many are kept, for each strategy."""


class ImplicitFunctions:
    """The compiled functions of one strategy, by key.

    >>> functions = ImplicitFunctions()
    >>> double = functions.of(("double",), lambda x: x * 2)
    >>> double(3), functions.of(("double",), lambda x: x * 2) is double
    (6, True)
    """

    def __init__(self) -> None:
        """Start empty."""
        self._functions: OrderedDict[Any, Function] = OrderedDict()
        self._made: WeakKeyDictionary[CodeType, int] = WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._functions)

    def of(self, key: tuple[Any, ...], body: Callable[..., Any], name: str = "") -> Function:
        """Return the function compiled for a key, made of `body` if it is new."""
        functions = self._functions
        key = tuple(map(_hashable, key))  # `body` keeps parts without a hash alive
        if key not in functions:
            label = f"{key[0]}_{name}" if name else str(key[0])
            functions[key] = Function(body, name=label, python_numbers_are_static=True)
            if len(functions) > _MOST_FUNCTIONS:
                functions.popitem(last=False)
        functions.move_to_end(key)
        return functions[key]

    def of_function(self, kind: str, fn: Callable[..., Any], call: Callable[..., Any]) -> Function:
        """Return `call(fn, args, kwargs)` compiled, which is forgotten when `fn` is gone."""
        name = getattr(fn, "__name__", "function")
        if isinstance(fn, Function):
            fn = fn.function  # a method is another one each time
        held: Callable[[], Any] = _weakly(fn) or (lambda: fn)

        def body(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            named = NamedValues(held(), (*args, *kwargs.values()))
            result = call(held(), args, kwargs)
            named.refuse_leaks(name)
            return result

        if not isinstance(held, weakref.ref):
            return self.of((kind, fn), body, name)
        key = (kind, id(fn))
        if key not in self._functions:
            weakref.finalize(fn, self._functions.pop, key, None).atexit = False
            self._warn_if_often(kind, fn, name)
        return self.of(key, body, name)

    def _warn_if_often(self, kind: str, fn: Any, name: str) -> None:
        """Warn of a function that is made again for every call, and compiled again with it."""
        while isinstance(fn, functools.partial):
            fn = fn.func
        code = getattr(fn, "__code__", None)
        if code is None:
            return
        self._made[code] = self._made.get(code, 0) + 1
        if self._made[code] not in WARN_AT:
            return
        warn_user(
            f"{kind} compiled {name} {self._made[code]} times: each time it was another function "
            f"of one definition. Define it once, outside the loop, and pass what changes as an "
            f"argument.",
            RetraceWarning,
        )


def _weakly(fn: Callable[..., Any]) -> Callable[[], Any] | None:
    """Return a weak reference, None to what cannot have one or is made at every look-up."""
    if isinstance(fn, MethodType):
        return None
    try:
        return weakref.ref(fn)
    except TypeError:
        return None


def _hashable(part: Any) -> Any:
    """Return a part of a key, or its id in place of one without a hash."""
    try:
        hash(part)
    except TypeError:
        return id(part)
    return part
