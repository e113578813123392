"""Operators of variables and mirrored values. Each applies to the array of the object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn  # Any: operands are whatever JAX takes

import jax
import numpy as np

from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.values.operators import Operators

_JAX_CORE = getattr(jax.typeof, "__globals__", None)
"""The names of the module in which JAX inspects the arguments of its compiled functions."""

_TENSORFLOW_NAMES = {
    "numpy": "np.asarray({0})",
    "gather_nd": "{0}[indices]",
    "sparse_read": "{0}[indices]",
    "scatter_nd_update": "{0}.assign({0}[...].at[indices].set(values))",
    "scatter_nd_add": "{0}.assign({0}[...].at[indices].add(values))",
    "scatter_nd_sub": "{0}.assign({0}[...].at[indices].add(-values))",
}
"""What is written here for attributes of `tf.Variable` that are not here."""


def is_refused_by_jax(frame: FrameType) -> bool:
    """Return whether JAX looks up `__jax_array__` in this frame only to reject the argument.

    The function `bind` of JAX is no such frame, since `bind` hides an error of the property.
    """
    return frame.f_globals is _JAX_CORE and frame.f_code.co_name != "bind"


class ArrayOperators(Operators[jax.Array]):
    """Arithmetic, comparison and indexing of the array from `__jax_array__`.

    `==` compares element by element with arrays, numbers and other `ArrayOperators`, and by
    identity with any other object. The hash is by identity, so that the object may be a key.
    """

    @property
    def __jax_array__(self) -> Callable[[], jax.Array]:
        """Return the function that returns the array.

        This is a property, because compiled functions of JAX never call the returned function. JAX
        only checks that the attribute exists, and raises an error without the user's line. So the
        property raises an error that has the line.
        """
        if is_refused_by_jax(sys._getframe(1)):
            raise ArgumentError(
                f"{self._description()} is given to a function of JAX, which takes arrays",
                hint=self.how_to_read(),
            )
        return self._as_array

    def _as_array(self) -> jax.Array:
        """Return the array that operators apply to."""
        raise NotImplementedError

    def how_to_read(self) -> str:
        """Return how the user gets the array, as the hint of an error."""
        if vars(self).get("name") is None:
            return "give it the value: value[...]"
        return "give it the value: v[...] of one, gd.read(tree) of a pytree of variables"

    def _description(self) -> str:
        """Return the description of this object in errors."""
        name = vars(self).get("name")
        return f"a {type(self).__name__}" if name is None else f"variable {name!r}"

    def __getattr__(self, name: str) -> NoReturn:
        kind = type(self).__name__
        instead = ""
        if name in _TENSORFLOW_NAMES:
            instead = f": write {_TENSORFLOW_NAMES[name].format(kind.lower())}"
        elif not name.startswith("_") and hasattr(jax.Array, name):
            instead = f"; its array has one: write {kind.lower()}[...].{name}"
        raise AttributeError(f"a {kind} has no {name!r}{instead}", name=name, obj=self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.__jax_array__(), dtype=dtype)

    def _array_for(self, use: str) -> jax.Array:
        return self.__jax_array__()

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.__jax_array__())

    def __bool__(self) -> bool:
        return bool(self.__jax_array__())

    def __round__(self, ndigits: int | None = None) -> jax.Array:
        return round(self.__jax_array__(), ndigits or 0)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise UnsupportedError(
            f"an element of {self._description()} is assigned in place",
            hint="assign the full value: v.assign(v[...].at[index].set(value)), or rows of it with "
            "v.scatter_update",
        )

    def _operate(self, operation: Callable[..., Any], *operands: Any) -> jax.Array:
        return operation(*map(_array, operands))

    def __eq__(self, other: object) -> Any:
        if not self.is_compared_with(other):
            return NotImplemented
        return self.__jax_array__() == _array(other)

    def __ne__(self, other: object) -> Any:
        if not self.is_compared_with(other):
            return NotImplemented
        return self.__jax_array__() != _array(other)

    __hash__ = object.__hash__

    def is_compared_with(self, other: object) -> bool:
        """Return whether `==` compares element by element, instead of identities."""
        return isinstance(other, _ARRAYS)


def _array(operand: Any) -> Any:
    return operand.__jax_array__() if isinstance(operand, ArrayOperators) else operand


_ARRAYS = (ArrayOperators, jax.Array, np.ndarray, np.generic, int, float, complex)
