"""The index of a checkpoint: its contents by name, and the checksums that reveal damage.

    {"format": 4, "sequence": 7, "save_counter": 3, "saved_at": 1767225600.0, "workers": 2,
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

`sequence` orders the checkpoints of a folder by their saving, independent of clocks. `stored`
differs from dtype and shape for random keys, which are stored as integers. If no worker had all
shards of an array, it is in several files: each has the next `size` indices of the dimension
`sliced_along`. `states` has a state per worker. The `crc32` of a file is the checksum of its bytes,
which also detects that two files were exchanged. The last `crc32` is the checksum of all bytes of
the index before it. An integer of more than 64 bits is `{"hex": "-0x1f.."}`: Python refuses long
decimals, whose conversion takes quadratic time. Format 3 has no such integers, format 2 no slices
either, format 1 no checksums either. Names and strings are UTF-8; a lone surrogate, which is no
character, is encoded as its three bytes.

The checksums find errors of disks, networks and programs. They are no signature. So an index is not
trusted: `Index.of` checks every field before it is used, and nothing else reads the JSON.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn  # Any: JSON, numpy dtypes

import jax.numpy as jnp
import numpy as np

from graphdist.ir.source import UNKNOWN, Source
from graphdist.runtime.files.checkpoint_files import (
    CheckpointError,
    UnreadableCheckpointError,
    read_small,
)
from graphdist.runtime.spans import Span

INDEX = "index.json"
FORMAT = 4
MOST_BYTES = 2**28
"""The largest size of an index in bytes, so that a huge file is not read into memory."""
MOST = 2**53
"""The largest integer in an index: every JSON reader reads it exactly."""
_MOST_DIMENSIONS = 64
_SEAL = re.compile(rb',\n "crc32": "([0-9a-f]{8})"\n}\n', re.ASCII)
_CHECKSUM, _FILE = re.compile(r"[0-9a-f]{8}"), re.compile(r"0|[1-9][0-9]{0,8}")
_INTEGER = re.compile(r"-?0x[0-9a-f]+")
_DTYPE, _KEY = re.compile(r"[a-z][a-z0-9_]{0,30}"), re.compile(r"key<[^<>]{0,60}>")


def chunk_name(shape: Sequence[int]) -> str:
    """Return zarr's name of the file with the elements of an array.

    >>> chunk_name((3, 4)), chunk_name(())
    ('0.0', '0')
    """
    return ".".join(["0"] * (len(shape) or 1))


def can_be_stored(dtype: np.dtype[Any]) -> bool:
    """Return whether a file can hold arrays of a dtype: numbers, equal on all machines.

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
    """None in format 1."""

    @property
    def folder(self) -> Path:
        """Return the folder of the file, relative to the checkpoint's."""
        return Path(f"part-{self.part}", self.file)

    @property
    def chunk(self) -> Path:
        """Return the file of its bytes, relative to the checkpoint's folder."""
        return self.folder / chunk_name(self.shape)

    @property
    def num_bytes(self) -> int:
        """Return the size of that file; an array without elements has no file."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StoredArray:
    """An array of a checkpoint and its files, in the order of the indices they hold."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    stored_shape: tuple[int, ...]
    slices: tuple[StoredSlice, ...]


@dataclass(frozen=True)
class Index:
    """The content of an index, every field checked."""

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

    @property
    def files(self) -> Iterator[StoredSlice]:
        """Yield all files."""
        for array in self.arrays.values():
            yield from (file for file in array.slices if file.num_bytes)

    @classmethod
    def of(cls, content: Any) -> Index:
        """Return the index that JSON describes; raises `ValueError` for invalid content."""
        fields = _fields(content, "the index")
        is_sealed = fields.get("format") != 1
        workers = _integer(fields, "workers", 1, 2**20)
        index = cls(
            _integer(fields, "sequence", 0, MOST),
            _integer(fields, "save_counter", 0, MOST),
            _time(fields.get("saved_at")),
            workers,
            {
                name: _array(name, record, workers, is_sealed)
                for name, record in _fields(fields.get("arrays"), "'arrays'").items()
            },
            {
                name: _value(name, value)
                for name, value in _fields(fields.get("values"), "'values'").items()
            },
            _fields(fields.get("states"), "'states'"),
            _fields(fields.get("aliases"), "'aliases'"),
            _text(fields.get("crc32"), _CHECKSUM, "the checksum") if is_sealed else "",
        )
        _check_names(index)
        return index


