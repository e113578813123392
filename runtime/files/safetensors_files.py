"""Reads safetensors: a header of JSON, and behind it the elements of all arrays.

    8 bytes         the length of the header, little-endian
    header          {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..}
    elements        of each array row by row, one array behind the other without a gap

The format is simple, so no package is needed. A part of an array is read by itself, in blocks.

Large models are in several files. An index, `model.safetensors.index.json`, lists the files beside
it, as Hugging Face's programs expect. Nothing in a file is trusted: the size of a file must be that
of the header and the arrays before memory is allocated, and an index may only name files in the
folder of the index.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard  # Any: JSON, numpy dtypes

import jax.numpy as jnp
import numpy as np

from graphdist.quoted import quoted
from graphdist.runtime.files.foreign_arrays import Array, ForeignArray, ForeignArrays, sizes_of
from graphdist.runtime.files.foreign_folders import (
    Fill,
    ForeignFolder,
    json_object,
    refusing_damage,
    unreadable,
)
from graphdist.runtime.spans import Part

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_MOST_HEADER = 100_000_000
"""The format's own limit."""
_MOST_INDEX = 2**28
LENGTH = 8
_NUMBERED = re.compile(r"(.*)-\d{5}-of-(\d{5})\.safetensors", re.ASCII | re.DOTALL)

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
"""The dtypes of the format, and NumPy's names of them."""


