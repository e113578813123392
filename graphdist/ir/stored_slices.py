"""Along which dimension a shape is cut in slices, and which variables are stored so from the start.

The shape alone decides about a variable, so that the slots of an optimizer are cut as their
parameters are:

* A variable with fewer elements than `smallest_in_slices` is stored in full: the bytes that its
  slices save are not worth a collective.
* A shape of three or more dimensions is taken for a stack of layers that a loop walks along. The
  loop gathers one layer at a time, so the stack is cut inside the layer, as if it stood alone;
  along dimension 0 only if no other divides.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

LARGEST_IN_FULL = 2**22
"""A variable with more elements must be cut: no device may hold it in full."""

_SMALLEST_SLICE = 2**12


def smallest_in_slices(num_replicas: int) -> int:
    """Return the number of elements from which variables are stored in slices.

    >>> smallest_in_slices(8), smallest_in_slices(4096)
    (32768, 4194304)
    """
    return min(_SMALLEST_SLICE * num_replicas, LARGEST_IN_FULL)


def stored_dimension(shape: tuple[int, ...], num_replicas: int) -> int | None:
    """Return the dimension along which a variable of a shape is stored in slices; None: in full.

    >>> [stored_dimension(shape, 8) for shape in ((32, 4096, 64), (4096, 64), (8,))]
    [1, 0, None]
    """
    if num_replicas == 1 or prod(shape) < smallest_in_slices(num_replicas):
        return None
    return dimension_to_cut(shape, num_replicas, is_walked=len(shape) > 2)


@lru_cache(maxsize=4096)
def dimension_to_cut(
    shape: tuple[int, ...], num_replicas: int, *, is_walked: bool = False
) -> int | None:
    """Return the dimension along which a shape of any size is cut; None if none divides.

    The first one if it divides, since slices of rows need no copy; else the longest that does, and
    the last only if no other does: accelerators pad a short last dimension to 128. If a loop walks
    along dimension 0, this holds for what a step takes, and dimension 0 comes last.

    >>> dimension_to_cut((8, 3), 4), dimension_to_cut((6, 8, 16), 4), dimension_to_cut((6, 16), 4)
    (0, 1, 1)
    >>> dimension_to_cut((6,), 4), dimension_to_cut((8, 12, 4), 4, is_walked=True)
    (None, 1)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    first = 1 if is_walked else 0
    inside = [i for i in divides if i >= first]
    if not inside or inside[0] == first:
        return min(inside or divides, default=None)
    not_last = [i for i in inside if i < len(shape) - 1]
    return max(not_last or inside, key=lambda i: shape[i])
