"""The operators of Python for values of graphdist, each as a call of one method.

They are written out so that type checkers and readers see them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Generic, TypeVar  # Any: operands are whatever JAX takes

Result = TypeVar("Result")


class Operators(Generic[Result]):
    """Arithmetic and comparison, without `==`, which subclasses define or leave to Python."""

    __array_priority__ = 100  # as jax.Array: then an operator of a NumPy array on the left yields

    def _operate(self, operation: Callable[..., Any], *operands: Any) -> Result:
        """Return the result of an operation on operands, of which this is one."""
        raise NotImplementedError

    def __neg__(self) -> Result:
        return self._operate(operator.neg, self)

    def __pos__(self) -> Result:
        return self._operate(operator.pos, self)

    def __invert__(self) -> Result:
        return self._operate(operator.invert, self)

    def __abs__(self) -> Result:
        return self._operate(operator.abs, self)

    def __add__(self, other: Any) -> Result:
        return self._operate(operator.add, self, other)

    def __radd__(self, other: Any) -> Result:
        return self._operate(operator.add, other, self)

    def __sub__(self, other: Any) -> Result:
        return self._operate(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Result:
        return self._operate(operator.sub, other, self)

    def __mul__(self, other: Any) -> Result:
        return self._operate(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Result:
        return self._operate(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Result:
        return self._operate(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Result:
        return self._operate(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Result:
        return self._operate(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Result:
        return self._operate(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Result:
        return self._operate(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Result:
        return self._operate(operator.mod, other, self)

    def __pow__(self, other: Any) -> Result:
        return self._operate(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Result:
        return self._operate(operator.pow, other, self)

    def __matmul__(self, other: Any) -> Result:
        return self._operate(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Result:
        return self._operate(operator.matmul, other, self)

    def __and__(self, other: Any) -> Result:
        return self._operate(operator.and_, self, other)

    def __rand__(self, other: Any) -> Result:
        return self._operate(operator.and_, other, self)

    def __or__(self, other: Any) -> Result:
        return self._operate(operator.or_, self, other)

    def __ror__(self, other: Any) -> Result:
        return self._operate(operator.or_, other, self)

    def __xor__(self, other: Any) -> Result:
        return self._operate(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Result:
        return self._operate(operator.xor, other, self)

    def __lshift__(self, other: Any) -> Result:
        return self._operate(operator.lshift, self, other)

    def __rlshift__(self, other: Any) -> Result:
        return self._operate(operator.lshift, other, self)

    def __rshift__(self, other: Any) -> Result:
        return self._operate(operator.rshift, self, other)

    def __rrshift__(self, other: Any) -> Result:
        return self._operate(operator.rshift, other, self)

    def __lt__(self, other: Any) -> Result:
        return self._operate(operator.lt, self, other)

    def __le__(self, other: Any) -> Result:
        return self._operate(operator.le, self, other)

    def __gt__(self, other: Any) -> Result:
        return self._operate(operator.gt, self, other)

    def __ge__(self, other: Any) -> Result:
        return self._operate(operator.ge, self, other)
