"""Arrays in files of other programs, of which any part is read by itself; and views of them.

A part is read when the program indexes an array, and is not kept. So a worker reads only its
shards, and a host never holds more than one part. Views are stacked, transposed and reshaped
arrays. A view turns the index of a part into indices of the arrays in the file. To read a part of a
reshaped array a view may read more elements than the part has: all elements along the dimensions
that were split or joined, unless the part is a range along the first of these dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias  # Any: numpy dtypes

import numpy as np

from graphdist.quoted import did_you_mean, quoted
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.spans import Part

Array: TypeAlias = np.ndarray[Any, Any]


class ForeignArray(ABC):
    """An array in a file, or a view of several: `array[index]` reads a part, NumPy reads all."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_number = False
    """Whether it was a number of Python, whose dtype nobody chose."""

    @abstractmethod
    def read(self, part: Part) -> Array:
        """Return a part, in memory of its own."""

    def __getitem__(self, index: Any) -> Array:
        """Return what an index of integers, slices and `...` selects; steps are 1."""
        part, kept = _as_part(index, self.shape)
        return self.read(part).reshape(kept)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the whole array."""
        return np.asarray(self[...], dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[row] for row in range(len(self)))

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"

    __repr__ = __str__


class ForeignArrays(Mapping[str, ForeignArray]):
    """The arrays of a file or folder by name; `path` is the user's name of it."""

    def __init__(self, path: str, arrays: Mapping[str, ForeignArray]) -> None:
        """Take the arrays."""
        self.path, self._arrays = path, arrays

    def __getitem__(self, name: str) -> ForeignArray:
        if name not in self._arrays:
            near = did_you_mean(str(name), self, f"its arrays are {quoted(list(self))}")
            raise KeyError(f"{self.path} has no array {quoted(name)}: {near}")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<{len(self)} arrays in {self.path}>"


def _as_part(index: Any, shape: tuple[int, ...]) -> tuple[Part, tuple[int, ...]]:
    """Return the part that an index reads, and the shape that it is returned in.

    >>> _as_part((..., slice(2, None)), (3, 4))
    ((slice(0, 3, None), slice(2, 4, None)), (3, 2))
    >>> _as_part(-1, (3, 4))
    ((slice(2, 3, None), slice(0, 4, None)), (4,))
    """
    given = list(index) if isinstance(index, tuple) else [index]
    places = [place for place, each in enumerate(given) if each is ...]
    place = places[0] if places else len(given)
    missing = len(shape) - len(given) + len(places[:1])
    given[place : place + 1] = [slice(None)] * max(missing, 0)
    if len(places) > 1 or len(given) != len(shape):
        raise IndexError(f"index {index!r} is not one of an array of shape {list(shape)}")
    part, kept = [], []
    for each, size in zip(given, shape, strict=True):
        if isinstance(each, slice):
            start, stop, step = each.indices(size)
            if step != 1:
                raise IndexError(f"{each} has the step {step}: parts of files have the step 1")
            kept.append(max(stop - start, 0))
        else:
            start = range(size)[each]  # raises for one out of range
            stop = start + 1
        part.append(slice(start, max(start, stop)))
    return tuple(part), tuple(kept)


def sizes_of(part: Part) -> tuple[int, ...]:
    """Return the shape of a part."""
    return tuple(each.stop - each.start for each in part)


@dataclass(repr=False)
class StackedView(ForeignArray):
    """Arrays of one shape and dtype, stacked along a new first dimension."""

    arrays: Sequence[ForeignArray]

    def __post_init__(self) -> None:
        """Raise `CheckpointError` for arrays that differ."""
        first = self.arrays[0]
        for number, each in enumerate(self.arrays):
            if (each.shape, each.dtype) != (first.shape, first.dtype):
                raise CheckpointError(
                    f"arrays of one shape and dtype can be stacked: number 0 is {first}, "
                    f"number {number} is {each}"
                )
        self.dtype, self.shape = first.dtype, (len(self.arrays), *first.shape)

    def read(self, part: Part) -> Array:
        """Return a part."""
        which, *inner = part
        values = np.empty(sizes_of(part), self.dtype)
        for place, number in enumerate(range(which.start, which.stop)):
            values[place] = self.arrays[number].read(tuple(inner))
        return values


@dataclass(repr=False)
class TransposedView(ForeignArray):
    """An array with its dimensions in the order `axes`."""

    array: ForeignArray
    axes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Compute the shape."""
        self.dtype = self.array.dtype
        self.shape = tuple(self.array.shape[axis] for axis in self.axes)

    def read(self, part: Part) -> Array:
        """Return a part, which is not contiguous."""
        inner = dict(zip(self.axes, part, strict=True))
        values = self.array.read(tuple(inner[axis] for axis in range(len(inner))))
        return values.transpose(self.axes)


@dataclass(repr=False)
class ReshapedView(ForeignArray):
    """The elements of an array, row by row, in another shape."""

    array: ForeignArray
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raise `CheckpointError` for a shape of another size."""
        self.dtype = self.array.dtype
        if prod(self.shape) != prod(self.array.shape):
            raise CheckpointError(
                f"{self.array} has {prod(self.array.shape)} elements, and cannot be reshaped to "
                f"{list(self.shape)}, of {prod(self.shape)}"
            )

    def read(self, part: Part) -> Array:
        """Return a part."""
        if 0 in self.shape:
            return np.empty(sizes_of(part), self.dtype)
        outer: list[slice] = []
        read_shape: list[int] = []
        within: list[slice] = []
        for old, new in groups_of_dimensions(self.array.shape, self.shape):
            inside = [part[dimension] for dimension in new] or [slice(0, 1)]
            sizes = [self.shape[dimension] for dimension in new] or [1]
            first, row = inside[0], prod(sizes[1:])
            old_sizes = [self.array.shape[dimension] for dimension in old]
            old_row = prod(old_sizes[1:])
            # The first dimension's range, widened to rows of the array in the file.
            start = first.start * row // old_row if old else 0
            stop = -(-first.stop * row // old_row) if old else 1
            aligned = (start * old_row % row, stop * old_row % row) == (0, 0)
            if not aligned or first.start == first.stop:
                start, stop = 0, old_sizes[0] if old else 1
            outer += [slice(start, stop)] * bool(old)
            outer += [slice(0, size) for size in old_sizes[1:]]
            shift = start * old_row // row
            read_shape += [(stop - start) * old_row // row, *sizes[1:]] if new else []
            within += [slice(first.start - shift, first.stop - shift), *inside[1:]] if new else []
        return self.array.read(tuple(outer)).reshape(read_shape)[tuple(within)]


def groups_of_dimensions(
    old: tuple[int, ...], new: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the smallest groups of dimensions of two shapes that have the same number of elements.

    >>> list(groups_of_dimensions((6, 4), (2, 3, 4)))
    [([0], [0, 1]), ([1], [2])]
    """
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] * (i < len(old)), [j] * (j < len(new))
        i, j = i + len(left), j + len(right)
        while (a := prod(old[k] for k in left)) != (b := prod(new[k] for k in right)):
            if a < b:
                left.append(i)
                i += 1
            else:
                right.append(j)
                j += 1
        yield left, right
