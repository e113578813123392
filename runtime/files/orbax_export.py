"""Writes a folder that orbax restores: each array in a folder of zarr, and the tree as JSON.

    _METADATA           the keys of each leaf, and what kind of value it is
    params.w/.zarray    shape, dtype and the shape of a chunk; keys are joined by dots
    params.w/0.1        a chunk: elements row by row, not compressed

This is the older of orbax's formats, with a folder for each array in place of one database. Orbax
reads both, and a folder needs no library to write. A chunk is a shard, or an equal part of one if
that is large, so that each is written by one worker, and whoever restores on other devices reads
little more than it needs. Leaves are arrays of NumPy, which orbax places where its `target` says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_arrays import zarr_metadata
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    erase,
    sync,
    sync_folders,
    write_synced,
)
from graphdist.runtime.files.foreign_arrays import Array, sizes_of
from graphdist.runtime.files.orbax_folders import METADATA, cells_of
from graphdist.runtime.spans import Part

_MOST_CHUNK = 2**24
"""How large a chunk may be in bytes: tensorstore takes twice as long for chunks of 64 MiB."""
_SEQUENCE, _DICT = 1, 2
_VALUES = {"np.ndarray", "scalar"}


class OrbaxExport:
    """The folder of an export."""

    def __init__(
        self,
        place: Path,
        arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        token: str,
        paths: Mapping[str, Sequence[tuple[str, bool]]],
        shards: Mapping[str, tuple[int, ...]],
        numbers: Collection[str] = (),
        empty: Sequence[tuple[Sequence[tuple[str, bool]], Any]] = (),
    ) -> None:
        """Take the arrays that will be written, with their keys and the shapes of their shards.

        `token` is for a name that no other export has. `numbers` are names of numbers of Python,
        `empty` are nodes without leaves.
        """
        self._numbers = numbers
        self._place, self._arrays, self._paths, self._empty = place, arrays, paths, empty
        keys: dict[str, str] = {}
        for name, path in paths.items():
            key = _key_of(path)
            if (other := keys.setdefault(key, name)) != name:
                raise CheckpointError(
                    f"arrays {other!r} and {name!r} have one name in orbax's format, {key!r}",
                    hint="give other names",
                )
        self._partial = place.with_name(f"{place.name}.orbax-checkpoint-tmp-{token}")
        self._chunks = {
            name: chunk_shape(shape, shards.get(name, shape), dtype.itemsize)
            for name, (dtype, shape) in arrays.items()
        }

    def _folder(self, name: str) -> Path:
        return self._partial / _key_of(self._paths[name])

    def begin(self) -> None:
        """Make the folder under another name; raises `CheckpointError` if there is one already."""
        if os.path.lexists(self._place):
            raise CheckpointError(
                f"{self._place} exists already, and is not replaced",
                hint="remove it, or give another path",
            )
        self._partial.mkdir(parents=True)
        for name, (dtype, shape) in self._arrays.items():
            folder = self._folder(name)
            if folder == self._partial or ".." in folder.parts:
                raise CheckpointError(f"no folder can have the name of the array {name!r}")
            folder.mkdir(parents=True)
            text = json.dumps(zarr_metadata(dtype, shape, self._chunks[name]), indent=1)
            write_synced(folder / ".zarray", text.encode())

    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array, which consists of chunks."""
        chunk = self._chunks[name]
        for cell in cells_of(part, chunk):
            inner = tuple(
                slice(each.start - whole.start, each.stop - whole.start)
                for each, whole in zip(cell, part, strict=True)
            )
            number = ".".join(
                str(each.start // size) for each, size in zip(cell, chunk, strict=True)
            )
            elements = values[inner]
            if sizes_of(cell) != chunk:  # the last one along a dimension is filled up
                full = np.zeros(chunk, values.dtype)
                full[tuple(slice(0, size) for size in sizes_of(cell))] = elements
                elements = full
            memory = np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data
            write_synced(self._folder(name) / (number or "0"), memory)

    def sync(self) -> None:
        """Do nothing: each file is written through to the disk."""

    def finish(self) -> None:
        """Write the tree, and give the folder its name."""
        leaves = {
            self._keys(path): _leaf(path, "scalar" if name in self._numbers else "np.ndarray")
            for name, path in self._paths.items()
        }
        leaves |= {self._keys(path): _leaf(path, _kind_of(node)) for path, node in self._empty}
        metadata = {
            "tree_metadata": leaves,
            "use_ocdbt": False,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": None,
        }
        write_synced(self._partial / METADATA, json.dumps(metadata).encode())
        sync_folders(self._partial)
        self._partial.rename(self._place)
        sync(self._place.parent)

    @staticmethod
    def _keys(path: Sequence[tuple[str, bool]]) -> str:
        return str(tuple(key for key, _ in path))

    def abandon(self) -> None:
        """Remove the folder if it has no name yet."""
        erase(self._partial)


def _key_of(path: Sequence[tuple[str, bool]]) -> str:
    return ".".join(key for key, _ in path)


def chunk_shape(
    shape: tuple[int, ...], shard: tuple[int, ...], itemsize: int, most: int = _MOST_CHUNK
) -> tuple[int, ...]:
    """Return the shape of chunks: of a shard, or of equal parts of it of at most `most` bytes.

    Dimensions that are not sharded are halved first, the first ones first, as their last chunk may
    be filled up; sharded ones are divided as far as they are even.

    >>> chunk_shape((8, 6), (8, 3), 4, most=48)
    (4, 3)
    """
    chunk = [max(size, 1) for size in shard]
    while prod(chunk) * itemsize > most:
        free = [d for d, size in enumerate(chunk) if size > 1 and shape[d] == shard[d]]
        even = [d for d, size in enumerate(chunk) if size % 2 == 0 and shape[d] != shard[d]]
        if not free and not even:
            break
        dimension = (free or even)[0]
        chunk[dimension] = -(-chunk[dimension] // 2)
    return tuple(chunk)


def _leaf(path: Sequence[tuple[str, bool]], kind: str) -> dict[str, Any]:
    """Return the record of a leaf in the tree."""
    keys = [{"key": key, "key_type": _SEQUENCE if is_index else _DICT} for key, is_index in path]
    value = {"value_type": kind, "skip_deserialize": kind not in _VALUES}
    return {"key_metadata": keys, "value_metadata": value}


def _kind_of(node: Any) -> str:
    """Return orbax's name of a node without leaves."""
    kinds: dict[type, str] = {dict: "Dict", list: "List", tuple: "Tuple"}
    return kinds.get(type(node), "None")
