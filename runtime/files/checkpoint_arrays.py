"""Writes and reads the arrays of a checkpoint, each in one file or in several.

An array is a folder of zarr with one chunk:

    part-0/3/.zarray    shape and dtype, as JSON
    part-0/3/0.0        the elements, row by row

Several are written at a time, each synced to the disk. They are not compressed: zstd made random
floats a tenth smaller and writing 6 times slower. No library writes them: tensorstore's threads do
not survive a fork, so that it aborts forked processes.

The checksum of an array is computed from memory while the array is written, so that any later
change of the bytes is found. It is zlib's CRC-32, at some GB/s. The crc32c of zarr's version 3
would be in the file itself, so that it would not detect two files that were exchanged.

A chunk has only the bytes of the elements, which `readinto` reads. The sizes of an array's files
are compared with the index before memory is allocated.

Threads: A pool of `concurrent.futures` accepts no work after the main thread has ended, and newer
Pythons start no threads then. But a checkpoint may be saved or restored then, by a thread that
Python waits for, or by a function that is called at exit. So this module starts threads, and if it
cannot, the calling thread does the work.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any, TypeAlias, TypeVar  # Any: JSON, numpy dtypes

import numpy as np

from graphdist.runtime.files.checkpoint_files import CheckpointError, UnreadableCheckpointError
from graphdist.runtime.files.checkpoint_index import Index, StoredArray, StoredSlice, chunk_name
from graphdist.runtime.files.checkpoint_storage import CheckpointFiles
from graphdist.runtime.spans import Span

Array: TypeAlias = np.ndarray[Any, Any]
_T = TypeVar("_T")
_R = TypeVar("_R")
_WRITES_AT_ONCE = 8
_READS_AT_ONCE = 4
_NOT_NUMPYS = 2
"""The value of `isbuiltin` for dtypes that NumPy does not have, such as bfloat16 of ml_dtypes."""
_METADATA = ".zarray"
_MOST_METADATA = 2**14


def write_arrays(
    files: CheckpointFiles, folder: PurePosixPath, arrays: Mapping[str, Array]
) -> dict[str, str]:
    """Write each array to a new folder of its name, in `folder`; return the checksums by name.

    When the function returns, all arrays are durable. An array without elements has no file.
    """
    written = {name: array for name, array in arrays.items() if array.size}

    def write(name: str) -> str:
        place, array = folder / name, written[name]
        metadata = json.dumps(zarr_metadata(array.dtype, array.shape, array.shape), indent=1)
        files.write(place / _METADATA, metadata.encode())
        return files.write(place / chunk_name(array.shape), _bytes(np.ascontiguousarray(array)))

    checksums = on_threads(write, written, _WRITES_AT_ONCE)
    return dict(zip(written, checksums, strict=True))


def zarr_metadata(
    dtype: np.dtype[Any], shape: Sequence[int], chunk: Sequence[int]
) -> dict[str, Any]:
    """Return the content of `.zarray` for an array in chunks of one shape."""
    return {
        "chunks": list(chunk),
        "compressor": None,
        "dimension_separator": ".",
        "dtype": dtype.name if dtype.isbuiltin == _NOT_NUMPYS else dtype.str,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": list(shape),
        "zarr_format": 2,
    }


def _bytes(array: Array) -> memoryview:
    """Return the memory of a contiguous array as bytes."""
    return array.reshape(-1).view(np.uint8).data


def missing_file(files: CheckpointFiles, index: Index) -> str | None:
    """Return which file of a checkpoint is missing or has another size; None if all are right."""
    expected: list[tuple[StoredSlice, PurePosixPath, int | None]] = []
    for file in index.files:
        expected += [(file, file.chunk, file.num_bytes), (file, file.folder / _METADATA, None)]
    position, what = files.first_wrong((path, size) for _, path, size in expected)
    if not what:
        return None
    file, path, _ = expected[position]
    return f"array {file.name!r}: {path}: {what}"


def read_arrays(
    place: CheckpointFiles, called: str, arrays: Iterable[tuple[StoredArray, Span | None]]
) -> Iterator[Array]:
    """Yield arrays of a checkpoint, or a span of each; `called` is its name in errors.

    Only files that overlap the span are read. Raises `UnreadableCheckpointError` for a damaged
    array.
    """
    read = partial(_read, place, called)
    yield from on_threads(lambda wanted: read(*wanted), arrays, _READS_AT_ONCE)


def _read(place: CheckpointFiles, called: str, array: StoredArray, span: Span | None) -> Array:
    """Return the span of an array, or the full array; see `read_arrays`."""
    files = array.slices
    wanted = span or Span(files[0].span.dimension, 0, files[-1].span.stop)
    for file in files:
        if file.span == wanted:
            return _read_file(place, called, file)
    is_along = files[0].span.dimension == wanted.dimension
    files = tuple(file for file in files if not is_along or file.span.shared_with(wanted))
    stored = [file for file in files if file.num_bytes]
    position, what = place.first_wrong((file.chunk, file.num_bytes) for file in stored)
    if what:
        raise _unreadable(called, stored[position], stored[position].chunk, what)
    values = np.empty(wanted.shape_in(array.stored_shape), array.stored_dtype)
    for file in files:
        target, source = file.span.index, wanted.index
        if shared := is_along and file.span.shared_with(wanted):
            target, source = shared.within(wanted).index, shared.within(file.span).index
        into = values[target]
        if into.shape == file.shape and into.flags.c_contiguous:
            _read_file(place, called, file, into)
        else:
            into[...] = _read_file(place, called, file)[source]
    return values


def _read_file(
    place: CheckpointFiles,
    called: str,
    stored: StoredSlice,
    into: Array | None = None,
) -> Array:
    """Return the array in a file; `into` is an array of its shape to read to, None for a new one.

    Raises `UnreadableCheckpointError` unless the file has the array that was written.
    """
    if not stored.num_bytes:
        return np.zeros(stored.shape, stored.dtype)
    file = stored.folder / _METADATA
    try:
        _check_metadata(place.read_small(file, _MOST_METADATA), stored)
        file = stored.chunk
        _, what = place.first_wrong([(file, stored.num_bytes)])
        if what:
            raise ValueError(what)
        values = np.empty(stored.shape, stored.dtype) if into is None else into
        crc = place.read_into(file, _bytes(values))
        if stored.crc32 is not None and crc != stored.crc32:
            raise ValueError(f"its checksum is {crc}, its index says {stored.crc32}")
        return values
    except CheckpointError:  # the files cannot be reached, which is no damage
        raise
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise _unreadable(called, stored, file, what) from error


def _unreadable(
    called: str, stored: StoredSlice, file: PurePosixPath, what: str
) -> UnreadableCheckpointError:
    return UnreadableCheckpointError(
        f"array {stored.name!r} of checkpoint {called} cannot be read: {file}: {what}"
    )


def _check_metadata(text: bytes, stored: StoredSlice) -> None:
    """Raise `ValueError` unless the text of a metadata file is what was written."""
    actual = json.loads(text)
    expected = zarr_metadata(stored.dtype, stored.shape, stored.shape)
    if not isinstance(actual, dict) or {*actual} != {*expected}:
        raise ValueError("it is not the metadata of an array")
    for name, value in expected.items():
        if actual[name] != value:
            raise ValueError(f"{name!r} is not {json.dumps(value)}, as its index says")


def on_threads(act: Callable[[_T], _R], items: Iterable[_T], most: int) -> Iterator[_R]:
    """Yield a function's result for each item, in order; at most `most` threads call it.

    Raises the function's error. No call is in progress after an error, or after the last result.

    >>> list(on_threads(abs, [3, -2, -1], most=2))
    [3, 2, 1]
    """
    waiting = deque((item, Future[_R]()) for item in items)
    results = deque(future for _, future in waiting)
    threads: list[threading.Thread] = []
    may_begin = threading.Event()  # an interrupt in `start` leaves a thread that is not in the list

    def work() -> None:
        may_begin.wait()
        _work(act, waiting)

    try:
        with suppress(RuntimeError):  # Python is ending, or the system has no more threads
            for _ in range(min(most, len(results))):
                thread = threading.Thread(target=work, name="graphdist-files")
                thread.start()
                threads.append(thread)
        may_begin.set()
        if not threads:
            _work(act, waiting)
        while results:
            yield results.popleft().result()  # popped, so that only the caller holds the result
    finally:
        waiting.clear()
        may_begin.set()
        for thread in threads:
            thread.join()


def _work(act: Callable[[_T], _R], waiting: deque[tuple[_T, Future[_R]]]) -> None:
    while waiting:
        try:
            item, future = waiting.popleft()
        except IndexError:  # another thread took the last
            return
        try:
            future.set_result(act(item))
        except BaseException as error:
            waiting.clear()  # no later result is needed
            future.set_exception(error)
        del item, future  # a result may be large
