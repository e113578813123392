"""Reads safetensors: a header of JSON, and behind it the elements of all arrays.

    8 bytes         the length of the header, little-endian
    header          {"w": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..}
    elements        of each array row by row, one array behind the other without a gap

The format is simple, so no package is needed. A part of an array is read by itself, in blocks. The
file is not mapped into memory, which would crash the process if it were cut short meanwhile.

Large models are in several files, which `model.safetensors.index.json` lists beside them, as
Hugging Face does. Nothing in a file is trusted: its size must be that of its header and arrays
before memory is allocated, and names of files in an index are names in its folder. Links are
followed, since the files that Hugging Face downloads are links.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeGuard  # Any: JSON, numpy dtypes

import jax.numpy as jnp
import numpy as np

from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint_files import UnreadableCheckpointError
from graphdist.runtime.files.foreign_arrays import Array, ForeignArray, ForeignArrays, sizes_of
from graphdist.runtime.files.regular_files import open_regular
from graphdist.runtime.spans import Part

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_MOST_HEADER = 100_000_000
"""The format's own limit."""
_MOST_INDEX = 2**28
LENGTH = 8
_BLOCK = 2**24
"""How many bytes are read at once where a part is scattered over the file."""
_LARGE_RUN = 2**12
"""From this size on, consecutive bytes of a part are read by themselves."""

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


