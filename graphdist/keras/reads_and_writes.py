"""Reads and writes of Keras variables whose values are stored on a strategy.

Keras has hooks for reads and writes only in its scopes. So `store_values_on_strategies` wraps the
methods of `keras.Variable` that read, assign, print and copy a variable. A variable that is on no
strategy is read and written as before. Values that replicas assign are combined first
(`combined_state.py`). For this, the sums of variables and amounts are recorded.

While a function is traced, `TracedState` is the scope from which Keras gets the value of each
variable, and to which Keras gives new values. Variables that layers and optimizers make during the
trace get their initial values outside the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any  # Any: arrays and objects of Keras

import jax
import keras
import numpy as np

from graphdist.errors import ArgumentError, ContextError
from graphdist.keras.combined_state import combined, record_sum, sums_recorded
from graphdist.keras.placed_variables import (
    HandedBack,
    attributes_of_keras,
    handed_over,
    handing_over_at_the_end,
    is_placed,
    placed_variable,
)
from graphdist.keras.replacements import wrap_method
from graphdist.keras.replica_batch import current_replica_batch
from graphdist.program.trace import while_tracing
from graphdist.tracing.trace_in_progress import current_trace, outside_traces


class ValuesOnStrategies(keras.StatelessScope):
    """Gives Keras the values on strategies, unless the outer scope gives others."""

    def __init__(self) -> None:
        """Make a scope that initializes no variables; the outer scope initializes them."""
        super().__init__(initialize_variables=False)

    def get_current_value(self, variable: Any) -> Any:
        """Return the value in the outer scope, or else the value on the strategy, if any."""
        outer = self.original_scope
        value = None if outer is None else outer.get_current_value(variable)
        placed = handed_over(variable)
        return value if value is not None or placed is None else placed.value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Give a new value to the outer scope, or store the value on the strategy."""
        variable, value = update
        placed = handed_over(variable)
        if self.original_scope is not None or placed is None:
            self.original_scope.add_update(update)
        else:
            placed.value = value


def store_values_on_strategies() -> None:
    """Make Keras read and write variables where strategies store them."""
    wrap_method(keras.Variable, "value", _read)
    wrap_method(keras.Variable, "assign", _assign)
    wrap_method(keras.Variable, "__add__", partial(_sum, 1))
    wrap_method(keras.Variable, "__radd__", partial(_sum, 1))
    wrap_method(keras.Variable, "__sub__", partial(_sum, -1))
    wrap_method(keras.Variable, "__repr__", _shown)
    wrap_method(keras.Variable, "__reduce_ex__", _reduced)


def _read(original: Callable[[Any], Any], variable: Any) -> Any:
    if not is_placed(variable):
        return original(variable)
    with ValuesOnStrategies():
        return original(variable)


def _assign(original: Callable[..., Any], variable: Any, value: Any) -> Any:
    placed = handed_over(variable)
    if isinstance(value, HandedBack):
        if value.placed is placed:
            return value  # the variable has this value already
        raise ArgumentError(
            f"Keras gives the value of {value.placed.keras.path!r} to {variable.path!r}: the "
            f"variables of their model have changed during its training",
            hint="change layer.trainable, layers and metrics between fits, and compile again",
        )
    if current_replica_batch() is not None or _stores_in_the_strategy():
        value = combined(variable, value)
    if placed is None:
        return original(variable, value)
    with ValuesOnStrategies():
        return original(variable, value)


def _stores_in_the_strategy() -> bool:
    """Return whether an assigned value goes to the strategy, and not to a scope of the user's."""
    with keras.StatelessScope(initialize_variables=False) as scope:
        return isinstance(scope.original_scope, TracedState | Differentiated)


def _sum(sign: int, original: Callable[..., Any], variable: Any, amount: Any) -> Any:
    result = original(variable, amount)
    record_sum(variable, amount, result, sign)
    return result


