"""`export`: writes objects in orbax's format and in safetensors, for other programs.

All workers write one file or folder together, under another name, which the first worker changes
when everything is written. Each worker writes the shards that it holds, one after the other. An
array that is not sharded is written by one worker. So a host holds one shard at a time, or one
array that is not sharded. All values are those of one step: a step that runs meanwhile makes the
export fail.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal  # Any: the user's objects

import jax
import numpy as np

from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentError, ArgumentTypeError
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint import CheckpointPath, done_by_all
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import Array
from graphdist.runtime.files.foreign_folders import FolderInBucket, foreign
from graphdist.runtime.files.locked_export import LockedExport
from graphdist.runtime.files.orbax_export import OrbaxExport
from graphdist.runtime.files.safetensors_bucket_export import SafetensorsBucketExport
from graphdist.runtime.files.safetensors_export import SafetensorsExport
from graphdist.runtime.files.safetensors_files import DTYPES, SUFFIX
from graphdist.runtime.processes.workers import Workers, worker_group
from graphdist.runtime.spans import Part, with_bounds
from graphdist.state.variable import Variable
from graphdist.train.entries import Entries, entries_of, outside_scopes, require_outside
from graphdist.train.index import owners
from graphdist.train.leaves import ArrayEntry, CheckpointEntry, StateEntry, ValueEntry
from graphdist.train.loading import objects_of
from graphdist.train.name_maps import (
    Form,
    NameMap,
    form_of,
    parts_in,
    require_known,
    shapes_in,
)
from graphdist.train.user_paths import StrPath, folder_of, prefix_of
from graphdist.whole_numbers import whole_number

_MOST_SHARD_BYTES = 2**63 - 1
_exports = itertools.count()
"""Counts the exports of this process; all workers export in the same order."""


def export(
    path: StrPath,
    objects: Any,
    format: Literal["orbax", "safetensors"] | None = None,
    *,
    names: NameMap = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Write the arrays of objects as orbax or Hugging Face's programs read them.

    `path` is a path of the file system, or `gs://bucket/folder` or `s3://bucket/folder`. `objects`
    is a pytree or a `Checkpoint` of variables, arrays, metrics and numbers. `format` is by default
    "safetensors" for a path that ends in `.safetensors`, and "orbax" for other paths.

    * "orbax": a folder that `StandardCheckpointer` and `PyTreeCheckpointer` restore. Dicts and
      lists are saved as such, other nodes of a pytree as dicts.
    * "safetensors": one file; or, for another path, a folder with `model.safetensors`, or with
      several files and their index if the arrays have more than `max_shard_bytes`: by default 5 GB,
      in a bucket 1 GB. The names of arrays have dots: `dense.kernel`.

    `names` gives other names, as in `load`; in safetensors a list takes an array apart along its
    first dimension, and `Transposed` undoes a transposition. With None an object is left out.

    With several workers every worker calls `export`, and writes its shards to files that all
    workers see. `export` returns when the files are durable. Raises `CheckpointError` if the path
    exists or cannot be written, or while another process exports to the path; `ArgumentTypeError`
    for random keys, text and iterators; `ArgumentError` for a dtype that the format lacks;
    `RuntimeFailure` if a step assigns a variable meanwhile.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/params"
    >>> export(path, {"w": np.ones(3)})
    >>> export(path + ".safetensors", {"layers": np.ones((2, 3))}, names={"layers": ["0.w", "1.w"]})
    """
    with at_the_users_line():
        require_outside("objects are exported")
        what = "the path of an export"
        folder_of(path, what)
        called = os.fspath(path).rstrip("/" + os.sep) or os.fspath(path)
        place = prefix_of(called, what)
        chosen = format or ("safetensors" if called.endswith(SUFFIX) else "orbax")
        if chosen not in ("orbax", "safetensors"):
            raise ArgumentError(f"format is {quoted(format)}, not 'orbax' or 'safetensors'")
        if max_shard_bytes is not None and (chosen == "orbax" or called.endswith(SUFFIX)):
            raise ArgumentError(
                f"max_shard_bytes is {max_shard_bytes}, and {called} is not split into files of "
                f"a size",
                hint='give a folder, and format="safetensors"',
            )
        if max_shard_bytes is not None:
            max_shard_bytes = whole_number(max_shard_bytes, "max_shard_bytes", 1, _MOST_SHARD_BYTES)
        outside_scopes(lambda: _export(place, objects, chosen, names, max_shard_bytes))


