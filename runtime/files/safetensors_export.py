"""Writes safetensors: one file, or several with an index, as Hugging Face does.

All workers write together. The first worker makes each file in the folder `.<name>.partial`, with
the header and the full size of the file. Each worker writes its shards in their places. At the end
the first worker moves the files out of that folder, and then writes the index, which makes a model
in several files complete.

`safetensors_bucket_export` writes the files of a bucket.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias  # Any: numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_files import CheckpointError, sync
from graphdist.runtime.files.foreign_arrays import Array, sizes_of
from graphdist.runtime.files.foreign_folders import ForeignFolder
from graphdist.runtime.files.locked_export import LockedExport
from graphdist.runtime.files.orbax_folders import METADATA
from graphdist.runtime.files.safetensors_files import (
    DTYPES,
    INDEX_SUFFIX,
    LENGTH,
    SUFFIX,
    bytes_of,
    consecutive_from,
    starts_of,
)
from graphdist.runtime.spans import Part

ArrayTypes: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
"""The dtype and shape of arrays by name."""
_INDEX = f"model{INDEX_SUFFIX}"
_ONE_OF_SEVERAL = re.compile(r"model-\d{5}-of-\d{5}\.safetensors", re.ASCII)
_MOST_BYTES = 5 * 10**9
"""The default size of a file."""


@dataclass(frozen=True)
class ExportedFile:
    """A file that is being written."""

    name: str
    header: bytes
    starts: dict[str, int]
    """The first byte of each array."""
    size: int


class SafetensorsExport(LockedExport):
    """The files of an export to a folder: one of a given name, or those of a model."""

    def __init__(
        self, folder: ForeignFolder, name: str, arrays: ArrayTypes, max_shard_bytes: int | None
    ) -> None:
        """Take the arrays that will be written: to one file, or to a model if `name` is ""."""
        super().__init__(folder, name or f"model{SUFFIX}")
        self._arrays, self._is_model = arrays, not name
        most = max_shard_bytes or _MOST_BYTES
        groups = _groups(arrays, most) if self._is_model else [list(arrays)]
        self._files = [
            _file(name or _name_of(number, len(groups)), {each: arrays[each] for each in group})
            for number, group in enumerate(groups, 1)
        ]
        self._file_of = {each: file for file in self._files for each in file.starts}
        self._partial = f".{self._name}.partial"
        self._touched = set[str]()

    def _refuse_existing(self) -> None:
        if self._is_model and self._folder.has(METADATA):
            raise CheckpointError(
                f"{self._folder.path_of('')} has a save of orbax, and a folder of safetensors "
                f"would have both",
                hint="give another path",
            )
        found = self._folder.names(f"[!.]*{SUFFIX}*") if self._is_model else [self._name]
        was_interrupted = self._folder.within(self._partial).exists()
        self._folder.remove(self._partial)
        for name in found:
            # Of a model without an index, these were complete when the export was interrupted.
            is_of_several = _ONE_OF_SEVERAL.fullmatch(name) and _INDEX not in found
            if was_interrupted and self._is_model and is_of_several:
                self._folder.remove(name)
            elif self._folder.has(name):
                raise self.refused(name)

    def _begin_files(self) -> None:
        self._path("").mkdir()
        for file in self._files:
            with self._path(file.name).open("xb") as opened:
                opened.write(file.header)
                opened.truncate(file.size)

    def _path(self, name: str) -> Path:
        """Return where a file is until all are complete."""
        return Path(self._folder.within(self._partial).path_of(name))

    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array."""
        file, (_, shape) = self._file_of[name], self._arrays[name]
        values = np.ascontiguousarray(values)
        if not values.size:
            return
        outer = consecutive_from(part, shape)
        runs = values.reshape(-1, prod(sizes_of(part)[outer:]))
        with self._path(file.name).open("r+b", buffering=0) as opened:
            for run, position in zip(runs, starts_of(part, shape, outer), strict=True):
                opened.seek(file.starts[name] + position * values.itemsize)
                memory = bytes_of(run)
                while memory:
                    memory = memory[opened.write(memory[: 2**30]) :]
        self._touched.add(file.name)

    def sync(self) -> None:
        """Make durable what this worker has written, once all workers have written their parts."""
        for name in self._touched:
            with self._path(name).open("r+b") as opened:
                os.fsync(opened.fileno())

    def _finish_files(self) -> None:
        """Give the files their names, and write the index."""
        self._name_files()
        if len(self._files) > 1:
            sizes = [prod(shape) * dtype.itemsize for dtype, shape in self._arrays.values()]
            names = {name: self._file_of[name].name for name in sorted(self._arrays)}
            index = {"metadata": {"total_size": sum(sizes)}, "weight_map": names}
            self._folder.write(_INDEX, (json.dumps(index, indent=2) + "\n").encode())
        self._folder.remove(self._partial)

    def _name_files(self) -> None:
        self._touched = {file.name for file in self._files}
        self.sync()
        for file in self._files:
            self._path(file.name).rename(self._folder.path_of(file.name))
        sync(self._path("").parent)

    def _remove_files(self) -> None:
        index = [_INDEX] if len(self._files) > 1 else []
        for name in (self._partial, *(file.name for file in self._files), *index):
            self._folder.remove(name)


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


def _name_of(number: int, count: int) -> str:
    """Return the name of a file of a model."""
    return f"model-{number:05d}-of-{count:05d}{SUFFIX}" if count > 1 else f"model{SUFFIX}"


def _file(name: str, arrays: ArrayTypes) -> ExportedFile:
    header, starts = _header_of(arrays)
    sizes = [prod(shape) * dtype.itemsize for dtype, shape in arrays.values()]
    return ExportedFile(name, header, starts, len(header) + sum(sizes))


def _header_of(arrays: ArrayTypes) -> tuple[bytes, dict[str, int]]:
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