def stored_value(value: Any) -> Any:
    """Return the JSON of a plain value, as an index has it.

    >>> stored_value(7), stored_value(-(2**64))
    (7, {'hex': '-0x10000000000000000'})
    """
    is_long = type(value) is int and value.bit_length() > 64
    return {"hex": hex(value)} if is_long else value


def as_json(content: Any, indent: int | None = None) -> bytes:
    """Return JSON as bytes, also of strings with lone surrogates."""
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return an index as bytes, with its checksum at the end.

    Raises `CheckpointError` if it is too large to be read.
    """
    text = as_json({name: content[name] for name in content if name != "crc32"}, indent=1)
    body = text.removesuffix(b"\n}")
    if len(body) > MOST_BYTES - 100:
        raise CheckpointError(
            f"the index of a checkpoint has {len(body):,} bytes, and may have {MOST_BYTES:,}",
            hint="give large values as arrays, not as strings or states",
        )
    return body + f',\n "crc32": "{zlib.crc32(body):08x}"\n}}\n'.encode()


def read_index(place: Path, at: Source = UNKNOWN) -> Index:
    """Return the index of a checkpoint.

    Raises `UnreadableCheckpointError` if it is damaged, `CheckpointError` if it is of a format that
    this version does not know.
    """
    try:
        content = _checked_content(read_small(place / INDEX, place, MOST_BYTES))
        known = content.get("format")
        if type(known) is int and 1 <= known <= FORMAT:
            return Index.of(content)
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UnreadableCheckpointError(
            f"the index of checkpoint {place.name} cannot be read: {_reason(error)}", source=at
        ) from error
    raise CheckpointError(
        f"checkpoint {place.name} is of format {short(known)}, this version reads 1 to {FORMAT}",
        source=at,
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
        _refuse("its checksum is another than that of its text")
    content = json.loads(data)
    if not isinstance(content, dict):
        _refuse("it is no JSON object")
    if seal is None and (content.get("format") != 1 or "crc32" in content):
        _refuse("it has no checksum at its end")
    return content


# The checks of the fields.


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)


def short(value: Any) -> str:
    """Return a short text of a value for an error: the value may be large or deeply nested."""
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'array'} of {len(value)}"
    text = "a huge integer" if isinstance(value, int) and abs(value) >= 2**200 else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}.."


def _fields(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(f"{what} is {short(value)}, not a JSON object")
    return value


def _integer(fields: Mapping[str, Any], name: str, least: int, most: int, of: str = "") -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        _refuse(f"{name!r}{of} is {short(value)}, not an integer from {least} to {most}")
    return value


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not -MOST <= value <= MOST:  # clocks may be wrong
        _refuse(f"'saved_at' is {short(value)}, not a time")
    return float(value)


def _text(value: Any, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        _refuse(f"{what} is {short(value)}")
    return value


def _shape(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MOST_DIMENSIONS:
        _refuse(f"{what} is {short(value)}, not a shape")
    for size in value:
        if type(size) is not int or not 0 <= size <= MOST:
            _refuse(f"{what} has the size {short(size)}")
    if math.prod(max(1, size) for size in value) > MOST:  # NumPy counts without the zeros, too
        _refuse(f"{what} has more elements than there are bytes")
    return tuple(value)


def _stored_dtype(value: Any, what: str) -> np.dtype[Any]:
    name = _text(value, _DTYPE, f"the stored dtype{what}")
    try:
        dtype = jnp.dtype(name)
    except (TypeError, ValueError, AttributeError):
        _refuse(f"the stored dtype{what} is {name!r}")
    if dtype.name != name or not can_be_stored(dtype):
        _refuse(f"the stored dtype{what} is {name!r}")
    return dtype


def _array(name: str, value: Any, workers: int, is_sealed: bool) -> StoredArray:
    of = f" of array {short(name)}"
    record = _fields(value, f"the record{of}")
    stored = record.get("stored")
    if not isinstance(stored, list) or len(stored) != 2:
        _refuse(f"'stored'{of} is {short(stored)}, not a dtype and a shape")
    dtype, shape = record.get("dtype"), _shape(record.get("shape"), f"the shape{of}")
    described = StoredArray(
        name,
        dtype if isinstance(dtype, str) else "",
        shape,
        _stored_dtype(stored[0], of),
        _shape(stored[1], f"the stored shape{of}"),
        (),
    )
    if _KEY.fullmatch(described.dtype):
        numbers = described.stored_shape[: len(shape)]
        is_alike = described.stored_dtype == np.uint32 and numbers == shape
    else:
        is_alike = described.dtype == described.stored_dtype.name
        is_alike = is_alike and described.stored_shape == shape
    if not is_alike:
        _refuse(f"'dtype' and 'shape'{of} do not go with what is stored")
    make = _slices if "slices" in record else _one_slice
    return replace(described, slices=tuple(make(record, described, workers, is_sealed)))


def _one_slice(
    record: Mapping[str, Any], array: StoredArray, workers: int, is_sealed: bool
) -> Iterator[StoredSlice]:
    """Yield the file of an array that is in one file."""
    size = array.stored_shape[0] if array.stored_shape else 1
    yield _slice(record, array, Span(0, 0, size), workers, is_sealed)


def _slices(
    record: Mapping[str, Any], array: StoredArray, workers: int, is_sealed: bool
) -> Iterator[StoredSlice]:
    """Yield the files of a sliced array; raises `ValueError` unless they have all its indices."""
    of = f" of array {short(array.name)}"
    along = _integer(record, "sliced_along", 0, len(array.stored_shape) - 1, of)
    slices, start = record["slices"], 0
    if not isinstance(slices, list) or not slices:
        _refuse(f"'slices'{of} is {short(slices)}, not a JSON array of slices")
    for value in slices:
        fields = _fields(value, f"a slice{of}")
        size = _integer(fields, "size", 1, array.stored_shape[along] - start, of)
        yield _slice(fields, array, Span(along, start, start + size), workers, is_sealed)
        start += size
    if start != array.stored_shape[along]:
        _refuse(f"the slices{of} have {start} of {array.stored_shape[along]} indices")


def _slice(
    fields: Mapping[str, Any], array: StoredArray, span: Span, workers: int, is_sealed: bool
) -> StoredSlice:
    of = f" of array {short(array.name)}"
    return StoredSlice(
        array.name,
        _integer(fields, "part", 0, workers - 1, of),
        _text(fields.get("file"), _FILE, f"the file{of}"),
        span,
        array.stored_dtype,
        span.shape_in(array.stored_shape) if array.stored_shape else (),
        _text(fields.get("crc32"), _CHECKSUM, f"the checksum{of}")
        if is_sealed and 0 not in array.shape
        else None,
    )


def _value(name: str, value: Any) -> Any:
    if isinstance(value, dict) and {*value} == {"hex"}:
        return int(_text(value["hex"], _INTEGER, f"value {short(name)}"), 16)
    if not isinstance(value, bool | int | float | str):
        _refuse(f"value {short(name)} is {short(value)}, not a number or a string")
    return value


def _check_names(index: Index) -> None:
    for name, states in index.states.items():
        if not isinstance(states, list) or len(states) != index.workers:
            _refuse(f"state {short(name)} is {short(states)}, not one of each worker")
    for name, other in index.aliases.items():
        if not isinstance(other, str):
            _refuse(f"alias {short(name)} is {short(other)}, not a name")
    kinds: list[Iterable[str]] = [index.arrays, index.values, index.states, index.aliases]
    if len({name for names in kinds for name in names}) < sum(len(list(kind)) for kind in kinds):
        _refuse("a name stands in it twice")
    files = [(file.part, file.file) for file in index.files]
    if len(set(files)) < len(files):
        _refuse("two arrays have one file")
