"""Writes safetensors: one file, or several with an index, as Hugging Face does.

All workers write together. The first makes each file under another name, with its header and its
full size; each worker writes its shards in their places; then the first gives the files their
names, and the index last. So a reader finds all files or no index.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias  # Any: numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_files import CheckpointError, erase, sync, write_synced
from graphdist.runtime.files.foreign_arrays import Array, sizes_of
from graphdist.runtime.files.safetensors_files import (
    DTYPES,
    INDEX_SUFFIX,
    LENGTH,
    SUFFIX,
    consecutive_from,
    starts_of,
)
from graphdist.runtime.spans import Part

ArrayTypes: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and shape of arrays by name."""


@dataclass
class _File:
    """A file that is being written."""

    path: Path
    partial: Path
    header: bytes
    starts: dict[str, int]
    """The first byte of each array."""
    size: int


class SafetensorsExport:
    """The files of an export: one, if the path ends in `.safetensors`; else those of a folder."""

    def __init__(self, place: Path, arrays: ArrayTypes, token: str, max_shard_bytes: int) -> None:
        """Take the arrays that will be written; `token` is for names that no other export has."""
        self._place, self._arrays = place, arrays
        self._is_one = place.name.endswith(SUFFIX)
        self._folder = place.parent if self._is_one else place
        groups = [list(arrays)] if self._is_one else _groups(arrays, max_shard_bytes)
        self._files = [
            _file(self._path(number, len(groups)), {name: arrays[name] for name in group}, token)
            for number, group in enumerate(groups, 1)
        ]
        self._file_of = {name: file for file in self._files for name in file.starts}
        self._touched = dict[Path, None]()

    def _path(self, number: int, count: int) -> Path:
        if self._is_one:
            return self._place
        of_several = f"-{number:05d}-of-{count:05d}" if count > 1 else ""
        return self._folder / f"model{of_several}{SUFFIX}"

    def begin(self) -> None:
        """Make the files under other names; raises `CheckpointError` if there are such already."""
        self._folder.mkdir(parents=True, exist_ok=True)
        others = [] if self._is_one else self._folder.glob(f"*{SUFFIX}*")
        for path in (*others, *(file.path for file in self._files)):
            if os.path.lexists(path):
                raise CheckpointError(
                    f"{path} exists already, and is not replaced",
                    hint="remove it, or give another path",
                )
        for file in self._files:
            with file.partial.open("xb") as opened:
                opened.write(file.header)
                opened.truncate(file.size)

    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array."""
        file = self._file_of[name]
        _, shape = self._arrays[name]
        with file.partial.open("r+b", buffering=0) as opened:
            _write_runs(opened, file.starts[name], shape, part, values)
        self._touched[file.partial] = None

    def sync(self) -> None:
        """Write through to the disk what this worker has written."""
        for path in self._touched:
            with path.open("r+b") as opened:
                os.fsync(opened.fileno())

    def finish(self) -> None:
        """Give the files their names."""
        for file in self._files:
            with file.partial.open("r+b") as opened:
                os.fsync(opened.fileno())
            file.partial.rename(file.path)
        if len(self._files) > 1:
            sizes = [prod(shape) * dtype.itemsize for dtype, shape in self._arrays.values()]
            names = {name: self._file_of[name].path.name for name in sorted(self._arrays)}
            index = {"metadata": {"total_size": sum(sizes)}, "weight_map": names}
            text = json.dumps(index, indent=2) + "\n"
            write_synced(self._folder / f"model{INDEX_SUFFIX}", text.encode())
        sync(self._folder)

    def abandon(self) -> None:
        """Remove the files that have no name yet."""
        for file in self._files:
            erase(file.partial)


def _groups(arrays: ArrayTypes, most: int) -> list[list[str]]:
    """Return the arrays of each file: in order, each file with at most so many bytes, or one array.

    >>> byte = np.dtype("uint8")
    >>> _groups({"a": (byte, (3,)), "b": (byte, (3,)), "c": (byte, (9,))}, most=6)
    [['a', 'b'], ['c']]
    """
    groups: list[list[str]] = [[]]
    held = 0
    for name, (dtype, shape) in arrays.items():
        size = prod(shape) * dtype.itemsize
        if groups[-1] and held + size > most:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    return groups


def _file(path: Path, arrays: ArrayTypes, token: str) -> _File:
    header, starts = _header_of(arrays)
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in arrays.values()]
    partial = path.with_name(f".{path.name}.partial-{token}")
    return _File(path, partial, header, starts, len(header) + sum(sizes))


def _header_of(
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
) -> tuple[bytes, dict[str, int]]:
    """Return the header of a file of these arrays, with its length, and the first byte of each."""
    codes = {name: code for code, name in DTYPES.items()}
    # What Hugging Face's programs require of arrays that are named as PyTorch's.
    records: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, end = dict[str, int](), 0
    # The widest first, so that each array is aligned to its elements, as other readers expect.
    for name in sorted(arrays, key=lambda name: -arrays[name][0].itemsize):
        dtype, shape = arrays[name]
        starts[name], size = end, prod(shape) * dtype.itemsize
        offsets = [end, end + size]
        records[name] = {"dtype": codes[dtype.name], "shape": list(shape), "data_offsets": offsets}
        end += size
    text = json.dumps(records, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH)
    data = LENGTH + len(text)
    return len(text).to_bytes(LENGTH, "little") + text, {
        name: data + start for name, start in starts.items()
    }


def _write_runs(
    file: io.FileIO, start: int, shape: tuple[int, ...], part: Part, values: Any
) -> None:
    """Write a part of an array whose elements begin at the byte `start` of a file."""
    values = np.ascontiguousarray(values)
    if not values.size:
        return
    outer = consecutive_from(part, shape)
    runs = values.reshape(-1, prod(sizes_of(part)[outer:])).view(np.uint8)
    for run, position in zip(runs, starts_of(part, shape, outer), strict=True):
        file.seek(start + position * values.itemsize)
        memory = memoryview(run)
        while memory:
            memory = memory[file.write(memory[: 2**30]) :]
