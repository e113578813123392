"""The arrays of a checkpoint: a file each, written by tensorstore, read and checked here.

An array is a folder of zarr with one chunk:

    part-0/3/.zarray    shape and dtype, as JSON
    part-0/3/0.0        the elements, row by row

Tensorstore writes several at a time and syncs each to the disk. They are not compressed, since
parameters hardly get smaller: zstd took a tenth off random floats and made writing 6 times slower.

The checksum of an array is computed from memory while the array is written, so that any later
change of the bytes is found. It is zlib's CRC-32, which processors compute at some GB/s beside the
writing. The crc32c of zarr's version 3 would be in the file itself, where a file in the place of
another has a valid one.

Reading is a `readinto`, since such a chunk is only the bytes: no other library sees unchecked data.
The size of the file is compared with the index before memory is allocated.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes, and tensorstore, which is no package here

import jax
import numpy as np

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.files.checkpoint_files import (
    UnreadableCheckpointError,
    open_regular_file,
    read_small,
    size_of,
)
from graphdist.runtime.files.checkpoint_index import Index, StoredArray, StoredSlice
from graphdist.runtime.spans import Span
from graphdist.runtime.targets.topologies import MissingExtraError

_WRITES_AT_ONCE = 8
_READS_AT_ONCE = 4
_BYTES_AT_ONCE = 2**20
"""The size of a block: its checksum is computed while it is in the processor's cache."""
_METADATA = ".zarray"
_MOST_METADATA = 2**14


def require_tensorstore(at: Source = UNKNOWN) -> Any:
    """Return the package that writes arrays; raises `MissingExtraError` without it."""
    try:
        import tensorstore
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "checkpoints need the package tensorstore, which is not installed",
            source=at,
            hint='pip install "graphdist[checkpoint]"',
        ) from error
    except ImportError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C while its C++ part started
            raise error.__cause__ from None
        raise
    return tensorstore


def can_be_written(dtype: np.dtype[Any]) -> bool:
    """Return whether arrays of a dtype can be written."""
    try:
        require_tensorstore().dtype(dtype.name)
    except (TypeError, ValueError):
        return False
    return True


def host_copy(array: jax.Array) -> np.ndarray[Any, Any]:
    """Return a copy in the memory of the host, made without a copy on the devices.

    The shards of the array on this process's devices must make up the full array.
    """
    shards = array.addressable_shards
    first = shards[0].data
    if first.shape == array.shape:
        # On CPU NumPy gets a view of the buffer itself, which the next step may donate.
        is_view = first.platform() == "cpu"
        return np.array(first) if is_view else np.asarray(first)
    full = np.empty(array.shape, array.dtype)
    for shard in shards:
        full[shard.index] = np.asarray(shard.data)
    return full


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, str]:
    """Write arrays to folders of these names, and return the checksum of each.

    All are on the disk when it returns, and no write is in progress when it raises: the arrays must
    not be freed before. An array without elements has no file.
    """
    tensorstore = require_tensorstore()
    context = tensorstore.Context({"file_io_concurrency": {"limit": _WRITES_AT_ONCE}})
    under_way: list[Any] = []
    checksums: dict[str, str] = {}
    try:
        for name, array in arrays.items():
            if not array.size:
                continue
            if len(under_way) == _WRITES_AT_ONCE:
                under_way.pop(0).result()
            spec = _spec(folder / name, array)
            store = tensorstore.open(spec, create=True, context=context).result()
            under_way.append(store.write(array, can_reference_source_data_indefinitely=True))
            checksums[name] = checksum(array)
        while under_way:
            under_way.pop(0).result()
    finally:
        for write in under_way:
            write.exception()  # waits, since tensorstore reads the arrays' own memory
    return checksums


def _spec(folder: Path, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder.resolve()}/"},
        "metadata": {"shape": list(array.shape), "chunks": list(array.shape), "compressor": None},
        "dtype": array.dtype.name,
    }