@dataclass(repr=False)
class ArrayInFile(ForeignArray):
    """An array whose elements are in a file of a folder from the byte `start` on."""

    folder: ForeignFolder
    file: str
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int

    def read(self, part: Part) -> Array:
        """Return a part; raises `UnreadableCheckpointError` if the file ends before the part."""
        values = np.empty(sizes_of(part), self.dtype)
        if values.size:
            called = f"array {self.name!r} of {self.folder.path_of(self.file)}"
            with refusing_damage(called), self.folder.opened(self.file) as fill:
                self._read_into(fill, part, values)
        return values

    def _read_into(self, fill: Fill, part: Part, values: Array) -> None:
        """Read the runs of consecutive elements, or blocks of rows where the runs are short."""
        size = self.dtype.itemsize
        outer = consecutive_from(part, self.shape)
        run = prod(sizes_of(part)[outer:]) * size
        row = prod(self.shape[outer:]) * size
        if run >= self.folder.least_run or not outer:
            targets = values.reshape(-1, run // size)
            for target, start in zip(targets, starts_of(part, self.shape, outer), strict=True):
                fill(self.start + start * size, bytes_of(target))
            return
        last = outer - 1  # blocks of rows of the last dimension before the runs
        step = max(1, self.folder.block // row)
        rows, ends = part[last], self.shape[outer:]
        targets = values.reshape(-1, rows.stop - rows.start, *sizes_of(part)[outer:])
        inner = part[outer:]
        rows_in_full = (*part[:outer], *(slice(0, end) for end in ends))
        starts = starts_of(rows_in_full, self.shape, last)
        for target, start in zip(targets, starts, strict=True):
            for first in range(0, len(target), step):
                number = min(step, len(target) - first)
                block = np.empty((number, *ends), self.dtype)
                fill(self.start + start * size + first * row, bytes_of(block))
                target[first : first + number] = block[(slice(None), *inner)]


def bytes_of(array: Array) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def consecutive_from(part: Part, shape: tuple[int, ...]) -> int:
    """Return the first dimension from which on a part's elements are consecutive in the file.

    >>> consecutive_from((slice(0, 2), slice(1, 3), slice(0, 4)), (5, 6, 4))
    1
    """
    dimension = len(shape)
    while dimension and sizes_of(part)[dimension:] == tuple(shape[dimension:]):
        dimension -= 1
    return dimension


def starts_of(part: Part, shape: tuple[int, ...], outer: int) -> Iterator[int]:
    """Yield where each run of a part begins, for each index of the first `outer` dimensions.

    >>> list(starts_of((slice(0, 2), slice(1, 3)), (2, 4), 1))
    [1, 5]
    """
    strides = [prod(shape[dimension + 1 :]) for dimension in range(len(shape))]
    first = sum(
        each.start * stride for each, stride in zip(part[outer:], strides[outer:], strict=True)
    )
    ranges = [range(each.start, each.stop) for each in part[:outer]]
    for index in itertools.product(*ranges):
        yield first + sum(i * stride for i, stride in zip(index, strides[:outer], strict=True))


def open_safetensors(folder: ForeignFolder, name: str, called: str) -> ForeignArrays:
    """Return the arrays of the file or index `name`; of the whole folder if `name` is "".

    Raises `UnreadableCheckpointError` for a damaged file, and for files that contradict each other.
    """
    if name.endswith(INDEX_SUFFIX):
        return ForeignArrays(called, _of_index(folder, name))
    if name:
        return ForeignArrays(called, read_header(folder, name))
    indices = folder.names(f"*{INDEX_SUFFIX}")
    if len(indices) > 1:
        raise unreadable(called, f"it has several indices: {', '.join(indices)}", "give one")
    if indices:
        return open_safetensors(folder, indices[0], called)
    return ForeignArrays(called, _joined(folder, called))


def _of_index(folder: ForeignFolder, name: str) -> dict[str, ForeignArray]:
    """Return the arrays that an index lists."""
    path = folder.path_of(name)
    with refusing_damage(path):
        index = json_object(folder.content(name, _MOST_INDEX), "it")
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise unreadable(path, 'it has no "weight_map" of names of files')
    for file in sorted(set(names.values())):
        if "/" in file or not file.endswith(SUFFIX):
            raise unreadable(path, f"it lists {quoted(file)}, no file in its folder")
    headers = {file: read_header(folder, file) for file in set(names.values())}
    for array, file in names.items():
        if array not in headers[file]:
            raise unreadable(
                path, f"it says that {quoted(array)} is in {file}, which does not have it"
            )
    return {array: headers[file][array] for array, file in names.items()}


def _joined(folder: ForeignFolder, called: str) -> dict[str, ForeignArray]:
    """Return the arrays of several files without an index."""
    arrays: dict[str, ForeignArray] = {}
    files = folder.names(f"*{SUFFIX}")
    _require_all_numbered(files, called)
    for file in files:
        header = read_header(folder, file)
        if both := sorted(arrays.keys() & header.keys()):
            raise unreadable(called, f"two of its files have an array {quoted(both[0])}")
        arrays.update(header)
    return arrays


def _require_all_numbered(files: list[str], called: str) -> None:
    """Raise `UnreadableCheckpointError` if one of the files `model-00001-of-00003` is missing."""
    for start, count in sorted({each.groups() for each in map(_NUMBERED.fullmatch, files) if each}):
        numbered = {f"{start}-{n:05d}-of-{count}{SUFFIX}" for n in range(1, int(count) + 1)}
        if missing := sorted(numbered.difference(files)):
            raise unreadable(
                called,
                f"it has {len(numbered) - len(missing)} of {len(numbered)} files of {start!r}, and "
                f"no index: {missing[0]} is missing",
                "what wrote them was stopped: export or copy them again",
            )


def read_header(folder: ForeignFolder, file: str) -> dict[str, ForeignArray]:
    """Return the arrays of one file; raises `UnreadableCheckpointError` for a damaged one."""
    path = folder.path_of(file)
    with refusing_damage(path):
        with folder.opened(file) as fill:
            length = int.from_bytes(_bytes_at(fill, 0, LENGTH), "little")
            if length > _MOST_HEADER:
                raise ValueError(
                    f"its header would have {length:,} bytes, of at most {_MOST_HEADER:,}: it is "
                    f"no safetensors file"
                )
            header = json_object(_bytes_at(fill, LENGTH, length), "its header")
        header.pop("__metadata__", None)
        records = {name: _record(name, header[name], path) for name in header}
        end = 0
        for name, record in sorted(records.items(), key=lambda item: (item[1].start, item[1].stop)):
            if record.start != end:
                raise ValueError(
                    f"array {quoted(name)} begins at byte {record.start:,}, not at {end:,}"
                )
            end = record.stop
        folder.require_size(file, LENGTH + length + end)
    return {
        name: ArrayInFile(folder, file, name, each.dtype, each.shape, LENGTH + length + each.start)
        for name, each in records.items()
    }


def _bytes_at(fill: Fill, position: int, length: int) -> bytearray:
    content = bytearray(length)
    fill(position, memoryview(content))
    return content


@dataclass(frozen=True, slots=True)
class _Record:
    """What a header says of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def _record(name: str, found: Any, path: str) -> _Record:
    """Return what a header says of an array, checked."""
    what = f"array {quoted(name)}"
    if not isinstance(found, dict):
        raise unreadable(path, f"{what} has no record in the header")
    code, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    if not isinstance(code, str) or code not in DTYPES:
        raise unreadable(
            path,
            f"{what} has dtype {quoted(code)}",
            f"the dtypes that are read are {', '.join(DTYPES)}",
        )
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise unreadable(path, f"{what} has shape {quoted(shape)} at {quoted(offsets)}")
    dtype, (start, stop) = jnp.dtype(DTYPES[code]), offsets
    if stop - start != prod(shape) * dtype.itemsize:
        raise unreadable(
            path,
            f"{what} is {dtype.name}{shape}, which has {prod(shape) * dtype.itemsize:,} bytes, and "
            f"its header says {stop - start:,}",
        )
    return _Record(dtype, tuple(shape), start, stop)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
