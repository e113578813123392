"""Writes of several replicas to the only copy of a variable, one replica after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from graphdist.context import num_replicas_running
from graphdist.options import VariableAggregation
from graphdist.state.declaration import Declaration
from graphdist.tracing.primitives import all_reduce_p, replica_id_p
from graphdist.tracing.user_lines import here
from graphdist.values.replica_warnings import warn_once


def in_turn(variable: Declaration, method: str, array: jax.Array) -> jax.Array:
    """Return the array to write once for writes of all replicas, one after the other.

    For `assign` it is the value of the last replica, otherwise the sum of all changes.
    """
    size = num_replicas_running()
    if size == 1:
        return array
    if method != "assign":
        warn_of_changes_in_turn(variable, method, size)
    else:
        is_last = replica_id_p.bind(group_size=size) == size - 1
        array = jnp.where(is_last, array, jnp.zeros_like(array))
    reducer = "max" if array.dtype == jnp.bool_ else "sum"
    return all_reduce_p.bind(array, reducer=reducer, group_size=size)


def warn_of_changes_in_turn(variable: Declaration, method: str, num_replicas: int) -> None:
    """Warn of a change that every replica makes to a variable made outside the scope.

    A variable with aggregation SUM is meant to be changed so, as the sums of metrics are.
    """
    if variable.aggregation is VariableAggregation.SUM:
        return
    warn_once(
        "change",
        f"{method} of variable {variable.name!r} is done {num_replicas} times, once by each "
        f"replica: the variable was made outside the strategy's scope ({variable.made_at}) and "
        f"has one copy for all. Make it inside: with strategy.scope(). If each change is to "
        f"count, make it with aggregation=gd.VariableAggregation.SUM.",
        here(),
    )
