"""Slots that replica variants share: arrays of one shape for values of unequal shapes.

A program that all replicas run has one shape for each array. If the variants' values differ in
shape, each value is padded with zeros to the largest shape. Zeros add nothing to a sum over padded
arrays (a gradient, a reduction along an axis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: arrays, tracers and handles of variables have no common public type

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of one replica variant: `array[:n, :m]` of a shared array, for a `shape` (n, m)."""

    array: Any
    shape: tuple[int, ...]
    mirrored: Any = None
    """The cross-replica value of which each replica has a copy in the array; None if there is none.
    """

    def value(self) -> Any:
        """Return the value without the padding for other variants."""
        return unpadded(self.array, self.shape) if self.is_padded else self.array

    @property
    def is_padded(self) -> bool:
        """Return whether the array is larger than the value."""
        return not is_ref(self.array) and np.shape(self.array) != self.shape


def is_ref(value: Any) -> bool:
    """Return whether a value is the handle of a variable."""
    return hasattr(getattr(value, "aval", None), "inner_aval")


def padded(value: Any, shape: tuple[int, ...]) -> Any:
    """Return an array padded with zeros to a shape."""
    if np.shape(value) == shape:
        return value
    missing = [(0, full - part, 0) for full, part in zip(shape, np.shape(value), strict=True)]
    return jax.lax.pad(value, np.zeros((), value.dtype), missing)


def unpadded(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the part of an array with this shape that starts at index 0 in each dimension."""
    return value if np.shape(value) == shape else jax.lax.slice(value, (0,) * len(shape), shape)
