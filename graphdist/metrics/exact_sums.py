"""Sums over updates and replicas that stay exact where a single float would stop growing.

A float32 that counts one by one stops at 2**24, and a total to which little is added at a time
stops earlier. A `Total` is three floats in one variable: the sum is

    rest + 4096 * carried + error

`rest` has the latest additions. Before each update the multiples of 4096 in `rest` are moved to
`carried`, so that `rest` stays small and loses little. `error` keeps the remaining rounding error
(the two-sum of Knuth, "The Art of Computer Programming", volume 2, 4.2.2). `carried` is an integer,
so the replicas' parts of it add up exactly. A count over all replicas is exact up to 2**36, which
is 69 billion. A larger count is exact to one part in 2**24, as a float32 is.

A checkpoint has the sum as one float64.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes, arrays and whatever converts to one

import jax
import jax.numpy as jnp
import numpy as np

from graphdist.context import in_replica_context_of_a_run
from graphdist.options import VariableAggregation, VariableSynchronization
from graphdist.state.aggregation import total_on_first_replica
from graphdist.state.variable import Variable
from graphdist.strategies.current import is_first_replica
from graphdist.values.array_operators import ArrayOperators

CARRIED = 4096.0
"""The unit of `carried`: small enough that a sum of rests on thousands of replicas is exact."""


class _TotalVariable(Variable):
    """Holds the parts of a total. A value assigned outside replica context goes to replica 0."""

    def share(self, value: jax.Array) -> jax.Array:
        """Return a replica's part of an assigned value: all of the value on replica 0, else zeros.

        Equal parts, which other variables have, would not be integers.
        """
        return total_on_first_replica(value, self.strategy.num_replicas_in_sync)


class Total(ArrayOperators):
    """A sum of arrays of one shape, stored in `variable`. In arithmetic it stands for its value.

    >>> import graphdist as gd
    >>> count = gd.metrics.Mean().count
    >>> count.restore(np.float64(2**24))
    >>> for _ in range(3):
    ...     count.add(jnp.float32(1))
    >>> int(count.host_value()) - 2**24
    3
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """Start at zero, in float32 or a wider dtype."""
        self.name, self.shape = name, shape
        self.dtype = jnp.promote_types(dtype, jnp.float32)
        self.variable = _TotalVariable(
            jnp.zeros((3, *shape), self.dtype),
            name=name,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=VariableAggregation.SUM,
        )

    def read_value(self) -> jax.Array:
        """Return the sum: in replica context the replica's own, elsewhere the sum of all."""
        return _sum(self.variable.read_value())

    __jax_array__ = read_value

    @property
    def values(self) -> tuple[jax.Array, ...]:
        """Return each replica's sum, in replica order; outside functions only."""
        return tuple(map(_sum, self.variable.values))

    def add(self, delta: jax.Array) -> None:
        """Add an array; each replica adds its own."""
        variable = self.variable
        rest, carried, error = variable.read_value()
        moved = jnp.where(jnp.isfinite(rest), jnp.trunc(rest / CARRIED), 0)
        moved = (carried + moved) - carried  # rounded to what a large `carried` can represent
        if in_replica_context_of_a_run() and variable.is_mirrored:
            # All replicas add to one copy, so the first replica alone moves multiples of 4096.
            is_first = is_first_replica()
            moved = jnp.where(is_first, moved, 0)
            parts = delta - moved * CARRIED, moved, jnp.zeros_like(error)
            variable.assign_add(jnp.stack(parts), read_value=False)
            return
        rest, error = _two_sum(rest - moved * CARRIED, delta + error)
        variable.assign(jnp.stack([rest, carried + moved, error]), read_value=False)

    def reset(self) -> None:
        """Set the sum to zero."""
        self.variable.assign(jnp.zeros_like(self.variable[...]), read_value=False)

    def host_value(self) -> np.ndarray[Any, Any]:
        """Return the exact sum in float64. Call it outside functions, on all workers."""
        return np.asarray(_sum(np.asarray(self.variable.host_value(), np.float64)))

    def restore(self, value: Any) -> None:
        """Set the sum to one that `host_value` returned, or to a float of another dtype."""
        value = np.asarray(value, np.float64)
        carried = np.where(np.isfinite(value), np.trunc(value / CARRIED), 0)
        left = value - carried * CARRIED
        rest = left.astype(self.dtype)
        error = np.where(np.isfinite(value), left - rest.astype(np.float64), 0)
        parts = np.stack([rest, carried, error]).astype(self.dtype)
        self.variable.assign(parts, read_value=False)


def _sum(parts: Any) -> Any:
    rest, carried, error = parts
    return carried * CARRIED + (rest + error)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the sum of two numbers and the rounding error; 0 if the sum is not finite."""
    total = a + b
    taken = total - a
    error = (a - (total - taken)) + (b - taken)
    return total, jnp.where(jnp.isfinite(total), error, 0)
