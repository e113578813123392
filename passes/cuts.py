"""Along which dimension a value is cut in slices, one for each replica.

The shape alone decides, so that all values of a shape that come together in an update are cut
alike, whichever operations they come from.
"""

from __future__ import annotations

from functools import lru_cache

from graphdist.ir.graph import Operand, Value
from graphdist.ir.types import MIRRORED, Type, own_slice


@lru_cache(maxsize=4096)
def cut_of(shape: tuple[int, ...], num_replicas: int) -> int | None:
    """Return the dimension along which values of a shape are cut; None if none divides.

    The first one if it divides, since slices of rows need no copy; else the longest that does, and
    the last only if no other does: accelerators pad a short last dimension to 128.

    >>> cut_of((8, 3), 4), cut_of((6, 8, 16), 4), cut_of((6, 16), 4), cut_of((6,), 4)
    (0, 1, 1, None)
    """
    divides = [i for i, size in enumerate(shape) if size and size % num_replicas == 0]
    if not divides or divides[0] == 0:
        return 0 if divides else None
    inner = [i for i in divides if i < len(shape) - 1]
    return max(inner or divides, key=lambda i: shape[i])


def is_cuttable(operand: Operand, num_replicas: int) -> bool:
    """Return whether a value is the same on all replicas, and can be cut in slices."""
    type = operand.type
    return type.distribution is MIRRORED and cut_of(type.shape, num_replicas) is not None


def cut_dimension(type: Type, num_replicas: int) -> int:
    """Return the dimension along which a value that can be cut is cut."""
    dimension = cut_of(type.shape, num_replicas)
    assert dimension is not None
    return dimension


def slice_type(type: Type, num_replicas: int) -> Type:
    """Return the type of a replica's slice of a value."""
    return own_slice(type, cut_dimension(type, num_replicas), num_replicas)


def is_shared(operand: Operand, result: Value, num_replicas: int) -> bool:
    """Return whether every slice of a result takes all of an operand.

    It does if the operand is a scalar, or has size 1 along the cut.
    """
    if not operand.type.shape:
        return True
    cut = cut_of(result.type.shape, num_replicas)
    return cut is not None and operand.type.shape[cut] == 1
