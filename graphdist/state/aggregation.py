"""How reads and writes of a variable are combined over all replicas.

The copies of an ON_READ variable are combined into one value, as its aggregation says. If several
replicas write to the only copy of a variable, they write one replica after the other.

An ON_READ variable with aggregation SUM reads as the sum of its copies. A value that is assigned to
such a variable in cross-replica context, or restored, is divided into nearly equal shares. The sum
of the shares is exactly the value, in any order of addition, except that -0.0 reads as 0.0.

* Integers: each replica gets the quotient, and the first replicas 1 more each for the remainder.
* Floats: the quotient is rounded to few enough bits that every sum of shares is exact, and replica
  0 gets the remainder. Replica 0 gets the total if the total is infinite, nan or close to zero, or
  if its dtype has too few bits for the number of replicas.
* Other dtypes, and integers too narrow for the number of replicas: replica 0 gets the total.

TensorFlow gives every replica the quotient, and loses the remainder.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes, and untyped results of ml_dtypes

import jax
import jax.numpy as jnp
import ml_dtypes

from graphdist.context import num_replicas_running
from graphdist.errors import ArgumentError
from graphdist.options import VariableAggregation
from graphdist.state.declaration import Declaration
from graphdist.tracing.primitives import all_reduce_p, reduce_p, replica_id_p
from graphdist.values.reducible import summable
from graphdist.values.replica_warnings import warn_once


def combined_copies(variable: Declaration, local: jax.Array) -> jax.Array:
    """Return the combined value of an ON_READ variable; `local` is the replica's copy."""
    require_aggregation(variable, "read")
    size = variable.strategy.num_replicas_in_sync
    if variable.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        kept = _on_one_replica(local, 0, size)
        return reduce_p.bind(kept, reducer=_adding_zeros(local), group_size=size)
    reducer = variable.aggregation.name.lower()
    return reduce_p.bind(summable(local, reducer, "reading"), reducer=reducer, group_size=size)


def require_aggregation(variable: Declaration, done: str) -> None:
    """Raise `ArgumentError` for a variable without an aggregation to combine its copies."""
    if variable.aggregation is VariableAggregation.NONE:
        raise ArgumentError(
            f"variable {variable.name!r}, ON_READ with aggregation NONE, is {done} in "
            f"cross-replica context, where it has no one value",
            hint=f"make it with an aggregation, or have it {done} in replica context, "
            f"inside the function given to run",
        )


def in_turn(variable: Declaration, method: str, array: jax.Array) -> jax.Array:
    """Return the array that, written once, has the effect of the replicas' writes in turn.

    For `assign` this is the value of the last replica, for any other method the sum of all changes.
    """
    size = num_replicas_running()
    if size == 1:
        return array
    if method != "assign":
        warn_of_changes_in_turn(variable, method, size)
    else:
        array = _on_one_replica(array, size - 1, size)
    return all_reduce_p.bind(array, reducer=_adding_zeros(array), group_size=size)


def _on_one_replica(array: jax.Array, replica: int, replicas: int) -> jax.Array:
    """Return, inside a function, the array on a replica, and zeros on the other replicas."""
    is_there = replica_id_p.bind(group_size=replicas) == replica
    return jnp.where(is_there, array, jnp.zeros_like(array))


def _adding_zeros(array: jax.Array) -> str:
    """Return the reducer of an array that is zero on all replicas but one."""
    return "max" if array.dtype == jnp.bool_ else "sum"


def warn_of_changes_in_turn(variable: Declaration, method: str, num_replicas: int) -> None:
    """Warn if every replica changes a variable that was made outside the scope.

    There is no warning for aggregation SUM, with which each change is meant to count, as in the
    sums of metrics.
    """
    if variable.aggregation is VariableAggregation.SUM:
        return
    warn_once(
        "change",
        f"{method} of variable {variable.name!r} is done {num_replicas} times, once by each "
        f"replica: the variable was made outside the strategy's scope ({variable.made_at}) and "
        f"has one copy for all. Make it inside: with strategy.scope(). If each change is to "
        f"count, make it with aggregation=gd.VariableAggregation.SUM.",
    )


def share_of_total(total: jax.Array, replicas: int) -> jax.Array:
    """Return, inside a function, the replica's share of a total."""
    if replicas == 1:
        return total
    replica = replica_id_p.bind(group_size=replicas)
    if jnp.issubdtype(total.dtype, jnp.integer) and replicas <= _largest(total.dtype):
        quotient = total // replicas
        rest = total - quotient * replicas
        return quotient + (replica.astype(total.dtype) < rest).astype(total.dtype)
    if jnp.issubdtype(total.dtype, jnp.floating):
        quotient = _short_quotient(total, replicas)
        return jnp.where(replica == 0, total - quotient * (replicas - 1), quotient)
    return total_on_first_replica(total, replicas)


def total_on_first_replica(total: jax.Array, replicas: int) -> jax.Array:
    """Return, inside a function, the total on replica 0 and zeros on other replicas."""
    return total if replicas == 1 else _on_one_replica(total, 0, replicas)


def _largest(dtype: Any) -> int:
    return int(ml_dtypes.iinfo(dtype).max)  # type: ignore[no-untyped-call]


def _short_quotient(total: jax.Array, replicas: int) -> jax.Array:
    """Return the quotient, rounded so that multiples of the quotient are exact.

    The total minus a multiple is exact, too.

    Let n be the number of replicas. The exponent of the quotient is at most ceil(log2(n)) smaller
    than the exponent of the total. So a quotient with ceil(log2(n)) bits fewer is a multiple of the
    total's last bit. Rounding increases the quotient by less than an n-th, so that no sum of shares
    exceeds the total.
    """
    format: Any = ml_dtypes.finfo(total.dtype)  # type: ignore[no-untyped-call]
    lost = (replicas - 1).bit_length()
    if format.nmant < 2 * lost:
        return jnp.zeros_like(total)
    quotient = jax.lax.reduce_precision(total / replicas, format.nexp, format.nmant - lost)
    # The quotient of a smaller total may be subnormal, with fewer bits than the rounding assumes.
    has_all_bits = jnp.abs(total) >= format.tiny * 2**lost
    return jnp.where(has_all_bits & jnp.isfinite(quotient), quotient, jnp.zeros_like(total))