def _shown(original: Callable[[Any], str], variable: Any) -> str:
    if not is_placed(variable) or current_trace() is not None:
        return original(variable)
    shown = f"path={variable.path}, shape={variable.shape}, dtype={variable.dtype}"
    return f"<Variable {shown}, value={np.asarray(variable.value)}>"


def _reduced(original: Callable[..., Any], variable: Any, protocol: Any) -> Any:
    placed = handed_over(variable)
    if placed is None:
        return original(variable, protocol)
    return _plain, (type(variable), attributes_of_keras(variable), placed.value)


def _plain(kind: type[Any], attributes: dict[str, Any], value: Any) -> Any:
    """Return a new Keras variable of class `kind`, on no strategy, with this value."""
    variable = object.__new__(kind)
    vars(variable).update(attributes)
    variable.assign(value)
    return variable


class TracedState(keras.StatelessScope):
    """Reads and writes Keras variables where the current strategy stores them."""

    def __init__(self) -> None:
        """Make a scope that collects the losses that layers add, as in Keras's own steps."""
        super().__init__(collect_losses=True)
        self._placing = ExitStack()

    def get_current_value(self, variable: Any) -> jax.Array:
        """Return the value inside the function."""
        return placed_variable(variable).read()

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Store a new value of a variable."""
        variable, value = update
        placed_variable(variable).write(value)

    def __enter__(self) -> TracedState:
        """Enter the scope. Variables placed in it keep Keras's array until the scope ends."""
        self._placing.enter_context(handing_over_at_the_end())
        self._placing.enter_context(sums_recorded())
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Let Keras initialize the variables made in the scope, then hand over those placed."""
        with self._placing, outside_traces():
            super().__exit__(*raised)


class Differentiated(keras.StatelessScope):
    """Gives some variables the values to differentiate by; others have the outer scope's values."""

    def __init__(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Take pairs of a Keras variable and a value."""
        super().__init__(values, collect_losses=True)

    def get_current_value(self, variable: Any) -> Any:
        """Return the value to differentiate by, or else the value in the outer scope."""
        value = super().get_current_value(variable)
        return self.original_scope.get_current_value(variable) if value is None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Pass on a new value to the outer scope.

        Raises `ArgumentError` for a variable to differentiate by.
        """
        if id(update[0]) in self.state_mapping:
            raise ArgumentError(
                f"Keras variable {update[0].path!r} is assigned in the function that is "
                f"differentiated by it",
                hint="assign it after value_and_grad has returned",
            )
        self.original_scope.add_update(update)


def value_and_grad(
    fn: Callable[..., Any], variables: Iterable[keras.Variable], has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the result of `fn` and its gradients by Keras variables.

    This is `jax.value_and_grad` by variables instead of by an argument. `fn` uses the variables,
    such as the weights of a model. It returns a scalar, or with `has_aux` a pair of a scalar and
    any other result. The gradients are a list in the order of the variables. They are the calling
    replica's own: an optimizer of Keras sums them over the replicas. State that is not a parameter,
    such as moving averages, is updated. The returned function raises `ContextError` outside a
    `gd.function` or replica function.

    >>> import graphdist as gd, graphdist.keras, keras
    >>> scale = keras.Variable(3.0)
    >>> @gd.function
    ... def gradient():
    ...     return graphdist.keras.value_and_grad(lambda: scale * scale, [scale])()
    >>> value, grads = gradient()
    >>> float(value), float(grads[0])
    (9.0, 6.0)
    """
    of = list(variables)

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        if current_trace() is None:
            raise ContextError(
                "the gradient by Keras variables is taken outside a function",
                hint="take it in the function given to strategy.run, or in a gd.function",
            )

        def of_values(values: list[Any]) -> Any:
            with Differentiated(zip(of, values, strict=True)):
                return fn(*args, **kwargs)

        values = [variable.value for variable in of]
        return jax.value_and_grad(of_values, has_aux=has_aux)(values)

    return differentiated


def place_variables_while_tracing() -> None:
    """Make Keras variables stand for variables of the strategy in all functions."""
    if TracedState not in while_tracing:
        while_tracing.append(TracedState)
