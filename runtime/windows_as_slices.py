"""Windows of an image along one dimension, as slices of the image.

The first numbers of all windows are a slice with the windows' strides, the second ones another
slice. So what is computed for each window is an operation on whole slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Windows(NamedTuple):
    """The windows along one dimension of an image, which has padding before and behind it."""

    dimension: int
    size: int
    stride: int
    before: int
    behind: int

    def slices(self, image: jax.Array, padding: float) -> list[jax.Array]:
        """Return the first numbers of all windows, the second ones, and so on."""
        padded = _padded(image, self.dimension, self.before, self.behind, padding)
        last = padded.shape[self.dimension] - self.size
        return [
            lax.slice_in_dim(padded, start, last + start + 1, self.stride, self.dimension)
            for start in range(self.size)
        ]

    def image(self, slices: Sequence[jax.Array], size: int) -> jax.Array:
        """Return the image of this size that is the sum of the slices, each in its places.

        The image is woven of columns, as many as the stride has: the slices of the first numbers,
        and of those that are a stride behind them, or two, are in the first column.
        """
        dimension, stride = self.dimension, self.stride
        number = slices[0].shape[dimension]
        rows = number + (self.size - 1) // stride
        columns: list[jax.Array | None] = [None] * stride
        for start, numbers in enumerate(slices):
            row, column = divmod(start, stride)
            moved = _padded(numbers, dimension, row, rows - number - row, 0)
            before = columns[column]
            columns[column] = moved if before is None else before + moved
        shape = [*slices[0].shape]
        shape[dimension] = rows
        zeros = jnp.zeros(shape, slices[0].dtype)
        separate = [
            lax.expand_dims(zeros if column is None else column, (dimension + 1,))
            for column in columns
        ]
        shape[dimension] *= stride
        woven = lax.reshape(lax.concatenate(separate, dimension + 1), shape)
        return _padded(woven, dimension, -self.before, self.before + size - shape[dimension], 0)


def _padded(array: jax.Array, dimension: int, before: int, behind: int, value: float) -> jax.Array:
    """Return an array with more numbers along a dimension, or less if they are negative."""
    edges = [(0, 0, 0)] * array.ndim
    edges[dimension] = (before, behind, 0)
    return lax.pad(array, jnp.asarray(value, array.dtype), edges) if before or behind else array
