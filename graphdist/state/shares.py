"""What each replica gets of a total: shares as even as they can be, whose sum is the total again.

An ON_READ variable with aggregation SUM reads as the sum of its copies. A value assigned to it in
cross-replica context, or restored, is shared out so that it reads back as it was, in whatever
order the copies are added up; but negative zero reads as zero, as a sum has it.

* Integers: what does not divide goes to the first replicas, one each.
* Floats: the quotient is rounded to so few bits that every sum of shares is exact, and replica 0
  gets the rest. Where a dtype has too few bits for so many replicas, and of infinities and what is
  no number, replica 0 gets all.
* Others get it on replica 0.

TensorFlow gives all replicas the quotient, and loses what does not divide.
"""

from __future__ import annotations

from typing import Any  # Any: dtypes, and what ml_dtypes says of them without types

import jax
import jax.numpy as jnp
import ml_dtypes

from graphdist.tracing.primitives import replica_id_p


def share_of_total(total: jax.Array, replicas: int) -> jax.Array:
    """Return, inside a function, what each replica holds of a total."""
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
    """Return a quotient so short that its multiples, and the total less these, are exact.

    A quotient by n is up to ceil(log2(n)) places below the total. Without as many of its own last
    bits it is a multiple of the total's last place; and it is rounded up by less than an n-th, so
    that no sum of shares exceeds the total.
    """
    format: Any = ml_dtypes.finfo(total.dtype)  # type: ignore[no-untyped-call]
    lost = (replicas - 1).bit_length()
    if format.nmant < 2 * lost:
        return jnp.zeros_like(total)
    quotient = jax.lax.reduce_precision(total / replicas, format.nexp, format.nmant - lost)
    # The bits below are counted of numbers that have all of theirs.
    has_all_bits = jnp.abs(total) >= format.tiny * 2**lost
    return jnp.where(has_all_bits & jnp.isfinite(quotient), quotient, jnp.zeros_like(total))
