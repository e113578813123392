"""The shares of the replicas in a total: as even as possible, with exactly the total as their sum.

An ON_READ variable with aggregation SUM reads as the sum of its copies. A value that is assigned to
it in cross-replica context, or restored, is shared out so that the same value is read back,
whatever the order in which the copies are added up. (Negative zero reads as zero, as in any sum.)

* Integers: each replica gets the quotient, and the first replicas 1 more each for the remainder.
* Floats: the quotient is rounded to so few bits that every sum of shares is exact, and replica 0
  gets the rest. Replica 0 gets the total if the dtype has too few bits for so many replicas, and if
  the total is infinite or nan.
* Other dtypes: replica 0 gets the total.

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

    The exponent of a quotient by n is up to ceil(log2(n)) below the total's. If as many of its last
    bits are zero, the quotient is a multiple of the total's last place. Rounding increases it by
    less than an n-th, so that no sum of shares exceeds the total.
    """
    format: Any = ml_dtypes.finfo(total.dtype)  # type: ignore[no-untyped-call]
    lost = (replicas - 1).bit_length()
    if format.nmant < 2 * lost:
        return jnp.zeros_like(total)
    quotient = jax.lax.reduce_precision(total / replicas, format.nexp, format.nmant - lost)
    # Subnormal quotients have fewer bits than the count above assumes.
    has_all_bits = jnp.abs(total) >= format.tiny * 2**lost
    return jnp.where(has_all_bits & jnp.isfinite(quotient), quotient, jnp.zeros_like(total))
