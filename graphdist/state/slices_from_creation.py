"""Which variables of a strategy are stored in slices from their creation, and why others are not.

`graphdist/ir/stored_slices.py` has the rule by shape. Later a program may store others in slices:
see `layout.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from graphdist.errors import ArgumentError
from graphdist.ir.stored_slices import (
    LARGEST_IN_FULL,
    dimension_to_cut,
    smallest_in_slices,
    stored_dimension,
)
from graphdist.options import VariableSynchronization
from graphdist.tracing.user_lines import here

if TYPE_CHECKING:
    from graphdist.state.declaration import Declaration


def may_be_in_slices(variable: Declaration) -> bool:
    """Return whether a variable is stored in slices if its shape allows it.

    It is for a strategy with `shard_parameters`, unless the replicas have values of their own.
    """
    on_read = variable.synchronization is VariableSynchronization.ON_READ
    return variable.strategy.shard_parameters and not on_read


def dimension_of_slices(variable: Declaration) -> int | None:
    """Return the dimension along which a new variable is stored in slices; None: in full.

    Raises `ArgumentError` for one that is too large to be stored in full, and cannot be cut.
    """
    if not may_be_in_slices(variable) or jnp.issubdtype(variable.dtype, jax.dtypes.prng_key):
        return None
    count = variable.strategy.devices.group_size
    dimension = stored_dimension(variable.shape, count)
    if dimension is None and count > 1 and variable.size > LARGEST_IN_FULL:
        raise _cut_nowhere(variable, count)
    return dimension


def _cut_nowhere(variable: Declaration, count: int) -> ArgumentError:
    padded = [*variable.shape]
    longest = max(range(len(padded)), key=lambda i: padded[i])
    padded[longest] += -padded[longest] % count
    divisors = (size for size in range(count - 1, 1, -1) if count % size == 0)
    fits = (size for size in divisors if dimension_to_cut(variable.shape, size) is not None)
    other = next((f"share it over groups: shard_parameters={size}" for size in fits), "")
    return ArgumentError(
        f"variable {variable.name!r} of shape {list(variable.shape)} cannot be stored in "
        f"slices: no dimension divides by {count} replicas",
        source=here(),
        hint=f"pad a dimension, to {padded}, or "
        f"{other or 'use a number of replicas that divides one'}; "
        f"only variables of at most {LARGEST_IN_FULL:,} elements are stored in full",
    )


def why_in_full(variable: Declaration) -> str:
    """Return why a variable that is large enough for slices is stored in full; "" for others."""
    count = variable.strategy.devices.group_size
    is_cut_nowhere = dimension_to_cut(variable.shape, count) is None
    is_large = variable.size >= smallest_in_slices(count)
    if not (may_be_in_slices(variable) and is_large and is_cut_nowhere):
        return ""
    return f"in full, since no dimension divides by {count}"
