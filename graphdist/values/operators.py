"""The operators and conversions of Python for values of graphdist, each as a call of one method.

The operators are listed one by one, so that type checkers and readers see them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar  # Any: operands are whatever JAX takes

Result = TypeVar("Result")


def _unary(operation: Callable[..., Any]) -> Callable[[Operators[Result]], Result]:
    return lambda self: self._operate(operation, self)


def _binary(operation: Callable[..., Any]) -> Callable[[Operators[Result], Any], Result]:
    return lambda self, other: self._operate(operation, self, other)


def _reflected(operation: Callable[..., Any]) -> Callable[[Operators[Result], Any], Result]:
    return lambda self, other: self._operate(operation, other, self)


class Operators(Generic[Result]):
    """Arithmetic, comparison, conversion and indexing; `==` is left to subclasses or to Python."""

    __array_priority__ = 100  # as jax.Array, so a NumPy array on the left yields to it

    def _operate(self, operation: Callable[..., Any], *operands: Any) -> Result:
        """Return the result of an operation on operands, one of which is `self`."""
        raise NotImplementedError

    def _array_for(self, use: str) -> Any:
        """Return the array that is indexed or converted; `use` is for errors."""
        raise NotImplementedError

    def __float__(self) -> float:
        return float(self._array_for("float()"))

    def __int__(self) -> int:
        return int(self._array_for("int()"))

    def __complex__(self) -> complex:
        return complex(self._array_for("complex()"))

    def __format__(self, spec: str) -> str:
        return format(self._array_for("a format"), spec) if spec else str(self)

    def __len__(self) -> int:
        return len(self._array_for("len()"))

    def __getitem__(self, index: Any) -> Result:
        return self._array_for("an element")[index]

    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __invert__ = _unary(operator.invert)
    __abs__ = _unary(operator.abs)
    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__ = _binary(operator.pow), _reflected(operator.pow)
    __matmul__, __rmatmul__ = _binary(operator.matmul), _reflected(operator.matmul)
    __and__, __rand__ = _binary(operator.and_), _reflected(operator.and_)
    __or__, __ror__ = _binary(operator.or_), _reflected(operator.or_)
    __xor__, __rxor__ = _binary(operator.xor), _reflected(operator.xor)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __rshift__, __rrshift__ = _binary(operator.rshift), _reflected(operator.rshift)
    __lt__ = _binary(operator.lt)
    __le__ = _binary(operator.le)
    __gt__ = _binary(operator.gt)
    __ge__ = _binary(operator.ge)