@dataclass(frozen=True)
class _Exported:
    """An object, and the form that it has in the files."""

    entry: ArrayEntry | ValueEntry
    form: Form

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype of the object."""
        return jax.numpy.dtype(self.entry.dtype)

    def parts(self, is_mine: bool) -> Iterator[tuple[str, Part, Array]]:
        """Yield the parts that this worker writes, each with the name of an array in the files.

        `is_mine` says whether this worker writes an array that is not sharded.
        """
        found: Iterable[tuple[Part, Array]] = ()
        if self.entry.shards is not None:
            found = self.entry.shards.read()
        elif is_mine or self.entry.is_read_by_all:
            values = self.entry.read()
            found = [(with_bounds((), self.entry.shape), values)] if is_mine else ()
        for part, values in found:
            yield from parts_in(self.form, part, values)


def _export(
    place: CheckpointPath, objects: Any, format: str, names: NameMap, max_shard_bytes: int | None
) -> None:
    """Write the files, all workers together."""
    entries = entries_of(objects_of(objects))
    require_known(names, [*entries.by_name, *entries.aliases])
    exported = list(_exported(entries, names, format))
    if not exported:
        raise ArgumentError(f"there is nothing to export to {place}: the objects have no arrays")
    group, call = worker_group(), f"export/{next(_exports)}"

    def together(step: str, act: Callable[[], None]) -> None:
        doing = f"{place.name} is exported"
        done_by_all(group, f"{call}/{step}", act, doing, str(place.folder))

    export = _opened(place, exported, entries, format, max_shard_bytes, group)
    arrays = [each.entry for each in exported if isinstance(each.entry, ArrayEntry)]
    owner = owners((entry for entry in arrays if entry.shards is None), group.count)
    storages = [each.holder.storage for each in arrays if isinstance(each.holder, Variable)]
    held = [(storage, storage.held) for storage in storages]

    def write() -> None:
        for each in exported:
            for name, part, values in each.parts(owner.get(each.entry.name, 0) == group.index):
                export.write(name, part, values)
        _require_unchanged(held)

    is_first = group.index == 0
    try:
        together("begin", lambda: export.begin() if is_first else None)
        together("write", write)
        together("sync", export.sync)
        together("finish", lambda: export.finish() if is_first else None)
    finally:
        export.close()


def _exported(entries: Entries, names: NameMap, format: str) -> Iterator[_Exported]:
    """Yield what is exported; raises for objects and dtypes that the format does not have."""
    for name, entry in entries.by_name.items():
        default = name.replace("/", ".") if format == "safetensors" else name
        is_given = callable(names) or name in (names or {})
        form = form_of(names, name) if is_given else default
        if form is not None:
            exported = _Exported(_exportable(entry), form)
            _require_in_format(exported, format)
            yield exported


def _exportable(entry: CheckpointEntry) -> ArrayEntry | ValueEntry:
    """Return an entry; raises `ArgumentTypeError` for one that is no array of numbers."""
    if isinstance(entry, StateEntry):
        what = "an iterator"
    elif entry.key_shape:
        what = "a random key"
    elif isinstance(entry, ValueEntry) and isinstance(entry.value, str):
        what = "text"
    else:
        return entry
    raise ArgumentTypeError(
        f"{entry.name!r} is {what}, and arrays and numbers are exported",
        hint="give its integers: jax.random.key_data(key)"
        if what == "a random key"
        else f"leave it out: names={{{entry.name!r}: None}}",
    )


def _require_in_format(exported: _Exported, format: str) -> None:
    """Raise `ArgumentError` if the format cannot store the array as `names` asks.

    The array's dtype may have no name in the format; orbax has no stacked or transposed arrays.
    """
    name = exported.entry.name
    if exported.dtype == object:
        raise ArgumentError(f"{name!r} is a number of more than 64 bits")
    if format == "safetensors" and exported.dtype.name not in DTYPES.values():
        raise ArgumentError(
            f"{name!r} has dtype {exported.dtype.name}, which safetensors does not have",
            hint=f"convert it to one of {', '.join(DTYPES.values())}",
        )
    if format == "orbax" and not isinstance(exported.form, str):
        raise ArgumentError(
            f"names gives {name!r} the form {quoted(exported.form)}, and orbax gets an array as it "
            f"is",
            hint="give a name, with a slash between the keys",
        )


def _opened(
    place: CheckpointPath,
    exported: list[_Exported],
    entries: Entries,
    format: str,
    max_shard_bytes: int | None,
    group: Workers,
) -> LockedExport:
    """Return the files of a format, not yet made; raises `ArgumentError` for two of one name."""
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for each in exported:
        for name, shape in shapes_in(each.form, each.entry.shape):
            if name in arrays:
                raise ArgumentError(
                    f"two arrays of an export have the name {quoted(name)}",
                    hint="give other names",
                )
            arrays[name] = each.dtype, shape
    folder = foreign(place.folder)
    if format == "safetensors":
        is_one = place.name.endswith(SUFFIX)
        within, name = (folder, place.name) if is_one else (folder.within(place.name), "")
        if isinstance(within, FolderInBucket):
            return SafetensorsBucketExport(within, name, arrays, max_shard_bytes, group)
        return SafetensorsExport(within, name, arrays, max_shard_bytes)
    paths, shards, numbers = {}, {}, set()
    for each in exported:
        name, entry = str(each.form), each.entry
        is_renamed = name != entry.name
        keys = tuple((key, False) for key in name.split("/"))
        paths[name] = keys if is_renamed else entries.paths[entry.name]
        if entry.shards is not None:
            shards[name] = entry.shards.shape
        if isinstance(entry, ValueEntry):
            numbers.add(name)
    return OrbaxExport(folder, place.name, arrays, paths, shards, numbers, entries.empty)


def _require_unchanged(held: list[tuple[Any, Any]]) -> None:
    """Raise `CheckpointError` if a variable was assigned: values would be of two steps.

    `held` are the storages of variables, each with the array that it held before.
    """
    for storage, array in held:
        if not storage.holds(array):
            raise CheckpointError(
                f"variable {storage.name!r} was assigned while objects were exported",
                hint="run no step meanwhile",
            )
