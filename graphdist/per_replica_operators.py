"""Arithmetic of per-replica values: on each replica, with what the replica has.

It is what `run` gives for the operator as the replica function: `x * 2` is
`strategy.run(operator.mul, args=(x, 2))`, inside a function and outside. In a replica function a
value takes part as the replica's own component. `==` asks for the same object, and there is no
index: `x[0]` would be taken for the value of replica 0. The operators are written out so that type
checkers and readers see them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any  # Any: operands are whatever JAX takes

import jax.numpy as jnp

from graphdist.context import current_entry
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, GraphdistError
from graphdist.tracing.sources import here
from graphdist.tracing.state import current_trace

if TYPE_CHECKING:
    from graphdist.strategies.base import StrategyBase


class PerReplicaOperators:
    """Arithmetic and comparison, replica by replica."""

    __array_priority__ = 100  # a NumPy array on the left leaves the operator to us

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a PerReplica is asked whether it is true, but it is one value a replica",
            source=here(),
            hint="make it one value first, such as strategy.reduce('SUM', value, axis=None)",
        )

    def __neg__(self) -> Any:
        return _of_each(operator.neg, self)

    def __pos__(self) -> Any:
        return _of_each(operator.pos, self)

    def __invert__(self) -> Any:
        return _of_each(operator.invert, self)

    def __abs__(self) -> Any:
        return _of_each(operator.abs, self)

    def __add__(self, other: Any) -> Any:
        return _of_each(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return _of_each(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return _of_each(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return _of_each(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return _of_each(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return _of_each(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return _of_each(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _of_each(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _of_each(operator.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _of_each(operator.floordiv, other, self)

    def __mod__(self, other: Any) -> Any:
        return _of_each(operator.mod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return _of_each(operator.mod, other, self)

    def __pow__(self, other: Any) -> Any:
        return _of_each(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return _of_each(operator.pow, other, self)

    def __matmul__(self, other: Any) -> Any:
        return _of_each(operator.matmul, self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _of_each(operator.matmul, other, self)

    def __and__(self, other: Any) -> Any:
        return _of_each(operator.and_, self, other)

    def __rand__(self, other: Any) -> Any:
        return _of_each(operator.and_, other, self)

    def __or__(self, other: Any) -> Any:
        return _of_each(operator.or_, self, other)

    def __ror__(self, other: Any) -> Any:
        return _of_each(operator.or_, other, self)

    def __xor__(self, other: Any) -> Any:
        return _of_each(operator.xor, self, other)

    def __rxor__(self, other: Any) -> Any:
        return _of_each(operator.xor, other, self)

    def __lshift__(self, other: Any) -> Any:
        return _of_each(operator.lshift, self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _of_each(operator.lshift, other, self)

    def __rshift__(self, other: Any) -> Any:
        return _of_each(operator.rshift, self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _of_each(operator.rshift, other, self)

    def __lt__(self, other: Any) -> Any:
        return _of_each(operator.lt, self, other)

    def __le__(self, other: Any) -> Any:
        return _of_each(operator.le, self, other)

    def __gt__(self, other: Any) -> Any:
        return _of_each(operator.gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return _of_each(operator.ge, self, other)


def _of_each(operation: Callable[..., Any], *operands: Any) -> Any:
    """Return what the operation gives on each replica, as `run` returns it."""
    entry = current_entry()
    if entry is not None and entry.replica_context is not None:
        return operation(*map(_own_component, operands))
    if current_trace() is None and operation is not operator.pow:
        operands = tuple(map(_as_input, operands))  # or each number would make a program
    try:
        return _strategy_of(operands).run(operation, args=operands)
    except GraphdistError:
        raise
    except TypeError as error:
        raise ArgumentTypeError(
            f"{operation.__name__.strip('_')} of per-replica values fails on a replica: "
            f"{str(error).splitlines()[0]}",
            source=here(),
        ) from error


def _own_component(operand: Any) -> Any:
    if not isinstance(operand, PerReplicaOperators):
        return operand
    array: Callable[[], Any] = operand.__jax_array__  # type: ignore[attr-defined]
    return array()


def _as_input(operand: Any) -> Any:
    """Return a Python number as a weakly typed array, which promotes types as the number does."""
    is_number = isinstance(operand, int | float | complex) and not isinstance(operand, bool)
    return jnp.asarray(operand) if is_number else operand


def _strategy_of(operands: tuple[Any, ...]) -> StrategyBase:
    """Return the strategy of one of the operands, or else the current one."""
    entry = current_entry()
    for operand in operands:
        strategy: StrategyBase | None = getattr(operand, "strategy", None)
        if strategy is not None and isinstance(operand, PerReplicaOperators):
            return strategy
    if entry is None or entry.strategy.is_default:
        raise ContextError(
            "a PerReplica takes part in arithmetic, but no strategy made it and no scope is open: "
            "how many replicas there are is not known",
            source=here(),
            hint="write it inside strategy.scope()",
        )
    return entry.strategy
