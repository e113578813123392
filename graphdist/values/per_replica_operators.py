"""Arithmetic of per-replica values, replica by replica.

An operator runs as a replica function: `x * 2` is `strategy.run(operator.mul, args=(x, 2))`, inside
a function and outside. In a replica function the replica's own component is the operand. Elsewhere
a per-replica value cannot be converted to a Python number, and cannot be indexed, since `x[0]`
would look like the value of replica 0. `==` compares identities.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any  # Any: operands are whatever JAX takes

import jax
import jax.numpy as jnp

from graphdist.context import current_entry, in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError, GraphdistError
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.operators import Operators

if TYPE_CHECKING:
    from graphdist.strategy_base import StrategyBase


class PerReplicaOperators(Operators[Any]):
    """Arithmetic and comparison, replica by replica."""

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a PerReplica has no truth value, since it has a value per replica",
            hint="make it one value first, such as strategy.reduce('SUM', value, axis=None)",
        )

    def _array_for(self, use: str) -> Any:
        """Return the component in a replica function; raises `ArgumentTypeError` elsewhere."""
        if not in_replica_context_of_a_run():
            raise ArgumentTypeError(
                f"{use} of a PerReplica, which has a value per replica",
                hint="make it one value first, such as strategy.reduce('MEAN', value, axis=None), "
                "or take the replicas' values: strategy.experimental_local_results(value)",
            )
        return _own_component(self)

    def __round__(self, ndigits: int | None = None) -> Any:
        value = self._array_for("round()")
        return round(value) if ndigits is None else round(value, ndigits)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(jax.Array, name):
            raise AttributeError(f"a PerReplica has no {name!r}", name=name, obj=self)
        raise AttributeError(
            f"a PerReplica has no {name!r}, since it has a value per replica; the replicas' "
            f"arrays have one: strategy.experimental_local_results(value) returns them",
            name=name,
            obj=self,
        )

    def _operate(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return _on_each_replica(operation, operands)


def _on_each_replica(operation: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Return the results of an operation on each replica, in the form that `run` returns."""
    if in_replica_context_of_a_run():
        return operation(*map(_own_component, operands))
    args = operands
    try:
        if current_trace() is None and operation is not operator.pow:
            args = tuple(map(_as_input, operands))  # otherwise each number has its own program
        return _strategy_of(args).run(operation, args=args)
    except GraphdistError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0].replace("DynamicJaxprTracer", "Array")
        raise ArgumentTypeError(
            f"{_expression(operation, operands)} fails on a replica: {reason}",
            hint="operands are numbers, arrays and per-replica values of compatible shapes",
        ) from error


_NAMES = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift lt le gt ge"
_SIGNS = "+ - * / // % ** @ & | ^ << >> < <= > >="
_SYMBOLS = dict(zip(_NAMES.split(), _SIGNS.split(), strict=True))
"""The operators of Python, by the names of the functions of the module `operator`."""


def _expression(operation: Callable[..., Any], operands: tuple[Any, ...]) -> str:
    """Return an operation as Python code, with the types of its operands."""
    kinds = [
        "PerReplica"
        if isinstance(operand, PerReplicaOperators)
        else "jax.Array"
        if isinstance(operand, jax.Array)
        else type(operand).__name__
        for operand in operands
    ]
    symbol = _SYMBOLS.get(operation.__name__)
    if symbol is None:
        return f"{operation.__name__.strip('_')} of {' and '.join(kinds)}"
    return f" {symbol} ".join(kinds)


def _own_component(operand: Any) -> Any:
    return operand.__jax_array__() if isinstance(operand, PerReplicaOperators) else operand


def _as_input(operand: Any) -> Any:
    """Return a Python number as a weakly typed array, which has the same type promotion."""
    is_number = isinstance(operand, int | float | complex) and not isinstance(operand, bool)
    return jnp.asarray(operand) if is_number else operand


def _strategy_of(operands: tuple[Any, ...]) -> StrategyBase:
    """Return the strategy of one of the operands, else the current strategy."""
    entry = current_entry()
    for operand in operands:
        strategy: StrategyBase | None = getattr(operand, "strategy", None)
        if strategy is not None and isinstance(operand, PerReplicaOperators):
            return strategy
    if entry is None or entry.strategy.is_default:
        raise ContextError(
            "a PerReplica is an operand, but no strategy made it and no scope is open: the number "
            "of replicas is not known",
            hint="write it inside strategy.scope()",
        )
    return entry.strategy
