"""Arithmetic of per-replica values, replica by replica.

An operator runs as a replica function: `x * 2` is `strategy.run(operator.mul, args=(x, 2))`, inside
a function and outside. In a replica function a value stands for the replica's own component.
Everywhere else it cannot be converted to a number, and cannot be indexed, since `x[0]` would look
like the value of replica 0. `==` compares identities. The operators are written out so that type
checkers and readers see them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any  # Any: operands are whatever JAX takes

import jax
import jax.numpy as jnp

from graphdist.context import current_entry
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, GraphdistError
from graphdist.tracing.state import current_trace
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


class PerReplicaOperators:
    """Arithmetic and comparison, replica by replica."""

    __array_priority__ = 100  # a NumPy array on the left leaves the operator to us

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a PerReplica is asked whether it is true, but it is one value a replica",
            source=here(),
            hint="make it one value first, such as strategy.reduce('SUM', value, axis=None)",
        )

    def __float__(self) -> float:
        return float(_one_value(self, "float() of a PerReplica"))

    def __int__(self) -> int:
        return int(_one_value(self, "int() of a PerReplica"))

    def __complex__(self) -> complex:
        return complex(_one_value(self, "complex() of a PerReplica"))

    def __round__(self, ndigits: int | None = None) -> Any:
        value = _one_value(self, "round() of a PerReplica")
        return round(value) if ndigits is None else round(value, ndigits)

    def __format__(self, spec: str) -> str:
        return format(_one_value(self, "a format of a PerReplica"), spec) if spec else str(self)

    def __len__(self) -> int:
        return len(_one_value(self, "len() of a PerReplica"))

    def __getitem__(self, index: Any) -> Any:
        return _one_value(self, "an element of a PerReplica")[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"a PerReplica has no {name!r}", name=name, obj=self)
        raise AttributeError(
            f"a PerReplica has no {name!r}, since it is one value a replica; the replicas' arrays "
            f"have: strategy.experimental_local_results(value) gives them",
            name=name,
            obj=self,
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
    """Return the result of the operation on each replica, as `run` returns it."""
    entry = current_entry()
    if entry is not None and entry.replica_context is not None:
        return operation(*map(_own_component, operands))
    given = operands
    try:
        if current_trace() is None and operation is not operator.pow:
            operands = tuple(map(_as_input, operands))  # or each number would be compiled
        return _strategy_of(operands).run(operation, args=operands)
    except GraphdistError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0].replace("DynamicJaxprTracer", "Array")
        raise ArgumentTypeError(
            f"{_in_words(operation, given)} fails on a replica: {reason}",
            source=here(),
            hint="operands are numbers, arrays and values of replicas, of shapes that go together",
        ) from error


_SYMBOLS = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def _in_words(operation: Callable[..., Any], operands: tuple[Any, ...]) -> str:
    """Return an operation as it is written, with the kinds of its operands."""
    kinds = [
        "PerReplica"
        if isinstance(operand, PerReplicaOperators)
        else "jax.Array"
        if isinstance(operand, jax.Array)
        else type(operand).__name__
        for operand in operands
    ]
    symbol = _SYMBOLS.get(operation)
    if symbol is None:
        return f"{operation.__name__.strip('_')} of {' and '.join(kinds)}"
    return f" {symbol} ".join(kinds)


def _one_value(value: PerReplicaOperators, what: str) -> Any:
    """Return the replica's component in a replica function; raises elsewhere."""
    entry = current_entry()
    if entry is None or entry.replica_context is None:
        raise ArgumentTypeError(
            f"{what}, which is one value a replica",
            source=here(),
            hint="make it one value first, such as strategy.reduce('MEAN', value, axis=None), or "
            "take the replicas' values: strategy.experimental_local_results(value)",
        )
    return _own_component(value)


def _own_component(operand: Any) -> Any:
    if not isinstance(operand, PerReplicaOperators):
        return operand
    array: Callable[[], Any] = operand.__jax_array__
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
