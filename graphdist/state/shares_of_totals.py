"""The shares of the replicas in a total: nearly even, and their sum is exactly the total.

An ON_READ variable with aggregation SUM reads as the sum of its copies. A value that is assigned to
it in cross-replica context, or restored, is divided into shares. The same value is read back, in
whatever order the copies are added up, except that -0.0 reads as 0.0.

* Integers: each replica gets the quotient, and the first replicas 1 more each for the remainder.
* Floats: the quotient is rounded to so few bits that every sum of shares is exact, and replica 0
  gets the rest. Infinities, nan and totals close to zero go to replica 0 entirely, as does every
  total of a dtype with too few bits for so many replicas.
* Other dtypes, and integers too narrow for the number of replicas: replica 0 gets the total.

TensorFlow gives every replica the quotient, and loses the remainder.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes, and untyped results of ml_dtypes

import jax
import jax.numpy as jnp
import ml_dtypes

from graphdist.tracing.primitives import replica_id_p


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
    """Return, inside a function, a total on replica 0 and zero on the others."""
    if replicas == 1:
        return total
    is_first = replica_id_p.bind(group_size=replicas) == 0
    return jnp.where(is_first, total, jnp.zeros_like(total))


def _largest(dtype: Any) -> int:
    return int(ml_dtypes.iinfo(dtype).max)  # type: ignore[no-untyped-call]


def _short_quotient(total: jax.Array, replicas: int) -> jax.Array:
    """Return the quotient, rounded so that its multiples, and the total minus them, are exact.

    The exponent of a quotient by n is up to ceil(log2(n)) below the total's. So a quotient that is
    rounded to ceil(log2(n)) bits fewer is a multiple of the total's last place. Rounding increases
    it by less than an n-th, so that no sum of shares exceeds the total.
    """
    format: Any = ml_dtypes.finfo(total.dtype)  # type: ignore[no-untyped-call]
    lost = (replicas - 1).bit_length()
    if format.nmant < 2 * lost:
        return jnp.zeros_like(total)
    quotient = jax.lax.reduce_precision(total / replicas, format.nexp, format.nmant - lost)
    # The quotient of a smaller total may be subnormal: it has fewer bits than the rounding assumes.
    has_all_bits = jnp.abs(total) >= format.tiny * 2**lost
    return jnp.where(has_all_bits & jnp.isfinite(quotient), quotient, jnp.zeros_like(total))
