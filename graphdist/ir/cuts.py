"""Which dimension of a shape is cut in slices, one for each replica."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=4096)
def dimension_to_cut(
    shape: tuple[int, ...], num_replicas: int, *, is_walked: bool = False
) -> int | None:
    """Return the dimension along which values of a shape are cut; None if none divides.

    The first one if it divides, since slices of rows need no copy; else the longest that does, and
    the last only if no other does: accelerators pad a short last dimension to 128. The first comes
    last if a loop walks along it, since each step of the loop needs a slice of what it takes.

    >>> dimension_to_cut((8, 3), 4), dimension_to_cut((6, 8, 16), 4), dimension_to_cut((6, 16), 4)
    (0, 1, 1)
    >>> dimension_to_cut((6,), 4), dimension_to_cut((8, 12, 4), 4, is_walked=True)
    (None, 1)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    if is_walked and divides[1:] and divides[0] == 0:
        divides = divides[1:]
    if not divides or divides[0] == 0:
        return 0 if divides else None
    inner = [i for i in divides if i < len(shape) - 1]
    return max(inner or divides, key=lambda i: shape[i])
