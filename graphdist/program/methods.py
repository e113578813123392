"""Methods: a compiled function per object, or one function with the object as first argument.

A method is compiled for each object, since the object is part of the program. Objects are
distinguished by identity, like Python's methods: objects of a dataclass may be equal and have no
hash. A function is kept as long as its object, to which it refers weakly; the `Method` of
`function.py` that is looked up on an object refers to both.

If the object is a pytree, or has no weak references, it is an argument of the function instead.
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
    """The functions of one method, by their objects."""

    def __init__(self, make: Callable[[Callable[[], Any]], Function[..., Any]]) -> None:
        """Start empty; `make` makes the function for a weak reference to an object."""
        self._make = make
        self._of: dict[int, tuple[weakref.ref[Any], Function[..., Any]]] = {}

    def of(self, instance: Any) -> Function[..., Any] | None:
        """Return the function of an object; None if the object is an argument."""
        entry = self._of.get(id(instance))
        if entry is not None:  # an entry is removed before another object can have its id
            return entry[1]
        if not jax.tree_util.all_leaves([instance]):  # a pytree: its arrays are arguments
            return None
        key, functions = id(instance), self._of
        try:
            reference = weakref.ref(instance, lambda _: functions.pop(key, None))
        except TypeError:
            return None
        return functions.setdefault(key, (reference, self._make(reference)))[1]


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
