"""Writes safetensors to a bucket, in which an object is written at once, by one worker.

A worker holds one file in memory, and places the shards of that file there. Its other shards become
objects of their own, in the folder `.<name>.partial`. When all workers have written their shards,
each worker puts its share of the files together from these objects, one file after the other. One
worker that exports arrays which are not stacked needs no such objects, because the arrays come in
the order of the files.
"""

from __future__ import annotations

import re
from typing import Any  # Any: numpy dtypes

import numpy as np

from graphdist.runtime.files.foreign_arrays import Array, sizes_of
from graphdist.runtime.files.foreign_folders import ForeignFolder
from graphdist.runtime.files.safetensors_export import ArrayTypes, ExportedFile, SafetensorsExport
from graphdist.runtime.files.safetensors_files import bytes_of
from graphdist.runtime.processes.workers import Workers
from graphdist.runtime.spans import Part

_MOST_BYTES = 10**9
"""The default size of a file, which a worker holds in memory."""


class SafetensorsBucketExport(SafetensorsExport):
    """The objects of an export to a bucket; `SafetensorsExport` explains the methods."""

    def __init__(
        self,
        folder: ForeignFolder,
        name: str,
        arrays: ArrayTypes,
        max_shard_bytes: int | None,
        group: Workers,
    ) -> None:
        """Take the arrays, and the workers that write together."""
        super().__init__(folder, name, arrays, max_shard_bytes or _MOST_BYTES)
        self._mine = self._files[group.index :: group.count]
        """The files that this worker has yet to put together."""
        self._memory = bytearray()
        """The content of the first of these files; empty before its first shard."""
        self._missing = 0
        self._numbers = {each: number for number, each in enumerate(arrays)}

    def _begin_files(self) -> None:
        self._folder.write(f"{self._partial}/begun", b"")

    def write(self, name: str, part: Part, values: Array) -> None:
        """Place a part of an array in the memory of its file, or write an object of it."""
        file = self._file_of[name]
        if self._mine and file is self._mine[0]:
            self._place(file, name, part, values)
            if not self._missing:
                self._put(file)
        elif values.size:
            bounds = "_".join(f"{each.start}-{each.stop}" for each in part)
            key = f"{self._partial}/{file.name}/{self._numbers[name]}/at_{bounds}"
            self._folder.write(key, bytes_of(np.ascontiguousarray(values)))

    def _place(self, file: ExportedFile, name: str, part: Part, values: Array) -> None:
        dtype, shape = self._arrays[name]
        if not self._memory:
            self._memory = bytearray(file.header).ljust(file.size, b"\0")
            self._missing = file.size - len(file.header)
        size = int(np.prod(shape, dtype=np.int64))
        flat: np.ndarray[Any, Any] = np.frombuffer(self._memory, dtype, size, file.starts[name])
        flat.reshape(shape)[part] = values
        self._missing -= values.nbytes

    def _put(self, file: ExportedFile) -> None:
        """Write the object of a file that is complete in memory."""
        self._folder.write(file.name, self._memory or bytearray(file.header))
        self._memory = bytearray()
        self._mine.remove(file)

    def sync(self) -> None:
        """Put this worker's files together, once all workers have written their parts."""
        names = list(self._arrays)
        for file in list(self._mine):
            parts = self._folder.within(f"{self._partial}/{file.name}")
            for key in parts.names("*/at_*"):
                name = names[int(key.partition("/")[0])]
                bounds = re.findall(r"(\d+)-(\d+)", key)
                part = tuple(slice(int(start), int(stop)) for start, stop in bounds)
                values = np.frombuffer(parts.content(key, file.size), self._arrays[name][0])
                self._place(file, name, part, values.reshape(sizes_of(part)))
            self._put(file)

    def _name_files(self) -> None:
        """Do nothing: the objects have their names."""
