"""Updates of all kinds of variables: assignments, scatter updates, and in-place operators.

In-place operators raise an error, since Python would bind the variable's name to an array.

Scatter updates change some rows of a variable, by index. In cross-replica context they change the
variable's value. In replica context the replicas' slices are combined as the variable's aggregation
says. SUM applies the slices of all replicas. MEAN also applies the slices of all replicas, with
their values divided by the number of replicas. ONLY_FIRST_REPLICA applies the slices of replica 0.
A minimum, a maximum or a replacement is neither a sum nor a mean. So with SUM and MEAN,
`scatter_min`, `scatter_max` and `scatter_update` raise an error, as in `tf.distribute`. For ON_READ
variables every scatter update raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn  # Any: arrays, and pytree nodes of JAX

import jax
import jax.numpy as jnp

from graphdist.context import running_replica
from graphdist.errors import ArgumentTypeError, UnsupportedError
from graphdist.options import VariableAggregation
from graphdist.state.aggregation import warn_of_changes_in_turn
from graphdist.tracebacks import frames_hidden
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.values.distributed import type_name


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IndexedSlices:
    """Rows of an array: `values[i]` belongs to row `indices[i]`.

    `values` has shape [n, ...], `indices` [n]; `dense_shape` exists as in `tf.IndexedSlices`.

    >>> import graphdist as gd
    >>> w = gd.Variable(jnp.zeros(3))
    >>> w.scatter_add(IndexedSlices(jnp.array([2.0]), jnp.array([1]))).read_value()
    Array([0., 2., 0.], dtype=float32)
    """

    values: Any
    indices: Any
    dense_shape: Any = None


_OPERATIONS = {
    "scatter_add": "add",
    "scatter_sub": "subtract",
    "scatter_mul": "multiply",
    "scatter_div": "divide",
    "scatter_min": "min",
    "scatter_max": "max",
    "scatter_update": "set",
}
_COMBINED = (VariableAggregation.SUM, VariableAggregation.MEAN)
_NOT_COMBINED = ("scatter_min", "scatter_max", "scatter_update")


class VariableUpdates:
    """The methods that change a variable, and the in-place operators, which raise an error.

    The variable's class has the methods `checked`, `write` and `result_of_write`.
    """

    name: str

    def assign(self, value: Any, *, read_value: bool = True) -> Any:
        """Set the value, combined over the replicas as the aggregation says.

        `value` has the variable's shape and dtype. A Python number gets the variable's dtype.
        Returns None if `read_value` is False. Otherwise returns the variable, or the new value
        inside a function and for an ON_READ variable. Raises `ArgumentError` for another shape or
        dtype. Raises `DistributionError`, when the program is compiled, if the value may differ
        between replicas and the aggregation is NONE.
        """
        with frames_hidden:
            return self._written("assign", value, read_value)

    def assign_add(self, delta: Any, *, read_value: bool = True) -> Any:
        """Add `delta` to the value. In replica context the replicas' deltas are combined first."""
        with frames_hidden:
            return self._written("assign_add", delta, read_value)

    def assign_sub(self, delta: Any, *, read_value: bool = True) -> Any:
        """Subtract `delta` from the value. In replica context the deltas are combined first."""
        with frames_hidden:
            return self._written("assign_sub", delta, read_value)

    def _written(self: Any, method: str, value: Any, read_value: bool) -> Any:
        self.write(method, self.checked(value))
        return self.result_of_write(read_value)

    def scatter_add(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Add slices to rows of the value. The aggregation combines the replicas' slices."""
        return self._scatter("scatter_add", slices, read_value)

    def scatter_sub(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Subtract slices from rows of the value."""
        return self._scatter("scatter_sub", slices, read_value)

    def scatter_mul(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Multiply rows of the value by slices."""
        return self._scatter("scatter_mul", slices, read_value)

    def scatter_div(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Divide rows of the value by slices."""
        return self._scatter("scatter_div", slices, read_value)

    def scatter_min(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Replace rows of the value by the elementwise minimum with slices."""
        return self._scatter("scatter_min", slices, read_value)

    def scatter_max(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Replace rows of the value by the elementwise maximum with slices."""
        return self._scatter("scatter_max", slices, read_value)

    def scatter_update(self, slices: IndexedSlices, *, read_value: bool = True) -> Any:
        """Replace rows of the value by slices."""
        return self._scatter("scatter_update", slices, read_value)

    def _scatter(self: Any, method: str, slices: IndexedSlices, read_value: bool) -> Any:
        self.require_same_strategy()
        _check(self, method, slices)
        trace = current_trace()
        if trace is None:
            self.through_function(method, slices)
            return self.result_of_write(read_value)
        self.claim(trace)
        context: Any = running_replica()
        # Replicas change a plain variable one after the other, as if one applied all slices.
        in_turn = self.is_plain and method != "scatter_update"
        if context is not None and in_turn and context.num_replicas_in_sync > 1:
            warn_of_changes_in_turn(self, method, context.num_replicas_in_sync)
        if context is not None and (self.aggregation in _COMBINED or in_turn):
            slices, context = _combined(self, context, slices), None
        value = _scattered(trace.read(self), method, slices)
        trace.write(self, value, "cross" if context is None else "replica")
        return self.result_of_write(read_value)

    def __iadd__(self, other: Any) -> NoReturn:
        raise self._in_place("+=", "assign_add(value)")

    def __isub__(self, other: Any) -> NoReturn:
        raise self._in_place("-=", "assign_sub(value)")

    def __imul__(self, other: Any) -> NoReturn:
        raise self._in_place("*=", "assign(v * value)")

    def __itruediv__(self, other: Any) -> NoReturn:
        raise self._in_place("/=", "assign(v / value)")

    def _in_place(self, operator: str, method: str) -> UnsupportedError:
        return UnsupportedError(
            f"variable {self.name!r} {operator} value would put an array in the variable's place",
            hint=f"write v.{method}",
        )


def _check(variable: Any, method: str, slices: Any) -> None:
    """Raise the error for a scatter update that has no meaning for the variable."""
    if not isinstance(slices, IndexedSlices):
        raise ArgumentTypeError(
            f"{method} of variable {variable.name!r} with a {type_name(slices)}, "
            f"not with gd.IndexedSlices",
            hint="write gd.IndexedSlices(values, indices)",
        )
    if not variable.is_mirrored:
        raise UnsupportedError(
            f"{method} of variable {variable.name!r}, which is ON_READ",
            hint="assign the full value: v.assign(v.read_value().at[indices].add(values))",
        )
    many = variable.strategy.num_replicas_in_sync > 1
    if many and method in _NOT_COMBINED and variable.aggregation in _COMBINED:
        raise UnsupportedError(
            f"{method} of variable {variable.name!r} with aggregation {variable.aggregation.name}: "
            f"it is neither a sum nor a mean",
            hint="make the variable with aggregation ONLY_FIRST_REPLICA",
        )


def _scattered(value: jax.Array, method: str, slices: IndexedSlices) -> jax.Array:
    """Return the value with the slices applied."""
    rows = value.at[jnp.asarray(slices.indices)]
    updates = jnp.asarray(slices.values, value.dtype)
    return getattr(rows, _OPERATIONS[method])(updates)


def _combined(variable: Any, context: Any, slices: IndexedSlices) -> IndexedSlices:
    """Return the slices of all replicas, for MEAN with values divided by the number of replicas."""
    values = jnp.asarray(slices.values, variable.dtype)
    if variable.aggregation is VariableAggregation.MEAN:
        values = values / context.num_replicas_in_sync
    gathered = context.all_gather((values, jnp.asarray(slices.indices)), axis=0)
    return IndexedSlices(*gathered)
