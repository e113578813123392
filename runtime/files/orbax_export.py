"""Writes a folder that orbax restores: each array in a folder of zarr, and the tree as JSON.

    _METADATA           the keys of each leaf, and what kind of value it is
    params.w/.zarray    shape, dtype and the shape of a chunk; keys are joined by dots
    params.w/0.1        a chunk: elements row by row, not compressed

This is the older of orbax's formats, with a folder for each array in place of one database. Orbax
reads both formats, and a folder needs no library to write. A chunk is a shard, or an equal part of
a large shard. So each chunk is written by one worker, and a restore on other devices reads little
more than the shards of these devices. Leaves are arrays of NumPy, which orbax places on the devices
that its `target` names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, TypeVar  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_arrays import on_threads, zarr_metadata
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import Array, sizes_of
from graphdist.runtime.files.foreign_folders import ForeignFolder
from graphdist.runtime.files.locked_export import LockedExport
from graphdist.runtime.files.orbax_folders import METADATA, cells_of, is_name_of_folder
from graphdist.runtime.spans import Part

_T = TypeVar("_T")
_MOST_CHUNK = 2**24
"""How large a chunk may be in bytes: tensorstore takes twice as long for chunks of 64 MiB."""
_SEQUENCE, _DICT = 1, 2
_VALUES = {"np.ndarray", "scalar"}


class OrbaxExport(LockedExport):
    """The folder of an export, which all workers write together."""

    def __init__(
        self,
        parent: ForeignFolder,
        name: str,
        arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]],
        paths: Mapping[str, Sequence[tuple[str, bool]]],
        shards: Mapping[str, tuple[int, ...]],
        numbers: Collection[str] = (),
        empty: Sequence[tuple[Sequence[tuple[str, bool]], Any]] = (),
    ) -> None:
        """Take the arrays that will be written to `parent/name`, and the shapes of their shards.

        `paths` are the keys of each array, `numbers` the names of numbers of Python, `empty` the
        nodes without leaves.
        """
        super().__init__(parent, name)
        self._arrays, self._paths, self._empty, self._numbers = arrays, paths, empty, numbers
        keys: dict[str, str] = {}
        for each, path in paths.items():
            key = _key_of(path)
            if (other := keys.setdefault(key, each)) != each:
                raise CheckpointError(
                    f"arrays {other!r} and {each!r} have one name in orbax's format, {key!r}",
                    hint="give other names",
                )
            if not is_name_of_folder(key):
                raise CheckpointError(f"no folder can have the name of the array {each!r}")
        self._chunks = {
            each: chunk_shape(shape, shards.get(each, shape), dtype.itemsize)
            for each, (dtype, shape) in arrays.items()
        }
        self._files = parent.unfinished(name)

    def _refuse_existing(self) -> None:
        if self._folder.is_taken(self._name):
            raise self.refused(self._name)
        self._folder.abandon(self._name)

    def _begin_files(self) -> None:
        self._folder.begin(self._name)
        self._for_each(self._write_metadata, self._arrays)

    def _write_metadata(self, name: str) -> None:
        dtype, shape = self._arrays[name]
        text = json.dumps(zarr_metadata(dtype, shape, self._chunks[name]), indent=1)
        self._files.write(f"{_key_of(self._paths[name])}/.zarray", text.encode())

    def _for_each(self, write: Callable[[_T], None], items: Iterable[_T]) -> None:
        for _ in on_threads(write, items, self._files.writes_at_once):
            pass

    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array, which consists of chunks."""
        write = partial(self._write_chunk, name, part, values)
        self._for_each(write, cells_of(part, self._chunks[name]))

    def _write_chunk(self, name: str, part: Part, values: Array, cell: Part) -> None:
        """Write the chunk that consists of the elements `cell` of an array."""
        chunk = self._chunks[name]
        inner = tuple(
            slice(each.start - whole.start, each.stop - whole.start)
            for each, whole in zip(cell, part, strict=True)
        )
        number = ".".join(str(each.start // size) for each, size in zip(cell, chunk, strict=True))
        elements = values[inner]
        if sizes_of(cell) != chunk:  # the last chunk along a dimension is filled up
            full = np.zeros(chunk, values.dtype)
            full[tuple(slice(0, size) for size in sizes_of(cell))] = elements
            elements = full
        memory = np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data
        self._files.write(f"{_key_of(self._paths[name])}/{number or '0'}", memory)

    def sync(self) -> None:
        """Do nothing: each file is durable when it is written."""

    def _finish_files(self) -> None:
        """Write the tree, and complete the folder."""
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
        self._files.write(METADATA, json.dumps(metadata).encode())
        self._folder.finish(self._name)

    def _remove_files(self) -> None:
        self._folder.abandon(self._name)

    @staticmethod
    def _keys(path: Sequence[tuple[str, bool]]) -> str:
        return str(tuple(key for key, _ in path))


def _key_of(path: Sequence[tuple[str, bool]]) -> str:
    return ".".join(key for key, _ in path)


def chunk_shape(
    shape: tuple[int, ...], shard: tuple[int, ...], itemsize: int, most: int = _MOST_CHUNK
) -> tuple[int, ...]:
    """Return the shape of a chunk: of a shard, or of equal parts of a shard with `most` bytes.

    Dimensions that are not sharded are halved first, in their order, because the last chunk along
    such a dimension may be filled up. Sharded dimensions are halved while their size is even.

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
