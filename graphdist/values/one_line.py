"""Parts of a one-line `repr`: the devices of arrays, and small values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: users' values

import jax
import numpy as np

__all__ = ["LARGEST", "devices_of", "values_of"]

LARGEST = 16
"""The largest number of elements of an array that is shown."""


def devices_of(arrays: Sequence[jax.Array]) -> str:
    """Return the names of the devices that hold arrays, in the order of their ids.

    >>> devices_of([jax.numpy.ones(3)])
    'cpu:0'
    """
    devices = {device for array in arrays for device in array.devices()}
    ordered = sorted(devices, key=lambda device: device.id)
    return ", ".join(f"{device.platform}:{device.id}" for device in ordered)


def values_of(values: Sequence[Any]) -> str:
    """Return the end of a `repr`: all of these values, or nothing if any of them is large.

    >>> values_of([jax.numpy.ones(2), jax.numpy.zeros(2)]), values_of([jax.numpy.ones(100)])
    (': [1. 1.] | [0. 0.]', '')
    """
    arrays = [value for value in values if isinstance(value, jax.Array | np.ndarray)]
    if any(array.size > LARGEST for array in arrays):
        return ""
    texts = [str(value) if isinstance(value, jax.Array) else repr(value) for value in values]
    return f": {' '.join(' | '.join(texts).split())}"
