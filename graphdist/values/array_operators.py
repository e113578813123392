"""Arithmetic for objects that stand for an array: variables and mirrored values.

Each operator gets the array from `__jax_array__` and calls the same operator of the array. They are
written out so that type checkers and readers see them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn  # Any: operands are whatever JAX takes

import jax
import numpy as np

from graphdist.errors import ArgumentError, UnsupportedError
from graphdist.tracing.user_lines import here

_JAX_CORE = getattr(jax.typeof, "__globals__", None)
"""The names of the module in which JAX inspects the arguments of its compiled functions."""


def is_asked_by_a_function_of_jax(frame: FrameType) -> bool:
    """Return whether the frame looks `__jax_array__` up only to refuse the argument."""
    # `bind` would hide an error that is raised here.
    return frame.f_globals is _JAX_CORE and frame.f_code.co_name != "bind"


class ArrayOperators:
    """Arithmetic, comparison and indexing with the array from `__jax_array__`.

    `==` compares element by element with arrays, numbers and objects that stand for them, and by
    identity with everything else. The hash is the object's identity, so that it may be a key.
    """

    __array_priority__ = 100  # as jax.Array: a NumPy array on the left leaves the operator to us

    @property
    def __jax_array__(self) -> Callable[[], jax.Array]:
        """Return the function that gives the array.

        It is a property because compiled functions of JAX never call it: they check that it exists
        and raise an error without the user's line. The property raises a better one first.
        """
        if is_asked_by_a_function_of_jax(sys._getframe(1)):
            raise ArgumentError(
                f"{self._in_words()} is given to a function of JAX, which takes arrays",
                source=here(),
                hint=self.how_to_read(),
            )
        return self._as_array

    def _as_array(self) -> jax.Array:
        """Return the array this stands for."""
        raise NotImplementedError

    def how_to_read(self) -> str:
        """Return how users write the value."""
        if vars(self).get("name") is None:
            return "give it the value: value[...]"
        return "give it the value: v[...] of one, gd.read(tree) of a pytree of variables"

    def _in_words(self) -> str:
        """Return what this is, for errors."""
        name = vars(self).get("name")
        return f"a {type(self).__name__}" if name is None else f"variable {name!r}"

    def __getattr__(self, name: str) -> NoReturn:
        kind = type(self).__name__
        array = (
            ""
            if name.startswith("_") or not hasattr(jax.Array, name)
            else (f"; the array it stands for has: write {kind.lower()}[...].{name}")
        )
        raise AttributeError(f"a {kind} has no {name!r}{array}", name=name, obj=self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.__jax_array__(), dtype=dtype)

    def __getitem__(self, index: Any) -> jax.Array:
        return self.__jax_array__()[index]

    def __len__(self) -> int:
        return len(self.__jax_array__())

    def __iter__(self) -> Iterator[jax.Array]:
        return iter(self.__jax_array__())

    def __float__(self) -> float:
        return float(self.__jax_array__())

    def __int__(self) -> int:
        return int(self.__jax_array__())

    def __bool__(self) -> bool:
        return bool(self.__jax_array__())

    def __complex__(self) -> complex:
        return complex(self.__jax_array__())

    def __round__(self, ndigits: int | None = None) -> jax.Array:
        return round(self.__jax_array__(), ndigits or 0)

    def __format__(self, spec: str) -> str:
        return format(self.__jax_array__(), spec) if spec else str(self)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise UnsupportedError(
            f"an element of {self._in_words()} is assigned in place",
            source=here(),
            hint="assign the full value: v.assign(v[...].at[index].set(value)), or rows of it with "
            "v.scatter_update",
        )

    def __neg__(self) -> jax.Array:
        return -self.__jax_array__()

    def __pos__(self) -> jax.Array:
        return +self.__jax_array__()

    def __invert__(self) -> jax.Array:
        return ~self.__jax_array__()

    def __abs__(self) -> jax.Array:
        return abs(self.__jax_array__())

    def __add__(self, other: Any) -> jax.Array:
        return self.__jax_array__() + _array(other)

    def __radd__(self, other: Any) -> jax.Array:
        return _array(other) + self.__jax_array__()

    def __sub__(self, other: Any) -> jax.Array:
        return self.__jax_array__() - _array(other)

    def __rsub__(self, other: Any) -> jax.Array:
        return _array(other) - self.__jax_array__()

    def __mul__(self, other: Any) -> jax.Array:
        return self.__jax_array__() * _array(other)

    def __rmul__(self, other: Any) -> jax.Array:
        return _array(other) * self.__jax_array__()

    def __truediv__(self, other: Any) -> jax.Array:
        return self.__jax_array__() / _array(other)

    def __rtruediv__(self, other: Any) -> jax.Array:
        return _array(other) / self.__jax_array__()

    def __floordiv__(self, other: Any) -> jax.Array:
        return self.__jax_array__() // _array(other)

    def __rfloordiv__(self, other: Any) -> jax.Array:
        return _array(other) // self.__jax_array__()

    def __mod__(self, other: Any) -> jax.Array:
        return self.__jax_array__() % _array(other)

    def __rmod__(self, other: Any) -> jax.Array:
        return _array(other) % self.__jax_array__()

    def __pow__(self, other: Any) -> jax.Array:
        return self.__jax_array__() ** _array(other)

    def __rpow__(self, other: Any) -> jax.Array:
        return _array(other) ** self.__jax_array__()

    def __matmul__(self, other: Any) -> jax.Array:
        return self.__jax_array__() @ _array(other)

    def __rmatmul__(self, other: Any) -> jax.Array:
        return _array(other) @ self.__jax_array__()

    def __and__(self, other: Any) -> jax.Array:
        return self.__jax_array__() & _array(other)

    def __rand__(self, other: Any) -> jax.Array:
        return _array(other) & self.__jax_array__()

    def __or__(self, other: Any) -> jax.Array:
        return self.__jax_array__() | _array(other)

    def __ror__(self, other: Any) -> jax.Array:
        return _array(other) | self.__jax_array__()

    def __xor__(self, other: Any) -> jax.Array:
        return self.__jax_array__() ^ _array(other)

    def __rxor__(self, other: Any) -> jax.Array:
        return _array(other) ^ self.__jax_array__()

    def __lshift__(self, other: Any) -> jax.Array:
        return self.__jax_array__() << _array(other)

    def __rlshift__(self, other: Any) -> jax.Array:
        return _array(other) << self.__jax_array__()

    def __rshift__(self, other: Any) -> jax.Array:
        return self.__jax_array__() >> _array(other)

    def __rrshift__(self, other: Any) -> jax.Array:
        return _array(other) >> self.__jax_array__()

    def __lt__(self, other: Any) -> jax.Array:
        return self.__jax_array__() < _array(other)

    def __le__(self, other: Any) -> jax.Array:
        return self.__jax_array__() <= _array(other)

    def __gt__(self, other: Any) -> jax.Array:
        return self.__jax_array__() > _array(other)

    def __ge__(self, other: Any) -> jax.Array:
        return self.__jax_array__() >= _array(other)

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
        """Return whether `==` compares element by element; otherwise it compares identities."""
        return isinstance(other, _ARRAYS)


def _array(operand: Any) -> Any:
    return operand.__jax_array__() if isinstance(operand, ArrayOperators) else operand


_ARRAYS = (ArrayOperators, jax.Array, np.ndarray, np.generic, int, float, complex)
