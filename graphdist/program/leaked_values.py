"""Values of a trace in objects that outlive it: refused by name.

A method that assigns `self.w = self.w + x`, and a function that does so to a global variable, to a
variable around it or to an item of a dict there, leaves a value of the trace behind. It stands for
no numbers, and calls of the compiled program assign nothing. Looked at are the variables that a
function names, and the attributes of the objects in them, once a trace. Names that begin with an
underscore may hold such values: a cache fills itself again in each trace. So may lists and sets, by
which programs look at what is traced, and objects of the libraries in `_LIBRARIES`, which look
after theirs.
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
    """A variable or an attribute: an item of a namespace, or a cell."""

    name: str
    holder: dict[str, Any] | types.CellType
    key: str = ""

    @property
    def value(self) -> Any:
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        try:
            return self.holder.cell_contents
        except ValueError:  # it has no value yet
            return None

    def put(self, value: Any) -> None:
        if isinstance(self.holder, dict):
            self.holder[self.key] = value
        else:
            self.holder.cell_contents = value


class NamedValues:
    """What a function's variables and its objects hold."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any]) -> None:
        """Look at them before the function is traced with these arguments."""
        self._fn, self._args = fn, args
        self._before = {
            place.name: (place.value, set(map(id, _traced(place.value))))
            for place in self._places()
        }

    def refuse_leaks(self, what: str) -> None:
        """Raise `ArgumentError` if one holds another value of a trace now; put the old one back."""
        for place in self._places():
            value, known = self._before.get(place.name, (None, set()))
            for leaf in _traced(place.value):
                if id(leaf) not in known:
                    if place.name in self._before and place.value is not value:
                        place.put(value)
                    raise ArgumentError(
                        f"{what} leaves a value of its trace in {place.name}: a compiled function "
                        f"runs without Python, and would assign nothing at the next call",
                        source=source_of_value(leaf),
                        hint="make it a gd.Variable and assign that, or return the value",
                    )

    def _places(self) -> Iterator[_Place]:
        found = list(_variables(self._fn))
        objects = [(place.name, place.value) for place in found]
        objects += [(f"the {type(given).__name__} that it is given", given) for given in self._args]
        instance = _instance(self._fn)
        objects += [] if instance is None else [("self", instance)]
        yield from found
        for name, value in objects:
            if _has_attributes(value):
                for key in list(vars(value)):
                    if not key.startswith("_"):
                        place = f"{key!r} of {name}" if " " in name else f"{name}.{key}"
                        yield _Place(place, vars(value), key)


def _variables(fn: Any) -> Iterator[_Place]:
    """Yield the variables around a function, and the ones of its module that it names."""
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
    reference = getattr(fn, "instance", None)  # of a method, which `Function.__get__` wraps
    return reference() if callable(reference) else getattr(fn, "__self__", None)


def _has_attributes(value: Any) -> bool:
    if isinstance(value, _OF_CODE) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return _LIBRARIES.isdisjoint(kind.__module__.partition(".")[0] for kind in type(value).__mro__)


def _traced(value: Any) -> list[Any]:
    """Return the values of a trace in a pytree that is no collection."""
    with suppress(Exception):  # a dict whose keys have no order is no pytree
        if not isinstance(value, (*_OF_CODE, *_COLLECTIONS)):
            leaves = jax.tree.leaves(value)
            return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    return []
