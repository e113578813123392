"""Values in one line, for the `repr` of what holds them: where they live, and what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: users' values

import jax
import numpy as np

__all__ = ["LARGEST", "devices_of", "values_of"]

LARGEST = 16
"""The most elements of an array that is shown."""


def devices_of(arrays: Sequence[jax.Array]) -> str:
    """Return the names of the devices that arrays are on, in the order of their numbers.

    >>> devices_of([jax.numpy.ones(3)])
    'cpu:0'
    """
    found = {device for array in arrays for device in array.devices()}
    return ", ".join(f"{one.platform}:{one.id}" for one in sorted(found, key=lambda one: one.id))


def values_of(values: Sequence[Any]) -> str:
    """Return the end of a `repr`: each of these values, or nothing where one is large.

    >>> values_of([jax.numpy.ones(2), jax.numpy.zeros(2)]), values_of([jax.numpy.ones(100)])
    (': [1. 1.] | [0. 0.]', '')
    """
    arrays = [value for value in values if isinstance(value, jax.Array | np.ndarray)]
    if any(array.size > LARGEST for array in arrays):
        return ""
    texts = [str(one) if isinstance(one, jax.Array) else repr(one) for one in values]
    return f": {' '.join(' | '.join(texts).split())}"
