"""The rules that choose how variables are stored.

A new variable of a strategy with parameter servers is stored on one of them. Under
`shard_parameters` a new variable is sharded along the dimension `stored_dimension`. This depends
on the shape alone, so the slots of an optimizer are sharded like their parameters. Any other new
variable is unsharded. A program may change the storage later. The rules here say which changes are
allowed. The passes `local_steps`, `place_conversions` and `pack_variables` find out which changes
save time or memory, and write their choice into the graph's variables (`variable_storage.py`).
`graphdist.state` stores the variables as the final graph says.

* A variable with fewer elements than `smallest_sharded` is unsharded, since the bytes that its
  shards save are not worth a collective.
* A value of three or more dimensions is assumed to be a stack of layers that a loop scans. The loop
  gathers one layer at a time, so each layer is sharded as if it were a variable. The stack is
  sharded along dimension 0 only if the number of replicas divides no other dimension.
* A variable that is sharded along dimension 0, and that a loop scans nevertheless, is sharded along
  another dimension from then on, so that each iteration can gather its own layer.
* Small mirrored variables may enter a pack, unless they have left one before.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from graphdist.ir.graph import GraphVariable
from graphdist.ir.types import MIRRORED
from graphdist.ir.variable_storage import UNSHARDED

LARGEST_UNSHARDED = 2**22
"""A variable with more elements must be sharded, since a device may not have room for all."""

_SMALLEST_SHARD = 2**12


def smallest_sharded(num_replicas: int) -> int:
    """Return the smallest number of elements of a variable that is sharded.

    >>> smallest_sharded(8), smallest_sharded(4096)
    (32768, 4194304)
    """
    return min(_SMALLEST_SHARD * num_replicas, LARGEST_UNSHARDED)


def stored_dimension(shape: tuple[int, ...], num_replicas: int) -> int | None:
    """Return the dimension along which a new variable of this shape is sharded, None if unsharded.

    >>> [stored_dimension(shape, 8) for shape in ((32, 4096, 64), (4096, 64), (8,))]
    [1, 0, None]
    """
    if num_replicas == 1 or prod(shape) < smallest_sharded(num_replicas):
        return None
    return dimension_to_shard(shape, num_replicas, is_scanned=len(shape) > 2)


@lru_cache(maxsize=4096)
def dimension_to_shard(
    shape: tuple[int, ...], num_replicas: int, *, is_scanned: bool = False
) -> int | None:
    """Return the dimension along which to shard a value; None if `num_replicas` divides none.

    Dimension 0 is the first choice, since shards of rows need no copy. The second choice is the
    longest dimension that `num_replicas` divides. The last dimension comes after all other
    dimensions, since accelerators pad a short last dimension to 128. If a loop scans the value
    along dimension 0, the same rule is applied to the slice of one iteration, and dimension 0 is
    the last choice.

    >>> dimension_to_shard((8, 3), 4), dimension_to_shard((6, 8, 16), 4)
    (0, 1)
    >>> dimension_to_shard((6,), 4), dimension_to_shard((8, 12, 4), 4, is_scanned=True)
    (None, 1)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    first = 1 if is_scanned else 0
    inside = [i for i in divides if i >= first]
    if not inside or inside[0] == first:
        return min(inside or divides, default=None)
    not_last = [i for i in inside if i < len(shape) - 1]
    return max(not_last or inside, key=lambda i: shape[i])


def stored_for_scan(variable: GraphVariable, num_shards: int) -> GraphVariable:
    """Return `variable`, which a loop scans, sharded along an unscanned dimension if possible."""
    if variable.sharded_along != 0:
        return variable
    return variable.stored_along(
        dimension_to_shard(variable.type.shape, num_shards, is_scanned=True)
    )


def may_enter_pack(variable: GraphVariable, largest: int) -> bool:
    """Return whether a variable may enter a pack of variables of at most `largest` bytes each."""
    is_free = variable.storage == UNSHARDED and not variable.pieces
    is_value = variable.type.layout is MIRRORED and not variable.type.dtype.startswith("key<")
    return is_free and is_value and 0 < variable.type.bytes <= largest
