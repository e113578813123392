"""The base class of metrics over any number of replicas, for `means.py` and the other modules here.

A metric is made in the scope of its strategy. The state of a metric is sums in ON_READ variables.
Each replica adds its examples to its own copy, and `result` outside replica context combines the
copies. The sums are totals and counts of examples, never means. So each replica is weighted by its
number of rows, which may be 0. Inside a replica function `result` is the result of the
replica's own examples. `exact_sums.py` explains how sums stay exact over billions of examples.

An update outside replica context counts once. If an argument is a `PerReplica`, each replica is
updated with its own component.
"""

from __future__ import annotations

import re
from typing import Any  # Any: arrays and whatever converts to one

import jax
import jax.numpy as jnp

from graphdist.context import Entry, entered, in_replica_context_of_a_run
from graphdist.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from graphdist.metrics.exact_sums import Total
from graphdist.state.variable import Variable
from graphdist.strategies.current import get_strategy, is_first_replica
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.distributed import PerReplica, checked_array, type_name


class Metric:
    """The base class of metrics, also of your own.

    A subclass makes its variables in `__init__` with `add_variable`. `contributions` returns the
    amounts that an update adds to the variables, in the order of `add_variable`. `value` computes
    the result from the variables' values. The values are float32 if the metric's dtype has fewer
    bits; the result has the metric's dtype.

    >>> class Norm(Metric):
    ...     def __init__(self):
    ...         super().__init__("norm")
    ...         self.add_variable("squares")
    ...     def contributions(self, values):
    ...         return [jnp.sum(jnp.square(values))]
    ...     def value(self, squares):
    ...         return jnp.sqrt(squares)
    >>> norm = Norm()
    >>> norm.update_state([3.0, 4.0])
    >>> norm.result()
    Array(5., dtype=float32)
    """

    def __init__(self, name: str | None = None, dtype: Any = None) -> None:
        """Make a metric of the current strategy, by default with the name of its class."""
        in_words = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__)
        self.name = in_words.lower() if name is None else name
        self.dtype = jnp.dtype("float32" if dtype is None else dtype)
        self.strategy = get_strategy()
        self.totals: list[Total] = []

    def add_variable(self, name: str, shape: tuple[int, ...] = ()) -> Total:
        """Return a new sum, of zeros."""
        total = Total(name, shape, self.dtype)
        self.totals.append(total)
        return total

    @property
    def variables(self) -> list[Variable]:
        """Return the variables, each of which holds the parts of one sum."""
        return [total.variable for total in self.totals]

    @property
    def sum_dtype(self) -> Any:
        """Return the dtype in which contributions are added up."""
        return jnp.promote_types(self.dtype, jnp.float32)

    def contributions(self, *arrays: Any, **options: Any) -> list[jax.Array]:
        """Return the amounts that an update with these arrays adds to the variables."""
        raise self._undefined("contributions", "the amounts that an update adds to the variables")

    def value(self, *sums: Any) -> jax.Array:
        """Return the result for these values of the variables."""
        raise self._undefined("value", "the result for the values of the variables")

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Add examples: `values`, or `y_true` and `y_pred`; and `sample_weight`.

        Raises `ArgumentTypeError` for anything but arrays, `ArgumentError` for shapes that do not
        fit.
        """
        needed = [*args[:1], *(kwargs[name] for name in kwargs if name != "sample_weight")]
        if any(value is None for value in needed):
            raise ArgumentTypeError(
                f"metric {self.name!r} is given None for values",
                hint="give it arrays; sample_weight alone may be None",
            )
        arrays = tuple(map(self._argument, args))
        named = {name: self._argument(value) for name, value in kwargs.items()}
        if in_replica_context_of_a_run() or self.strategy.is_default:
            self._add(*arrays, **named)
            return
        if current_trace() is not None:
            self._update(arrays, named)
            return
        with entered(Entry(self.strategy)):
            # The compiled update is released together with the metric.
            self.strategy.implicit.of_function("update_state", self, Metric._update)(arrays, named)

    def _argument(self, value: Any) -> Any:
        if value is None or isinstance(value, PerReplica):
            return value
        return checked_array(value, f"metric {self.name!r} is given")

    def _update(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Update on all replicas, from cross-replica context inside a function."""
        is_per_replica = any(isinstance(each, PerReplica) for each in (*arrays, *named.values()))
        self.strategy.run(self._add if is_per_replica else self._add_once, arrays, named)

    def _add(self, *arrays: Any, **named: Any) -> None:
        for total, delta in self._deltas(arrays, named):
            total.add(delta)

    def _add_once(self, *arrays: Any, **named: Any) -> None:
        """Add examples that all replicas were given, on the first replica alone."""
        is_first = is_first_replica()
        for total, delta in self._deltas(arrays, named):
            total.add(jnp.where(is_first, delta, 0))

    def _deltas(
        self, arrays: tuple[Any, ...], named: dict[str, Any]
    ) -> list[tuple[Total, jax.Array]]:
        """Return each sum with the amount to add. All amounts are checked before any is added."""
        where = f"{type(self).__name__}.contributions returns"
        amounts = self.contributions(*arrays, **named)
        if not isinstance(amounts, list | tuple):
            raise ArgumentTypeError(
                f"{where} {type_name(amounts)}, which is no list",
                hint="return a list with one array for each variable",
            )
        if len(amounts) != len(self.totals):
            names = ", ".join(total.name for total in self.totals) or "none"
            raise ArgumentError(
                f"{where} a list of {len(amounts)}, the number of variables is "
                f"{len(self.totals)}: {names}",
                hint="return one array for each variable, in the order of add_variable",
            )
        deltas = [jnp.asarray(delta, self.sum_dtype) for delta in amounts]
        for total, delta in zip(self.totals, deltas, strict=True):
            if delta.shape != total.shape:
                raise ArgumentError(
                    f"{where} an array of shape {delta.shape} for {total.name!r}, which has "
                    f"shape {total.shape}"
                )
        return list(zip(self.totals, deltas, strict=True))

    def _undefined(self, method: str, returns: str) -> UnsupportedError:
        return UnsupportedError(
            f"{type(self).__name__} has no {method}()",
            hint=f"define {method}() in it: it returns {returns}",
        )

    def result(self) -> jax.Array:
        """Return the metric over all examples; in a replica function, over the replica's own."""
        if current_trace() is not None or self.strategy.is_default:
            return self._result()
        with entered(Entry(self.strategy)):
            return self.strategy.implicit.of_function("result", self, Metric._result)((), {})

    def _result(self, *nothing: Any) -> jax.Array:
        result = self.value(*(total.read_value() for total in self.totals))
        return result.astype(self.dtype) if self.dtype != self.sum_dtype else result

    def reset_state(self) -> None:
        """Forget all examples."""
        for total in self.totals:
            total.reset()

    def __call__(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Update the state and return the result."""
        self.update_state(*args, **kwargs)
        return self.result()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.strategy}>"
