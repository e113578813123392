"""The copies of an ON_READ variable combined to one value, as its aggregation says."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError
from graphdist.options import VariableAggregation
from graphdist.state.declaration import Declaration
from graphdist.tracing.primitives import reduce_p, replica_id_p
from graphdist.tracing.user_lines import here
from graphdist.values.reducible import summable


def combined_copies(variable: Declaration, local: jax.Array) -> jax.Array:
    """Return the combined value of an ON_READ variable; `local` is the replica's copy."""
    require_aggregation(variable, "read")
    size = variable.strategy.num_replicas_in_sync
    if variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        is_first = replica_id_p.bind(group_size=size) == 0
        kept = jnp.where(is_first, local, jnp.zeros_like(local))
        reducer = "max" if local.dtype == jnp.bool_ else "sum"
        return reduce_p.bind(kept, reducer=reducer, group_size=size)
    reducer = variable.aggregation.name.lower()
    return reduce_p.bind(summable(local, reducer, "reading"), reducer=reducer, group_size=size)


def require_aggregation(variable: Declaration, done: str) -> None:
    """Raise `ArgumentError` for a variable without an aggregation to combine its copies."""
    if variable.aggregation is VariableAggregation.NONE:
        raise ArgumentError(
            f"variable {variable.name!r}, ON_READ with aggregation NONE, is {done} in "
            f"cross-replica context, where it has no one value",
            source=here(),
            hint=f"make it with an aggregation, or have it {done} in replica context, "
            f"inside the function given to run",
        )
