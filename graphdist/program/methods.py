"""Methods: the compiled function of each object, and an object's function as an argument takes it.

A function that is a method is compiled for each object on its own, since the object is part of the
program. Objects are told apart by identity, as Python's methods are: objects of a dataclass may be
equal and have no hash. The functions are kept as long as their objects: they refer to them weakly,
and the `Method` of `function.py` that is looked up on an object holds both.

An object that is a pytree is an argument in place of that, and so is one that cannot be referred to
weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic  # Any: users' objects

import jax

from graphdist.tracebacks import frames_hidden
from graphdist.values.type_variables import Parameters, Result_co

if TYPE_CHECKING:
    from graphdist.program.function import Function
    from graphdist.program.stages import Traced


class Methods:
    """The functions of one method, by the object that each belongs to."""

    def __init__(self, make: Callable[[Callable[[], Any]], Function[..., Any]]) -> None:
        """Keep functions that `make` makes for a weak reference to an object."""
        self._make = make
        self._of: dict[int, tuple[weakref.ref[Any], Function[..., Any]]] = {}

    def of(self, instance: Any) -> Function[..., Any] | None:
        """Return the function of an object; None where the object is an argument."""
        found = self._of.get(id(instance))
        if found is not None:  # an entry goes before another object can have its number
            return found[1]
        if not jax.tree_util.all_leaves([instance]):  # a pytree: its arrays are arguments
            return None
        number, functions = id(instance), self._of
        try:
            reference = weakref.ref(instance, lambda _: functions.pop(number, None))
        except TypeError:
            return None
        return functions.setdefault(number, (reference, self._make(reference)))[1]


class BoundFunction(Generic[Parameters, Result_co]):
    """A `Function` looked up on an object that is its first argument."""

    def __init__(self, function: Function[..., Result_co], instance: Any) -> None:
        """Bind the function."""
        self.function, self._instance = function, instance

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result_co:
        """Run the function."""
        with frames_hidden:
            return self.function(self._instance, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the function."""
        with frames_hidden:
            return self.function.trace(self._instance, *args, **kwargs)
