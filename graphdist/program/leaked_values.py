"""Refuses functions that leave values of their trace in objects that outlive it.

A method that assigns `self.w = self.w + x` leaves a value of the trace in the object, which has no
numbers, and calls of the compiled program assign nothing. So does a function that assigns a global
variable, a variable of an enclosing function, or an item of a dict in one. Once per trace the
variables that a function names are checked, and the attributes of their objects. Values of a trace
are allowed in names that begin with an underscore, since each trace fills a cache again; in lists
and sets, by which programs inspect a trace; and in objects of the libraries in `_LIBRARIES`.
"""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any  # Any: users' functions and values

import jax

from graphdist.errors import ArgumentError
from graphdist.tracing.user_lines import source_of_value

_LIBRARIES = frozenset(("graphdist", "jax", "jaxlib", "numpy", "keras", "flax", "optax"))
_OF_CODE = (types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_COLLECTIONS = (list, set, deque)


@dataclass(frozen=True)
class _Place:
    """A place that stores a value: a key of a namespace, or a closure cell."""

    name: str
    holder: dict[str, Any] | types.CellType
    key: str = ""

    @property
    def value(self) -> Any:
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        try:
            return self.holder.cell_contents
        except ValueError:  # the cell is empty
            return None

    def put(self, value: Any) -> None:
        if isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            self.holder.cell_contents = value


class NamedValues:
    """The values of a function's variables, and of the attributes of their objects."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        """Store the values, before the function is traced with these arguments."""
        self._fn, self._args = fn, args
        self._before = {
            place.name: (place.value, set(map(id, _traced(place.value))))
            for place in self._places()
        }

    def refuse_leaks(self, what: str) -> None:
        """Restore the old value, and raise `ArgumentError`, if one has a new value of a trace."""
        for place in self._places():
            value, known = self._before.get(place.name, (None, set()))
            for leaf in _traced(place.value):
                if id(leaf) not in known:
                    if place.name in self._before and place.value is not value:
                        place.put(value)
                    raise ArgumentError(
                        f"{what} leaves a value of its trace in {place.name}: a compiled function "
                        f"runs without Python, so the next call would assign nothing",
                        source=source_of_value(leaf),
                        hint="make it a gd.Variable and assign that, or return the value",
                    )

    def _places(self) -> Iterator[_Place]:
        variables = list(_variables(self._fn))
        objects = [(place.name, place.value) for place in variables]
        objects += [(f"the {type(arg).__name__} that it is given", arg) for arg in self._args]
        instance = _instance(self._fn)
        objects += [] if instance is None else [("self", instance)]
        yield from variables
        for name, value in objects:
            if _has_attributes(value):
                for key in list(vars(value)):
                    if not key.startswith("_"):
                        place = f"{key!r} of {name}" if " " in name else f"{name}.{key}"
                        yield _Place(place, vars(value), key)


def _variables(fn: Any) -> Iterator[_Place]:
    """Yield the closure variables of a function, and the global variables that it names."""
    function = inspect.unwrap(fn)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return
    code, module = function.__code__, function.__globals__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield _Place(name, cell)
    for name in code.co_names:
        if name in module and not name.startswith("_"):
            yield _Place(name, module, name)


def _instance(fn: Any) -> Any:
    """Return the object of a method; None for a function."""
    reference = getattr(fn, "instance", None)  # set by `Function._bound_to`
    return reference() if callable(reference) else getattr(fn, "__self__", None)


def _has_attributes(value: Any) -> bool:
    if isinstance(value, _OF_CODE) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return _LIBRARIES.isdisjoint(kind.__module__.partition(".")[0] for kind in type(value).__mro__)


def _traced(value: Any) -> list[Any]:
    """Return the values of a trace in a pytree that is no list or set."""
    with suppress(Exception):  # a dict with keys that cannot be sorted is no pytree
        if not isinstance(value, (*_OF_CODE, *_COLLECTIONS)):
            leaves = jax.tree.leaves(value)
            return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    return []
