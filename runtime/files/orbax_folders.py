"""Reads folders that orbax saved, of which `tensorstore`, the library beneath it, reads the arrays.

    _METADATA           the tree as JSON: the keys of each leaf, and what kind of value it is
    manifest.ocdbt, d/  the arrays in one database, under their keys joined by dots; or
    params.w/.zarray    each in a folder of its own

Orbax itself reads into arrays of JAX, and several processes need JAX's own service for that. Here a
part is read into the memory of the host, chunk after chunk, so that the host holds no more than a
few chunks beside the part. A chunk is always read in full, so the host holds at least one chunk.

A chunk that is missing is an error, and not zeros. The elements have no checksums.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import cached_property
from math import prod
from pathlib import PurePosixPath
from typing import Any  # Any: JSON, tensorstore, which is not typed

import numpy as np

from graphdist.quoted import quoted
from graphdist.runtime.extras import require_package
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import Array, ForeignArray, ForeignArrays, sizes_of
from graphdist.runtime.files.foreign_folders import (
    ForeignFolder,
    json_object,
    refusing_damage,
    unreadable,
)
from graphdist.runtime.spans import Part

METADATA = "_METADATA"
_MANIFEST = "manifest.ocdbt"
_MOST_METADATA = 2**28
_BYTES_AT_ONCE = 2**26
"""How many bytes of chunks are read at a time."""
_processes: set[int] = set()
"""The process that has read with tensorstore, whose threads do not survive a fork."""
_NO_ANSWER = "ABORTED", "UNAVAILABLE"
"""How errors of tensorstore begin that say that a bucket did not answer."""
_NUMBER = "scalar"
_NO_ARRAYS = {"None", "Dict", "List", "Tuple", "NamedTuple", "string"}


class OrbaxArray(ForeignArray):
    """An array of a folder of orbax; it is opened when its shape is asked for."""

    def __init__(
        self, name: str, called: str, spec: dict[str, Any], context: Any, is_number: bool
    ) -> None:
        """Take where the array is."""
        self.is_number = is_number
        self._name, self._called, self._spec, self._context = name, called, spec, context

    @cached_property
    def _store(self) -> Any:
        _require_same_process()
        import tensorstore

        try:
            opening = tensorstore.open(self._spec, open=True, read=True, context=self._context)
            return opening.result()
        except (ValueError, OSError, KeyError) as error:
            raise self._unreadable(error) from error

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]  # read when it is asked for
        """Return the dtype."""
        return np.dtype(self._store.dtype.numpy_dtype)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]  # read when it is asked for
        """Return the shape."""
        return tuple(self._store.shape)

    def read(self, part: Part) -> Array:
        """Return a part; raises `UnreadableCheckpointError` where data is damaged or missing."""
        _require_same_process()
        values = np.empty(sizes_of(part), self.dtype)
        chunk = tuple(self._store.chunk_layout.read_chunk.shape or self.shape)
        at_once = max(1, _BYTES_AT_ONCE // max(1, prod(chunk) * self.dtype.itemsize))
        cells = cells_of(part, chunk)
        try:
            while batch := list(itertools.islice(cells, at_once)):
                for reading in [self._start_reading(cell, part, values) for cell in batch]:
                    reading.result()
        except (ValueError, OSError, KeyError) as error:
            raise self._unreadable(error) from error
        return values

    def _start_reading(self, cell: Part, part: Part, values: Array) -> Any:
        """Begin to read what is in one chunk to its place in the values of a part."""
        import tensorstore

        place: tuple[Any, ...] = tuple(
            slice(each.start - whole.start, each.stop - whole.start)
            for each, whole in zip(cell, part, strict=True)
        )
        source = self._store[cell]
        if place:
            source = source.translate_to[(0,) * len(place)]
        # Not `source.read()`, whose result would be held beside the values.
        target = tensorstore.array(values[(*place, ...)], copy=False, write=True)
        return target.write(source)

    def _unreadable(self, error: Exception) -> CheckpointError:
        what, called = quoted(str(error), 400), f"array {self._name!r} of {self._called}"
        if str(error).startswith(_NO_ANSWER):  # an outage is no damage
            return CheckpointError(f"{called} cannot be read: {what}")
        return unreadable(called, what)


def cells_of(part: Part, chunk: tuple[int, ...]) -> Iterator[Part]:
    """Yield the parts of a part that are in one chunk each.

    >>> list(cells_of((slice(1, 5),), (4,)))
    [(slice(1, 4, None),), (slice(4, 5, None),)]
    """
    along = []
    for each, size in zip(part, chunk, strict=True):
        size = max(size, 1)
        starts = range(each.start // size * size, each.stop, size)
        cuts = [slice(max(each.start, s), min(each.stop, s + size)) for s in starts]
        along.append([cut for cut in cuts if cut.start < cut.stop])
    yield from itertools.product(*along)


def open_orbax(folder: ForeignFolder, called: str) -> ForeignArrays:
    """Return the arrays of a folder, by their keys joined by slashes.

    Raises `MissingExtraError` without tensorstore, `UnreadableCheckpointError` for a damaged one.
    """
    require_package("tensorstore", f"{called}, a checkpoint of orbax,")
    _require_same_process()
    import tensorstore

    context = tensorstore.Context({"file_io_concurrency": {"limit": 4}})
    with refusing_damage(called):
        metadata = json_object(folder.content(METADATA, _MOST_METADATA), f"its {METADATA}")
    driver = "zarr3" if metadata.get("use_zarr3") else "zarr"
    is_database = folder.has(_MANIFEST)
    arrays: dict[str, ForeignArray] = {}
    for keys, kind in _keys_of_arrays(metadata, called):
        name = "/".join(keys)
        if name in arrays:
            raise unreadable(called, f"two arrays have the name {quoted(name)}")
        spec = {
            "driver": driver,
            "kvstore": _place_of(folder, ".".join(keys), is_database, called),
            "recheck_cached_data": False,
            "recheck_cached_metadata": False,
            "fill_missing_data_reads": not metadata.get(
                "store_array_data_equal_to_fill_value", False
            ),
        }
        arrays[name] = OrbaxArray(name, called, spec, context, kind == _NUMBER)
    return ForeignArrays(called, arrays)


def _require_same_process() -> None:
    """Raise `CheckpointError` in a forked process, which tensorstore would end at its first use."""
    _processes.add(os.getpid())
    if len(_processes) > 1:
        _processes.discard(os.getpid())
        raise CheckpointError(
            "a forked process cannot read orbax's format, since its parent has read it",
            hint='start the process with multiprocessing.get_context("spawn")',
        )


def _place_of(folder: ForeignFolder, key: str, is_database: bool, called: str) -> dict[str, Any]:
    """Return where tensorstore finds the array with a key."""
    if is_database:
        return {"driver": "ocdbt", "base": folder.kvstore(""), "path": f"{key}/"}
    if not is_name_of_folder(key):
        raise unreadable(called, f"{quoted(key)} is no name of a folder in it")
    return folder.kvstore(key)


def is_name_of_folder(key: str) -> bool:
    """Return whether a key leads to a folder inside the folder of the checkpoint."""
    parts = PurePosixPath(key).parts
    return bool(parts) and parts[0] != "/" and ".." not in parts


def _keys_of_arrays(metadata: dict[str, Any], called: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys of each leaf that is an array or a number, and its kind."""
    tree = metadata.get("tree_metadata")
    if not isinstance(tree, dict):
        raise unreadable(called, f"its {METADATA} has no tree")
    for name, leaf in tree.items():
        try:
            keys = tuple(str(each["key"]) for each in leaf["key_metadata"])
            kind = leaf["value_metadata"]["value_type"]
            is_empty = leaf["value_metadata"]["skip_deserialize"]
        except (KeyError, TypeError) as error:
            raise unreadable(called, f"its {METADATA} does not describe {quoted(name)}") from error
        if kind not in _NO_ARRAYS and not is_empty:
            yield keys, kind
