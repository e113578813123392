"""The index of a checkpoint: its contents by name, and the checksums that reveal damage.

    {"format": 5, "sequence": 7, "save_counter": 3, "saved_at": 1767225600.0, "workers": 2,
     "folder": "1f0c9a2e",
     "arrays": {"params/w": {"dtype": "float32", "shape": [784, 128], "part": 0, "file": "0",
                             "stored": ["float32", [784, 128]], "crc32": "8f3a0c11"},
                "slots/w": {"dtype": "float32", "shape": [784, 128],
                            "stored": ["float32", [784, 128]], "sliced_along": 0, "slices": [
                               {"size": 392, "part": 0, "file": "1", "crc32": "5e1b7a90"},
                               {"size": 392, "part": 1, "file": "0", "crc32": "0c44d2f7"}]}},
     "values": {"step": 300},
     "states": {"iterator": [{..}, {..}]},
     "aliases": {"optimizer/params/w": "params/w"},
     "crc32": "5d20b7e4"}

`sequence` orders the checkpoints of a folder by their saving, independent of clocks. `folder` is
the folder of the parts in a checkpoint that was written to a bucket; others have none. `stored`
differs from dtype and shape for random keys, which are stored as integers. If no worker had all
shards of an array, it is in several files: each has the next `size` indices of the dimension
`sliced_along`. `states` has a state per worker. The `crc32` of a file is the checksum of its bytes,
which also detects that two files were exchanged. The last `crc32` is the checksum of all bytes of
the index before it. An integer of more than 64 bits is `{"hex": "-0x1f.."}`: Python refuses long
decimals, whose conversion takes quadratic time. Format 4 has no folder, format 3 has no such
integers either, format 2 no slices either, format 1 no checksums either. Names and strings are
UTF-8; a lone surrogate, which is no character, is encoded as its three bytes.

The checksums find errors of disks, networks and programs. They are no signature. So an index is not
trusted: `Index.of` checks every field before it is used, and nothing else reads the JSON.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any  # Any: JSON, numpy dtypes

import jax.numpy as jnp
import numpy as np

from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    UnreadableCheckpointError,
)
from graphdist.runtime.files.checkpoint_storage import CheckpointFiles
from graphdist.runtime.processes.json_schema import (
    Wanted,
    each_value,
    integer,
    mismatch,
    shape_within,
    text_like,
    wrong,
)
from graphdist.runtime.spans import Span

INDEX = "index.json"
FORMAT = 5
"""The format of an index with a folder of parts; an index without one has format 4."""
MOST_BYTES = 2**28
"""The largest size of an index in bytes, so that a huge file is not read into memory."""
MOST = 2**53
"""The largest integer in an index, which every JSON reader reads exactly."""
_MOST_WORKERS = 2**20
_SEAL = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n}\n', re.ASCII)
_DTYPE, _KEY = re.compile(r"[a-z][a-z0-9_]{0,30}"), re.compile(r"key<[^<>]{0,60}>")


def chunk_name(shape: Sequence[int]) -> str:
    """Return zarr's name of the file with the elements of an array.

    >>> chunk_name((3, 4)), chunk_name(())
    ('0.0', '0')
    """
    return ".".join(["0"] * (len(shape) or 1))


def can_be_stored(dtype: np.dtype[Any]) -> bool:
    """Return whether a file can hold arrays of a dtype: numbers that are equal on all machines.

    >>> can_be_stored(np.dtype("int64")), can_be_stored(np.dtype("object"))
    (True, False)
    """
    is_number = dtype == np.bool_ or jnp.issubdtype(dtype, np.number)
    is_same_anywhere = dtype.type not in (np.longdouble, np.clongdouble)
    return bool(is_number and is_same_anywhere and dtype.kind not in "mMOSU" and dtype.isnative)


@dataclass(frozen=True)
class StoredSlice:
    """A file of an array, and the content that it must have: the full array, or a slice."""

    name: str
    """The array's name."""
    part: int
    file: str
    span: Span
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    crc32: str | None
    """The checksum of the file; None in format 1."""
    parts: str = ""
    """The folder of all parts in the checkpoint; see `Index.folder`."""

    @property
    def folder(self) -> PurePosixPath:
        """Return the folder of the array's files, relative to the checkpoint's."""
        return PurePosixPath(self.parts, f"part-{self.part}", self.file)

    @property
    def chunk(self) -> PurePosixPath:
        """Return the path of the file, relative to the checkpoint's folder."""
        return self.folder / chunk_name(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size of the file; an array without elements has no file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StoredArray:
    """An array of a checkpoint, and its files in the order of their indices."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    stored_shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]


@dataclass(frozen=True)
class Index:
    """The content of an index, of which every field was checked."""

    sequence: int
    save_counter: int
    saved_at: float
    workers: int
    arrays: dict[str, StoredArray]
    values: dict[str, Any]
    states: dict[str, list[Any]]
    aliases: dict[str, str]
    seal: str
    """The checksum of the index, which distinguishes it from other saves; "" in format 1."""
    folder: str = ""
    """The folder of all parts in the checkpoint; "" for the checkpoint's own."""

    @property
    def files(self) -> Iterator[StoredSlice]:
        """Yield the files of all arrays."""
        for array in self.arrays.values():
            yield from (file for file in array.slices if file.num_bytes)

    @classmethod
    def of(cls, content: Any) -> Index:
        """Return the index that JSON describes; raises `ValueError` for invalid content."""
        of_folder = {"folder": text_like("[0-9a-f]{8}")} if "folder" in content else {}
        if problem := mismatch(content, {**_INDEX, **of_folder}):
            raise ValueError(problem)
        folder = content.get("folder", "")
        index = cls(
            content["sequence"],
            content["save_counter"],
            float(content["saved_at"]),
            content["workers"],
            {name: _array(name, record, folder) for name, record in content["arrays"].items()},
            {name: _from_hex(value) for name, value in content["values"].items()},
            content["states"],
            content["aliases"],
            content.get("crc32", ""),
            folder,
        )
        _require_consistent(index)
        return index


def stored_value(value: Any) -> Any:
    """Return a plain value as an index has it in JSON.

    >>> stored_value(7), stored_value(-(2**64))
    (7, {'hex': '-0x10000000000000000'})
    """
    is_long = type(value) is int and value.bit_length() > 64
    return {"hex": hex(value)} if is_long else value


def as_json(content: Any, indent: int | None = None) -> bytes:
    """Return JSON as bytes, also for strings with lone surrogates."""
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return an index as bytes, with its checksum at the end.

    Raises `CheckpointError` if the index is too large to be read.
    """
    text = as_json({name: content[name] for name in content if name != "crc32"}, indent=1)
    body = text.removesuffix(b"\n}")
    if len(body) > MOST_BYTES - 100:
        raise CheckpointError(
            f"the index of a checkpoint has {len(body):,} bytes, and may have {MOST_BYTES:,}",
            hint="give large values as arrays, not as strings or states",
        )
    return body + f',\n "crc32": "{zlib.crc32(body):08x}"\n}}\n'.encode()


def read_index(place: CheckpointFiles) -> Index:
    """Return the index of a checkpoint.

    Raises `UnreadableCheckpointError` for a damaged index, `CheckpointError` for a format that this
    version does not know.
    """
    try:
        content = _checked_content(place.read_small(PurePosixPath(INDEX), MOST_BYTES))
        known = content.get("format")
        if type(known) is int and 1 <= known <= FORMAT:
            return Index.of(content)
    except CheckpointError:  # the index cannot be reached, which is no damage
        raise
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableCheckpointError(
            f"the index of checkpoint {place.name} cannot be read: {_reason(error)}"
        ) from error
    raise CheckpointError(
        f"checkpoint {place.name} is of format {quoted(known)}, this version reads 1 to {FORMAT}",
        hint="read it with the version of graphdist that wrote it, or a newer one",
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _checked_content(data: bytes) -> dict[str, Any]:
    """Return the JSON of an index; raises `ValueError` if its checksum is missing or wrong."""
    seal = _SEAL.fullmatch(data, max(0, len(data) - 25))
    if seal is not None and f"{zlib.crc32(data[: seal.start()]):08x}".encode() != seal[1]:
        raise ValueError("its checksum is another than that of its text")
    content = json.loads(data)
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if seal is None and (content.get("format") != 1 or "crc32" in content):
        raise ValueError("it has no checksum at its end")
    return content


# The checks of the fields.


_shape = shape_within(64, MOST)
_checksum = text_like("[0-9a-f]{8}")


def _stored(actual: Any, at: str) -> str | None:
    if not isinstance(actual, list) or len(actual) != 2:
        return wrong(at, actual, "not a dtype and a shape")
    return _dtype(actual[0], f"{at}[0]") or _shape(actual[1], f"{at}[1]")


def _dtype(actual: Any, at: str) -> str | None:
    try:
        dtype = jnp.dtype(actual if isinstance(actual, str) and _DTYPE.fullmatch(actual) else "")
    except (TypeError, ValueError, AttributeError):
        return wrong(at, actual, "no dtype")
    is_stored = dtype.name == actual and can_be_stored(dtype)
    return None if is_stored else wrong(at, actual, "no dtype of stored arrays")


def _value(actual: Any, at: str) -> str | None:
    if isinstance(actual, dict) and {*actual} == {"hex"}:
        return mismatch(actual, {"hex": text_like(r"-?0x[0-9a-f]+")}, at)
    is_plain = isinstance(actual, bool | int | float | str)
    return None if is_plain else wrong(at, actual, "not a number or a string")


def _time(actual: Any, at: str) -> str | None:
    is_time = type(actual) in (int, float) and -MOST <= actual <= MOST  # clocks may be wrong
    return None if is_time else wrong(at, actual, "not a time")


def _record(actual: Any, at: str) -> str | None:
    """Return what is wrong with the record of an array, or None."""
    is_sliced = isinstance(actual, dict) and "slices" in actual
    return mismatch(actual, _SLICED_ARRAY if is_sliced else {**_ARRAY, **_FILE}, at)


_ARRAY: Wanted = {"dtype": str, "shape": _shape, "stored": _stored}
_FILE: Wanted = {"part": integer(0, _MOST_WORKERS), "file": text_like("0|[1-9][0-9]{0,8}")}
_SLICED_ARRAY: Wanted = {
    **_ARRAY,
    "sliced_along": integer(0, 63),
    "slices": [{"size": integer(1, MOST), **_FILE}],
}
_INDEX: Wanted = {
    "sequence": integer(0, MOST),
    "save_counter": integer(0, MOST),
    "saved_at": _time,
    "workers": integer(1, _MOST_WORKERS),
    "arrays": each_value(_record),
    "values": each_value(_value),
    "states": each_value(list),
    "aliases": each_value(str),
}


def _from_hex(value: Any) -> Any:
    return int(value["hex"], 16) if isinstance(value, dict) else value


def _array(name: str, record: Mapping[str, Any], parts: str) -> StoredArray:
    """Return an array and its files; `parts` is the folder of all parts.

    Raises `ValueError` unless the files have all elements of the array.
    """
    stated = tuple(record["shape"])
    stored_dtype, stored_shape = jnp.dtype(record["stored"][0]), tuple(record["stored"][1])
    is_key = _KEY.fullmatch(record["dtype"]) is not None
    is_alike = (
        stored_dtype == np.uint32 and stored_shape[: len(stated)] == stated
        if is_key
        else (stored_dtype.name, stored_shape) == (record["dtype"], stated)
    )
    if not is_alike:
        raise ValueError(f"array {quoted(name)} does not go with what is stored")
    sizes = stored_shape or (1,)  # a scalar is one slice of one element
    along = record.get("sliced_along", 0)
    files = record.get("slices", [{**record, "size": sizes[0]}])
    ends = list(itertools.accumulate(file["size"] for file in files))
    if along >= len(sizes) or ends[-1:] != [sizes[along]]:
        raise ValueError(f"the slices of array {quoted(name)} do not have all its indices")
    slices = []
    for file, end in zip(files, ends, strict=True):
        span = Span(along, end - file["size"], end)
        shape_there = span.shape_in(stored_shape) if stored_shape else ()
        where = file["part"], file["file"]
        checksum = file.get("crc32")
        slices.append(StoredSlice(name, *where, span, stored_dtype, shape_there, checksum, parts))
    return StoredArray(name, record["dtype"], stated, stored_dtype, stored_shape, tuple(slices))


def _require_consistent(index: Index) -> None:
    """Raise `ValueError` for fields that contradict each other."""
    for name, states in index.states.items():
        if len(states) != index.workers:
            raise ValueError(f"state {quoted(name)} is not one of each worker")
    kinds: list[Collection[str]] = [index.arrays, index.values, index.states, index.aliases]
    if len({name for names in kinds for name in names}) < sum(map(len, kinds)):
        raise ValueError("a name stands in it twice")
    files = list(index.files)
    if len({(file.part, file.file) for file in files}) < len(files):
        raise ValueError("two arrays have one file")
    for file in files:
        if file.part >= index.workers:
            raise ValueError(f"array {quoted(file.name)} is of worker {file.part}")
        problem = _checksum(file.crc32, f"the checksum of array {quoted(file.name)}")
        if index.seal and problem:
            raise ValueError(problem)
