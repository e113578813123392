"""Keras inside functions: its variables stand for variables of the strategy.

While a function is traced, `TracedState` is the scope that Keras asks for the value of each of its
variables, and to which it gives new values. Variables that layers and optimizers make meanwhile get
their first value outside the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any  # Any: arrays, and objects of Keras

import jax
import keras

from graphdist.errors import ArgumentError, ContextError
from graphdist.keras.combined_state import sums_noted
from graphdist.keras.placed_variables import handing_over_at_the_end, placed_variable
from graphdist.program.trace import while_tracing
from graphdist.tracing.state import current_trace, outside_traces
from graphdist.tracing.user_lines import here


class TracedState(keras.StatelessScope):
    """Reads and writes Keras variables where the current strategy stores them."""

    def __init__(self) -> None:
        """Collect the losses that layers add, as Keras does in its own steps."""
        super().__init__(collect_losses=True)
        self._placing = ExitStack()

    def get_current_value(self, variable: Any) -> jax.Array:
        """Return the value inside the function."""
        return placed_variable(variable).read()

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Take a new value of a variable."""
        variable, value = update
        placed_variable(variable).write(value)

    def __enter__(self) -> TracedState:
        """Let the variables that are placed wait until Keras has initialized them."""
        self._placing.enter_context(handing_over_at_the_end())
        self._placing.enter_context(sums_noted())
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Let Keras initialize the variables that were made, whose values are then handed over."""
        with self._placing, outside_traces():
            super().__exit__(*raised)


class Differentiated(keras.StatelessScope):
    """Gives some variables the values that are differentiated, and leaves others where they are."""

    def __init__(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Take pairs of a Keras variable and a value."""
        super().__init__(values, collect_losses=True)

    def get_current_value(self, variable: Any) -> Any:
        """Return the value that is differentiated, or the value in the scope around."""
        given = super().get_current_value(variable)
        return self.original_scope.get_current_value(variable) if given is None else given

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Pass on a new value of a variable that is not differentiated."""
        if id(update[0]) in self.state_mapping:
            raise ArgumentError(
                f"Keras variable {update[0].path!r} is assigned in the function that is "
                f"differentiated by it",
                source=here(),
                hint="assign it after value_and_grad has returned",
            )
        self.original_scope.add_update(update)


def value_and_grad(
    fn: Callable[..., Any], variables: Iterable[keras.Variable], has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that returns the result of `fn` and its gradients by Keras variables.

    As `jax.value_and_grad`, by the variables instead of an argument: `fn` uses the variables, such
    as the weights of a model, and returns a scalar, or a scalar and more if `has_aux`. The
    gradients are a list in the order of the variables, of the calling replica alone: an optimizer
    of Keras sums them over the replicas. State that is no parameter, such as moving averages, is
    updated. Raises `ContextError` when it is called outside a function.

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
                source=here(),
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
