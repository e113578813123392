"""Raises an error for functions that leave values of their trace in objects that outlive the trace.

A method that assigns `self.w = self.w + x` leaves a value of the trace in the object. This value
has no numbers, and calls of the compiled program assign nothing. The same holds for a function that
assigns a global variable, a variable of an enclosing function, or an item of a dict in one of these
variables. Once per trace, the variables that a function names are checked, and the attributes of
their objects. Values of a trace are allowed in three places: in names that begin with an
underscore, since these are caches, which each trace fills again; in lists and sets, in which
programs collect values to inspect a trace; and in objects of the libraries in `_LIBRARIES`.
"""

from __future__ import annotations

import inspect
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any  # Any: users' functions and values

import jax

from graphdist.errors import ArgumentError
from graphdist.program.python_holders import Attributes, Cell, Globals, Holder
from graphdist.tracing.user_lines import source_of_value

_LIBRARIES = frozenset(("graphdist", "jax", "jaxlib", "numpy", "keras", "flax", "optax"))
_OF_CODE = (types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType, type)
_COLLECTIONS = (list, set, deque)


@contextmanager
def leaks_refused(fn: Callable[..., Any], args: Sequence[Any], what: str) -> Iterator[None]:
    """Trace `fn` with these arguments in a `with` block; raise `ArgumentError` if it leaks a value.

    A name that has a new value of the trace gets its old value back. `what` names the function.
    """
    before = {name: (now, set(map(id, _traced(now)))) for name, _, _, now in _values(fn, args)}
    yield
    for name, holder, key, now in _values(fn, args):
        value, known = before.get(name, (None, set()))
        for leaf in _traced(now):
            if id(leaf) not in known:
                if name in before and now is not value:
                    holder.put(key, value)
                raise ArgumentError(
                    f"{what} leaves a value of its trace in {name}: a compiled function "
                    f"runs without Python, so the next call would assign nothing",
                    source=source_of_value(leaf),
                    hint="make it a gd.Variable and assign that, or return the value",
                )


def _values(fn: Any, args: Sequence[Any]) -> Iterator[tuple[str, Holder, str, Any]]:
    """Yield the name, the holder, the key and the value of each variable and attribute."""
    variables = list(_variables(fn))
    yield from variables
    objects = [(name, value) for name, _, _, value in variables]
    objects += [(f"the {type(arg).__name__} that it is given", arg) for arg in args]
    reference = getattr(fn, "instance", None)  # set by `Function._bound_to`
    instance = reference() if callable(reference) else getattr(fn, "__self__", None)
    objects += [] if instance is None else [("self", instance)]
    for name, value in objects:
        if _has_attributes(value):
            holder = Attributes(name, value)
            for key, attribute in holder.values().items():
                if not key.startswith("_"):
                    path = f"{key!r} of {name}" if " " in name else holder.path(key)
                    yield path, holder, key, attribute


def _variables(fn: Any) -> Iterator[tuple[str, Holder, str, Any]]:
    """Yield the closure variables of a function, and the global variables that it names."""
    function = inspect.unwrap(fn)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        held = Cell(name, cell)
        yield name, held, name, held.values().get(name)
    module = Globals(function.__globals__)
    names = [name for name in function.__code__.co_names if not name.startswith("_")]
    module.names |= dict.fromkeys(names)
    for name, value in module.values().items():
        yield name, module, name, value


def _has_attributes(value: Any) -> bool:
    if isinstance(value, _OF_CODE) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return _LIBRARIES.isdisjoint(kind.__module__.partition(".")[0] for kind in type(value).__mro__)


def _traced(value: Any) -> list[Any]:
    """Return the values of a trace in `value`; none if it is a list or set, or no pytree."""
    with suppress(Exception):  # a dict with keys that cannot be sorted is no pytree
        if not isinstance(value, (*_OF_CODE, *_COLLECTIONS)):
            leaves = jax.tree.leaves(value)
            return [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
    return []