class ArrayInFile(ForeignArray):
    """An array whose elements are in a file from the byte `start` on."""

    def __init__(
        self, file: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], start: int
    ) -> None:
        """Take the array's place; nothing is read."""
        self.file, self.name, self.start = file, name, start
        self.dtype, self.shape = dtype, shape

    def read(self, part: Part) -> Array:
        """Return a part; raises `UnreadableCheckpointError` if the file ends before it."""
        values = np.empty(sizes_of(part), self.dtype)
        if values.size:
            try:
                with io.FileIO(open_regular(self.file, follows_links=True)) as file:
                    self._read_into(file, part, values)
            except (OSError, ValueError) as error:
                raise UnreadableCheckpointError(
                    f"array {self.name!r} of {self.file} cannot be read: {error}"
                ) from error
        return values

    def _read_into(self, file: io.FileIO, part: Part, values: Array) -> None:
        """Read the runs of consecutive elements, or blocks of rows where the runs are short."""
        size = self.dtype.itemsize
        outer = consecutive_from(part, self.shape)
        run = prod(sizes_of(part)[outer:]) * size
        row = prod(self.shape[outer:]) * size
        if run >= _LARGE_RUN or not outer:
            targets = values.reshape(-1, run // size)
            for target, start in zip(targets, starts_of(part, self.shape, outer), strict=True):
                _fill(file, self.start + start * size, target)
            return
        last = outer - 1  # blocks of rows of the last dimension before the runs
        step = max(1, _BLOCK // row)
        rows, ends = part[last], self.shape[outer:]
        targets = values.reshape(-1, rows.stop - rows.start, *sizes_of(part)[outer:])
        inner = part[outer:]
        rows_in_full = (*part[:outer], *(slice(0, end) for end in ends))
        starts = starts_of(rows_in_full, self.shape, last)
        for target, start in zip(targets, starts, strict=True):
            for first in range(0, len(target), step):
                number = min(step, len(target) - first)
                block = np.empty((number, *ends), self.dtype)
                _fill(file, self.start + start * size + first * row, block)
                target[first : first + number] = block[(slice(None), *inner)]


def consecutive_from(part: Part, shape: tuple[int, ...]) -> int:
    """Return the first dimension such that a part's elements in it and below are consecutive.

    >>> consecutive_from((slice(0, 2), slice(1, 3), slice(0, 4)), (5, 6, 4))
    1
    """
    dimension = len(shape)
    while dimension and sizes_of(part)[dimension:] == tuple(shape[dimension:]):
        dimension -= 1
    return dimension


def starts_of(part: Part, shape: tuple[int, ...], outer: int) -> Iterator[int]:
    """Yield the position in the array of each run of a part, for each index of `outer` dimensions.

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


def _fill(file: io.FileIO, position: int, target: Array) -> None:
    """Read a contiguous array from a position of a file; raises `ValueError` at its end."""
    memory = target.reshape(-1).view(np.uint8).data
    file.seek(position)
    while memory:
        count = file.readinto(memory[: 2**30])
        if not count:
            raise ValueError("it was cut short while it was read")
        memory = memory[count:]


def open_safetensors(path: Path, called: str) -> ForeignArrays:
    """Return the arrays of a file, or of the files of an index or in a folder.

    Raises `UnreadableCheckpointError` for a damaged file, and for files that contradict each other.
    """
    if path.is_dir():
        indices = sorted(path.glob(f"*{INDEX_SUFFIX}"))
        if len(indices) > 1:
            raise _unreadable(called, f"it has several indices: {_names(indices)}", "give one")
        if indices:
            return open_safetensors(indices[0], called)
        return ForeignArrays(called, _joined(called, sorted(path.glob(f"*{SUFFIX}"))))
    if path.name.endswith(INDEX_SUFFIX):
        return ForeignArrays(called, _of_index(path, called))
    return ForeignArrays(called, read_header(path))


def _of_index(path: Path, called: str) -> dict[str, ForeignArray]:
    """Return the arrays that an index lists."""
    index = _json(_content(path, _MOST_INDEX), path)
    names = index.get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(each, str) for each in names.values()):
        raise _unreadable(str(path), 'it has no "weight_map" of names of files')
    for file in sorted(set(names.values())):
        if Path(file).name != file or not file.endswith(SUFFIX):
            raise _unreadable(str(path), f"it lists {quoted(file)}, no file in its folder")
    headers = {file: read_header(path.with_name(file)) for file in set(names.values())}
    for name, file in names.items():
        if name not in headers[file]:
            raise _unreadable(
                str(path), f"it says that {quoted(name)} is in {file}, which does not have it"
            )
    return {name: headers[file][name] for name, file in names.items()}


def _joined(called: str, files: list[Path]) -> dict[str, ForeignArray]:
    """Return the arrays of several files without an index."""
    arrays: dict[str, ForeignArray] = {}
    for file in files:
        header = read_header(file)
        if both := sorted(arrays.keys() & header.keys()):
            raise _unreadable(called, f"two of its files have an array {quoted(both[0])}")
        arrays.update(header)
    return arrays


def read_header(path: Path) -> dict[str, ForeignArray]:
    """Return the arrays of one file; raises `UnreadableCheckpointError` for a damaged one."""
    try:
        with io.FileIO(open_regular(path, follows_links=True)) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(LENGTH) or b"", "little")
            if size < LENGTH or length > min(size - LENGTH, _MOST_HEADER):
                raise _unreadable(
                    str(path),
                    f"its header would have {length:,} bytes, and the file has {size:,}",
                    "it is cut short, or no safetensors file",
                )
            text = file.read(length) or b""
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from error
    header = _json(text, path)
    header.pop("__metadata__", None)
    records = {name: _record(name, header[name], path) for name in header}
    end = 0
    for name, record in sorted(records.items(), key=lambda item: (item[1].start, item[1].stop)):
        if record.start != end:
            raise _unreadable(
                str(path), f"array {quoted(name)} begins at byte {record.start:,}, not at {end:,}"
            )
        end = record.stop
    data = LENGTH + length
    if data + end != size:
        raise _unreadable(
            str(path),
            f"it has {size:,} bytes, its header says {data + end:,}",
            "it is cut short, or was not written to its end" if size < data + end else "",
        )
    return {
        name: ArrayInFile(path, name, each.dtype, each.shape, data + each.start)
        for name, each in records.items()
    }


@dataclass(frozen=True, slots=True)
class _Record:
    """What a header says of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def _record(name: str, found: Any, path: Path) -> _Record:
    """Return what a header says of an array, checked."""
    what = f"array {quoted(name)}"
    if not isinstance(found, dict):
        raise _unreadable(str(path), f"{what} has no record in the header")
    code, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    if not isinstance(code, str) or code not in DTYPES:
        raise _unreadable(
            str(path),
            f"{what} has dtype {quoted(code)}",
            f"the dtypes that are read are {', '.join(DTYPES)}",
        )
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise _unreadable(str(path), f"{what} has shape {quoted(shape)} at {quoted(offsets)}")
    dtype, (start, stop) = jnp.dtype(DTYPES[code]), offsets
    if stop - start != prod(shape) * dtype.itemsize:
        raise _unreadable(
            str(path),
            f"{what} is {dtype.name}{shape}, which has {prod(shape) * dtype.itemsize:,} bytes, and "
            f"its header says {stop - start:,}",
        )
    return _Record(dtype, tuple(shape), start, stop)


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)


def _content(path: Path, most: int) -> bytes:
    """Return the content of a file of at most so many bytes."""
    try:
        with io.FileIO(open_regular(path, follows_links=True)) as file:
            if (size := os.fstat(file.fileno()).st_size) > most:
                raise _unreadable(str(path), f"it has {size:,} bytes, and may have {most:,}")
            return file.read()
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from error


def _json(text: bytes, path: Path) -> dict[str, Any]:
    """Return an object of JSON whose keys differ."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a name is in it twice")
        return found

    try:
        found = json.loads(text, object_pairs_hook=checked)
    except (ValueError, RecursionError) as error:
        raise _unreadable(str(path), f"its header is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise _unreadable(str(path), "its header is no object of JSON")
    return found


def _unreadable(called: str, what: str, hint: str = "") -> UnreadableCheckpointError:
    return UnreadableCheckpointError(f"{called} cannot be read: {what}", hint=hint)


def _names(files: list[Path]) -> str:
    return ", ".join(file.name for file in files)