def checksum(array: np.ndarray[Any, Any]) -> str:
    """Return the CRC-32 of the elements of an array, row by row.

    >>> checksum(np.zeros(3, np.uint8))
    'ff41d912'
    """
    return f"{zlib.crc32(_bytes(np.ascontiguousarray(array))):08x}"


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of an array."""
    return array.reshape(-1).view(np.uint8).data


def missing_file(place: Path, index: Index) -> str | None:
    """Return what is wrong with the files of a checkpoint, by names and sizes, or None."""
    for file in index.files:
        size = size_of(place / file.chunk)
        if size != file.num_bytes:
            return _wrong_size(file, size)
        if size_of(place / file.folder / _METADATA) is None:
            return f"array {file.name!r}: {file.folder / _METADATA} is not there"
    return None


def _wrong_size(file: StoredSlice, size: int | None) -> str:
    if size is None:
        return f"array {file.name!r}: {file.chunk} is not there"
    return f"array {file.name!r}: {file.chunk} has {size:,} bytes, not {file.num_bytes:,}"


def read_arrays(
    place: Path,
    called: str,
    arrays: Iterable[tuple[StoredArray, Span | None]],
    at: Source = UNKNOWN,
) -> Iterator[np.ndarray[Any, Any]]:
    """Yield arrays of a checkpoint, in full or a span of each; `called` is its name in errors.

    Of an array in slices, the files outside of the span are not read. Raises
    `UnreadableCheckpointError` for an array that is damaged.
    """
    with ThreadPoolExecutor(_READS_AT_ONCE, "graphdist-restore") as readers:
        found = [readers.submit(_read, place, called, array, span, at) for array, span in arrays]
        try:
            while found:
                yield found.pop(0).result()  # popped, so that the caller alone holds the array
        finally:
            for reading in found:
                reading.cancel()


def _read(
    place: Path, called: str, array: StoredArray, span: Span | None, at: Source
) -> np.ndarray[Any, Any]:
    files = array.slices
    wanted = span or Span(files[0].span.dimension, 0, files[-1].span.stop)
    for file in files:
        if file.span == wanted:
            return _read_file(place, called, file, at)
    values = np.empty(wanted.shape_in(array.stored_shape), array.stored_dtype)
    for file in files:
        target, source = file.span.index, wanted.index
        if file.span.dimension == wanted.dimension:
            shared = file.span.shared_with(wanted)
            if shared is None:
                continue
            target, source = shared.within(wanted).index, shared.within(file.span).index
        values[target] = _read_file(place, called, file, at)[source]
    return values


def _read_file(place: Path, called: str, stored: StoredSlice, at: Source) -> np.ndarray[Any, Any]:
    if not stored.num_bytes:
        return np.zeros(stored.shape, stored.dtype)
    file = stored.folder / _METADATA
    try:
        _check_metadata(read_small(place / file, _MOST_METADATA), stored)
        file = stored.chunk
        return _read_chunk(place / file, stored)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise UnreadableCheckpointError(
            f"array {stored.name!r} of checkpoint {called} cannot be read: {file}: {said}",
            source=at,
        ) from error


def _read_chunk(file: Path, stored: StoredSlice) -> np.ndarray[Any, Any]:
    """Return the array in a file; raises `ValueError` if it is not the written one."""
    with open_regular_file(file) as found:
        size = os.fstat(found.fileno()).st_size
        if size != stored.num_bytes:
            raise ValueError(f"it has {size:,} bytes, its index says {stored.num_bytes:,}")
        values = np.empty(stored.shape, stored.dtype)
        memory, crc = _bytes(values), 0
        for start in range(0, size, _BYTES_AT_ONCE):
            block = memory[start : start + _BYTES_AT_ONCE]
            if found.readinto(block) != len(block):  # type: ignore[attr-defined]  # unbuffered
                raise ValueError("it was cut short while it was read")
            if stored.crc32 is not None:
                crc = zlib.crc32(block, crc)
    if stored.crc32 is not None and f"{crc:08x}" != stored.crc32:
        raise ValueError(f"its checksum is {crc:08x}, its index says {stored.crc32}")
    return values


def _check_metadata(text: bytes, stored: StoredSlice) -> None:
    """Raise `ValueError` unless the metadata of a file are the written ones."""
    shape, dtype = list(stored.shape), stored.dtype
    expected = {
        "chunks": shape,
        "compressor": None,
        "dimension_separator": ".",
        "dtype": dtype.name if dtype.kind == "V" or dtype.isbuiltin != 1 else dtype.str,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": shape,
        "zarr_format": 2,
    }
    found = json.loads(text)
    if not isinstance(found, dict) or {*found} != {*expected}:
        raise ValueError("it is not the metadata of an array")
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{name!r} is not {json.dumps(value)}, as its index says")
