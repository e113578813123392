"""Slots that replica variants share: arrays of one shape for values of unequal shapes.

A program that all replicas run has one shape for each array. Where the variants' values differ in
shape, each value is put in the first corner of an array as large as the largest of them. The rest
is zeros, which add nothing to a sum over padded arrays (a gradient, a reduction along an axis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: arrays, tracers and handles of variables have no common public type

import jax
import numpy as np


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of one replica variant: the corner of `array` that has this shape.

    Variants share arrays, of the size of the largest.
    """

    array: Any
    shape: tuple[int, ...]
    mirrored: Any = None
    """The one value of cross-replica code that the array is on every replica, if it is one."""

    def value(self) -> Any:
        """Return the value without the padding for other variants."""
        return cut(self.array, self.shape) if self.is_padded else self.array

    @property
    def is_padded(self) -> bool:
        """Return whether the array is larger than the value."""
        return not is_ref(self.array) and np.shape(self.array) != self.shape


def is_ref(value: Any) -> bool:
    """Return whether a value is the handle of a variable."""
    return hasattr(getattr(value, "aval", None), "inner_aval")


def padded(value: Any, shape: tuple[int, ...]) -> Any:
    """Return an array as the corner of a larger one, zero elsewhere."""
    if np.shape(value) == shape:
        return value
    missing = [(0, full - part, 0) for full, part in zip(shape, np.shape(value), strict=True)]
    return jax.lax.pad(value, np.zeros((), value.dtype), missing)


def cut(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the corner of an array that has this shape."""
    return value if np.shape(value) == shape else jax.lax.slice(value, (0,) * len(shape), shape)
