"""Reads and writes of Keras variables whose values are stored on a strategy.

Keras has no hook for them, so that `store_values_on_strategies` wraps `value` and `assign` of
`keras.Variable`, and what shows and copies it. A variable that is on no strategy is read and
written as before. Values that replicas assign are combined first (`combined_state.py`), which asks
for the sums of variables and amounts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any  # Any: arrays and objects of Keras

import keras
import numpy as np

from graphdist.keras.combined_state import combined, note_sum
from graphdist.keras.parts import current_part
from graphdist.keras.placed_variables import (
    HandedBack,
    attributes_of_keras,
    handed_over,
    is_placed,
)
from graphdist.keras.traced_state import Differentiated, TracedState
from graphdist.tracing.state import current_trace


class ValuesOnStrategies(keras.StatelessScope):
    """Gives Keras the values on strategies, unless the scope around gives others."""

    def __init__(self) -> None:
        """Leave it to the scope around to initialize the variables that were made in it."""
        super().__init__(initialize_variables=False)

    def get_current_value(self, variable: Any) -> Any:
        """Return the value in the scope around, or else the value on the strategy, if any."""
        around = self.original_scope
        given = None if around is None else around.get_current_value(variable)
        placed = handed_over(variable)
        return given if given is not None or placed is None else placed.value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Pass on a new value to the scope around, or store it on the strategy."""
        variable, value = update
        placed = handed_over(variable)
        if self.original_scope is not None or placed is None:
            self.original_scope.add_update(update)
        else:
            placed.value = value


def store_values_on_strategies() -> None:
    """Make Keras read and write variables where strategies store them."""
    kind = keras.Variable
    if not vars(kind.assign).get("writes_to_strategies"):
        kind.value = _reading(kind.value)
        kind.assign = _assigning(kind.assign)
        kind.__add__ = _summing(kind.__add__)
        kind.__radd__ = _summing(kind.__radd__)
        kind.__sub__ = _summing(kind.__sub__, sign=-1)
        kind.__repr__ = _showing(kind.__repr__)
        kind.__reduce_ex__ = _reducing(kind.__reduce_ex__)
        vars(kind.assign)["writes_to_strategies"] = True


def _reading(original: Any) -> property:
    read = original.fget

    @wraps(read)
    def value(self: Any) -> Any:
        if not is_placed(self):
            return read(self)
        with ValuesOnStrategies():
            return read(self)

    return property(value)


def _assigning(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def assign(self: Any, value: Any) -> Any:
        placed = handed_over(self)
        if placed is not None and isinstance(value, HandedBack) and value.placed is placed:
            return value  # it is the value that the variable has
        if current_part() is not None or _stores_in_the_strategy():
            value = combined(self, value)
        if placed is None:
            return original(self, value)
        with ValuesOnStrategies():
            return original(self, value)

    return assign


def _stores_in_the_strategy() -> bool:
    """Return whether a value that is assigned goes to the strategy, and to no scope of the user."""
    with keras.StatelessScope(initialize_variables=False) as scope:
        return isinstance(scope.original_scope, TracedState | Differentiated)


def _summing(original: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
    @wraps(original)
    def summed(self: Any, amount: Any) -> Any:
        result = original(self, amount)
        note_sum(self, amount, result, sign)
        return result

    return summed


def _showing(original: Callable[[Any], str]) -> Callable[[Any], str]:
    @wraps(original)
    def __repr__(self: Any) -> str:
        if not is_placed(self) or current_trace() is not None:
            return original(self)
        shown = f"path={self.path}, shape={self.shape}, dtype={self.dtype}"
        return f"<Variable {shown}, value={np.asarray(self.value)}>"

    return __repr__


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        placed = handed_over(self)
        if placed is None:
            return original(self, protocol)
        return _plain, (type(self), attributes_of_keras(self), placed.value)

    return __reduce_ex__


def _plain(kind: type[Any], attributes: dict[str, Any], value: Any) -> Any:
    """Return a variable without a strategy: the copy of one that has a strategy."""
    variable = object.__new__(kind)
    vars(variable).update(attributes)
    variable.assign(value)
    return variable
