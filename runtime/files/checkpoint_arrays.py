"""The arrays of a checkpoint: a file each.

An array is a folder of zarr with one chunk:

    part-0/3/.zarray    shape and dtype, as JSON
    part-0/3/0.0        the elements, row by row

Several are written at a time, each synced to the disk. They are not compressed, since parameters
hardly get smaller: zstd took a tenth off random floats and made writing 6 times slower. No library
writes them: tensorstore, whose threads do not survive a fork, aborts a process that was forked.

The checksum of an array is computed from memory while the array is written, so that any later
change of the bytes is found. It is zlib's CRC-32, which processors compute at some GB/s beside the
writing. The crc32c of zarr's version 3 would be in the file itself, where a file in the place of
another has a valid one.

Reading is a `readinto`, since such a chunk is only the bytes. The sizes of an array's files are
compared with the index before memory is allocated.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.files.checkpoint_files import (
    UnreadableCheckpointError,
    open_regular_file,
    read_into,
    read_small,
    size_of,
    write_synced,
)
from graphdist.runtime.files.checkpoint_index import Index, StoredArray, StoredSlice, chunk_name
from graphdist.runtime.files.checkpoint_threads import on_threads
from graphdist.runtime.spans import Span

_WRITES_AT_ONCE = 8
_READS_AT_ONCE = 4
_NOT_NUMPYS = 2
"""What `isbuiltin` is of the dtypes of ml_dtypes, such as bfloat16."""
_METADATA = ".zarray"
_MOST_METADATA = 2**14


def write_arrays(folder: Path, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, str]:
    """Write arrays to new folders of these names, and return the checksum of each.

    All are on the disk when it returns. An array without elements has no file.
    """
    written = {folder / name: array for name, array in arrays.items() if array.size}
    checksums = on_threads(_write_array, written.items(), _WRITES_AT_ONCE)
    return {place.name: checksum for place, checksum in zip(written, checksums, strict=True)}


def _write_array(written: tuple[Path, np.ndarray[Any, Any]]) -> str:
    place, array = written
    place.mkdir()
    metadata = json.dumps(_metadata(array.shape, array.dtype), indent=1)
    write_synced(place / _METADATA, metadata.encode())
    return write_synced(place / chunk_name(array.shape), _bytes(np.ascontiguousarray(array)))


def _metadata(shape: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the content of `.zarray`."""
    return {
        "chunks": list(shape),
        "compressor": None,
        "dimension_separator": ".",
        "dtype": dtype.name if dtype.isbuiltin == _NOT_NUMPYS else dtype.str,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the memory of an array."""
    return array.reshape(-1).view(np.uint8).data


def missing_file(place: Path, index: Index) -> str | None:
    """Return what is wrong with the files of a checkpoint, by names and sizes, or None."""
    for file in index.files:
        size = size_of(place / file.chunk, place)
        if size != file.num_bytes:
            return _wrong_size(file, size)
        if size_of(place / file.folder / _METADATA, place) is None:
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
    read = partial(_read, place, called, at=at)
    yield from on_threads(lambda wanted: read(*wanted), arrays, _READS_AT_ONCE)


def _read(
    place: Path, called: str, array: StoredArray, span: Span | None, at: Source
) -> np.ndarray[Any, Any]:
    files = array.slices
    wanted = span or Span(files[0].span.dimension, 0, files[-1].span.stop)
    for file in files:
        if file.span == wanted:
            return _read_file(place, called, file, at)
    is_along = files[0].span.dimension == wanted.dimension
    files = tuple(file for file in files if not is_along or file.span.shared_with(wanted))
    for file in files:
        if file.num_bytes and (size := size_of(place / file.chunk, place)) != file.num_bytes:
            found = "it is not there" if size is None else f"it has {size:,} bytes"
            said = f"{found}, its index says {file.num_bytes:,}"
            raise _unreadable(called, file, file.chunk, said, at)
    values = np.empty(wanted.shape_in(array.stored_shape), array.stored_dtype)
    for file in files:
        target, source = file.span.index, wanted.index
        if shared := is_along and file.span.shared_with(wanted):
            target, source = shared.within(wanted).index, shared.within(file.span).index
        values[target] = _read_file(place, called, file, at)[source]
    return values


def _read_file(place: Path, called: str, stored: StoredSlice, at: Source) -> np.ndarray[Any, Any]:
    if not stored.num_bytes:
        return np.zeros(stored.shape, stored.dtype)
    file = stored.folder / _METADATA
    try:
        _check_metadata(read_small(place / file, place, _MOST_METADATA), stored)
        file = stored.chunk
        return _read_chunk(place, stored)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise _unreadable(called, stored, file, said, at) from error


def _unreadable(
    called: str, stored: StoredSlice, file: Path, said: str, at: Source
) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"array {stored.name!r} of checkpoint {called} cannot be read: {file}: {said}", source=at
    )


def _read_chunk(place: Path, stored: StoredSlice) -> np.ndarray[Any, Any]:
    """Return the array in a file; raises `ValueError` if it is not the written one."""
    with open_regular_file(place / stored.chunk, place) as found:
        size = os.fstat(found.fileno()).st_size
        if size != stored.num_bytes:
            raise ValueError(f"it has {size:,} bytes, its index says {stored.num_bytes:,}")
        values = np.empty(stored.shape, stored.dtype)
        crc = read_into(found, _bytes(values))
    if stored.crc32 is not None and crc != stored.crc32:
        raise ValueError(f"its checksum is {crc}, its index says {stored.crc32}")
    return values


def _check_metadata(text: bytes, stored: StoredSlice) -> None:
    """Raise `ValueError` unless the metadata of a file are the written ones."""
    expected, found = _metadata(stored.shape, stored.dtype), json.loads(text)
    if not isinstance(found, dict) or {*found} != {*expected}:
        raise ValueError("it is not the metadata of an array")
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{name!r} is not {json.dumps(value)}, as its index says")
