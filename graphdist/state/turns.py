"""What replicas that write to one copy of a variable leave there, one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from graphdist.context import num_replicas_running
from graphdist.options import VariableAggregation
from graphdist.state.declaration import Declaration
from graphdist.tracing.primitives import all_reduce_p, replica_id_p
from graphdist.tracing.sources import here
from graphdist.values.replica_warnings import warn_once


def in_turn(variable: Declaration, method: str, array: jax.Array) -> jax.Array:
    """Return what replicas that write to one copy of a variable leave there, one after the other.

    Of values it is the last one's, of changes to be added their sum.
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

    One with aggregation SUM says that it is meant; sums of metrics are such variables.
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
