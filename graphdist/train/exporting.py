"""`export`: writes objects in orbax's format and in safetensors, for other programs.

All workers write one file or folder together, under another name, which the first changes when all
is there. Each writes the shards that it holds, one after the other. Of what is mirrored each array
is written by one worker. So a host holds one shard at a time, or one array that is not sharded. The
values of a step are written: a step that runs meanwhile makes the export fail.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast  # Any: the user's objects

import jax
import numpy as np

from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentError, ArgumentTypeError, ContextError
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint import SECONDS_TO_WRITE
from graphdist.runtime.files.checkpoint_files import CheckpointError, not_written
from graphdist.runtime.files.foreign_arrays import Array
from graphdist.runtime.files.orbax_export import OrbaxExport
from graphdist.runtime.files.safetensors_export import SafetensorsExport
from graphdist.runtime.files.safetensors_files import DTYPES, SUFFIX
from graphdist.runtime.processes.workers import Workers, exchange, worker_group
from graphdist.runtime.spans import Part, with_bounds
from graphdist.state.variable import Variable
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.train.entries import Entries, entries_of, outside_scopes
from graphdist.train.index import owners
from graphdist.train.leaves import ArrayEntry, CheckpointEntry, StateEntry
from graphdist.train.loading import objects_of
from graphdist.train.name_maps import (
    Form,
    NameMap,
    form_of,
    parts_in,
    require_known,
    shapes_in,
)
from graphdist.train.user_paths import StrPath, disk_path, prefix_of

_exports = itertools.count()
"""Counts the exports of this process; all workers export in the same order."""
_MAX_SHARD_BYTES = 5 * 10**9


class _Export(Protocol):
    """Files of one format, which all workers write together."""

    def begin(self) -> None:
        """Make the files under other names, on the first worker."""

    def write(self, name: str, part: Part, values: Array) -> None:
        """Write a part of an array."""

    def sync(self) -> None:
        """Write through to the disk what this worker has written."""

    def finish(self) -> None:
        """Give the files their names, on the first worker."""

    def abandon(self) -> None:
        """Remove the files, on the first worker."""


def export(
    path: StrPath,
    objects: Any,
    format: Literal["orbax", "safetensors"] | None = None,
    *,
    names: NameMap = None,
    max_shard_bytes: int | None = None,
) -> None:
    """Write the arrays of objects as orbax or Hugging Face's programs read them.

    `objects` is a pytree or a `Checkpoint` of variables, arrays, metrics and numbers. `format` is
    by default "safetensors" for a path that ends in `.safetensors`, and "orbax" for others.

    * "orbax": a folder that `StandardCheckpointer` and `PyTreeCheckpointer` restore. Dicts and
      lists are saved as such, other nodes of a pytree as dicts.
    * "safetensors": one file; or, for another path, a folder with `model.safetensors`, or with
      several files and their index if the arrays have more than `max_shard_bytes`, by default 5 GB.
      The names of arrays have dots: `dense.kernel`.

    `names` gives other names, as in `load`; in safetensors a list takes an array apart along its
    first dimension, and `Transposed` undoes a transposition. With None an object is left out.

    With several workers each calls it, and writes its shards to files that all of them see. Returns
    when all is on the disk. Raises `CheckpointError` where something exists or cannot be written,
    `ArgumentTypeError` for random keys, text and iterators, `ArgumentError` for a dtype that the
    format lacks, `RuntimeFailure` if a step assigns a variable meanwhile.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/params"
    >>> export(path, {"w": np.ones(3)})
    >>> export(path + ".safetensors", {"layers": np.ones((2, 3))}, names={"layers": ["0.w", "1.w"]})
    """
    with at_the_users_line():
        if current_trace() is not None:
            raise ContextError(
                "objects are exported inside a function, which would do it when it is traced and "
                "never again",
                hint="call it outside, between two calls of the function",
            )
        called = os.fspath(path)
        place = disk_path(path, "the path of an export")
        prefix_of(called.rstrip(os.sep) or called, "the path of an export")
        chosen = format or ("safetensors" if called.endswith(SUFFIX) else "orbax")
        if chosen not in ("orbax", "safetensors"):
            raise ArgumentError(f"format is {quoted(format)}, not 'orbax' or 'safetensors'")
        if max_shard_bytes is not None and (chosen == "orbax" or called.endswith(SUFFIX)):
            raise ArgumentError(
                f"max_shard_bytes is {max_shard_bytes:,}, and {called} is not split into files of "
                f"a size",
                hint='give a folder, and format="safetensors"',
            )
        outside_scopes(lambda: _export(place, objects, chosen, names, max_shard_bytes))


@dataclass(frozen=True)
class _Exported:
    """An object, and what it is in the files."""

    entry: CheckpointEntry
    form: Form

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape."""
        return self.entry.shape if isinstance(self.entry, ArrayEntry) else ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the dtype."""
        if isinstance(self.entry, ArrayEntry):
            return jax.numpy.dtype(self.entry.dtype)
        return np.asarray(cast("Any", self.entry).value).dtype

    def parts(self, is_mine: bool) -> Iterator[tuple[str, Part, Array]]:
        """Yield the parts of arrays in the files that this worker writes."""
        for part, values in self._values(is_mine):
            yield from parts_in(self.form, part, values)

    def _values(self, is_mine: bool) -> Iterator[tuple[Part, Array]]:
        entry, full = self.entry, with_bounds(tuple(slice(None) for _ in self.shape), self.shape)
        if not isinstance(entry, ArrayEntry):
            if is_mine:
                yield full, np.asarray(cast("Any", entry).value)
        elif entry.shards is not None:
            yield from entry.shards.read()
        elif is_mine or entry.is_read_by_all:
            values = entry.read()
            if is_mine:
                yield full, values


def _export(
    place: Path, objects: Any, format: str, names: NameMap, max_shard_bytes: int | None
) -> None:
    """Write the files, all workers together."""
    entries = entries_of(objects_of(objects))
    require_known(names, [*entries.by_name, *entries.aliases])
    exported = list(_exported(entries, names, format))
    if not exported:
        raise ArgumentError(f"there is nothing to export to {place}: the objects have no arrays")
    group, call = worker_group(), f"export/{next(_exports)}"
    together = partial(_together, group, call, place)
    (token, *_) = together("token", lambda: f"{os.getpid()}-{time.time_ns()}")
    export = _opened(place, exported, entries, format, token, max_shard_bytes)
    arrays = [each.entry for each in exported if isinstance(each.entry, ArrayEntry)]
    owner = owners((entry for entry in arrays if entry.shards is None), group.count)
    held = _held_by(arrays)

    def write() -> None:
        for each in exported:
            for name, part, values in each.parts(owner.get(each.entry.name, 0) == group.index):
                export.write(name, part, values)
        export.sync()
        _require_unchanged(held)

    is_first = group.index == 0
    try:
        together("begin", lambda: export.begin() if is_first else None)
        together("write", write)
        together("finish", lambda: export.finish() if is_first else None)
    except BaseException:
        if is_first:
            export.abandon()
        raise


def _exported(entries: Entries, names: NameMap, format: str) -> Iterator[_Exported]:
    """Yield what is exported; raises for objects and dtypes that the format does not have."""
    for name, entry in entries.by_name.items():
        default = name.replace("/", ".") if format == "safetensors" else name
        is_given = callable(names) or name in (names or {})
        form = form_of(names, name) if is_given else default
        if form is None:
            continue
        exported = _Exported(entry, form)
        _require_exportable(exported, format)
        yield exported


def _require_exportable(exported: _Exported, format: str) -> None:
    entry = exported.entry
    is_key = isinstance(entry, ArrayEntry) and bool(entry.key_shape)
    is_text = not isinstance(entry, ArrayEntry | StateEntry) and isinstance(entry.value, str)
    if isinstance(entry, StateEntry) or is_text or is_key:
        what = "a random key" if is_key else "text" if is_text else "an iterator"
        raise ArgumentTypeError(
            f"{entry.name!r} is {what}, and arrays and numbers are exported",
            hint="give its integers: jax.random.key_data(key)"
            if is_key
            else f"leave it out: names={{{entry.name!r}: None}}",
        )
    if exported.dtype == object:
        raise ArgumentError(f"{entry.name!r} is a number of more than 64 bits")
    if format == "safetensors" and exported.dtype.name not in DTYPES.values():
        raise ArgumentError(
            f"{entry.name!r} has dtype {exported.dtype.name}, which safetensors does not have",
            hint=f"convert it to one of {', '.join(DTYPES.values())}",
        )
    if format == "orbax" and not isinstance(exported.form, str):
        raise ArgumentError(
            f"names gives {entry.name!r} the form {quoted(exported.form)}, and orbax gets an "
            f"array as it is",
            hint="give a name, with a slash between the keys",
        )


def _opened(
    place: Path,
    exported: list[_Exported],
    entries: Entries,
    format: str,
    token: str,
    max_shard_bytes: int | None,
) -> _Export:
    """Return the files of a format, not yet made; raises `ArgumentError` for two of one name."""
    arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for each in exported:
        for name, shape in shapes_in(each.form, each.shape):
            if name in arrays:
                raise ArgumentError(
                    f"two arrays of an export have the name {quoted(name)}",
                    hint="give other names",
                )
            arrays[name] = each.dtype, shape
    if format == "safetensors":
        return SafetensorsExport(place, arrays, token, max_shard_bytes or _MAX_SHARD_BYTES)
    shards = {
        cast("str", each.form): each.entry.shards.shape
        for each in exported
        if isinstance(each.entry, ArrayEntry) and each.entry.shards is not None
    }
    paths = {
        cast("str", each.form): entries.paths[each.entry.name]
        if each.form == each.entry.name
        else tuple((key, False) for key in cast("str", each.form).split("/"))
        for each in exported
    }
    numbers = {
        cast("str", each.form) for each in exported if not isinstance(each.entry, ArrayEntry)
    }
    return OrbaxExport(place, arrays, token, paths, shards, numbers, entries.empty)


def _held_by(arrays: list[ArrayEntry]) -> list[tuple[Any, Any]]:
    """Return the storage of variables, and the arrays that they hold."""
    storages = [each.holder.storage for each in arrays if isinstance(each.holder, Variable)]
    return [(storage, storage.held) for storage in storages]


def _require_unchanged(held: list[tuple[Any, Any]]) -> None:
    """Raise `CheckpointError` if a variable was assigned since: values would be of two steps."""
    for storage, array in held:
        if not storage.holds(array):
            raise CheckpointError(
                f"variable {storage.name!r} was assigned while objects were exported",
                hint="run no step meanwhile",
            )


def _together(
    group: Workers, call: str, place: Path, step: str, act: Callable[[], str | None]
) -> list[str]:
    """Return the results of `act` on all workers, or raise on all."""
    failure, result, doing = None, None, f"{place.name} is exported"
    try:
        result = act()
    except Exception as error:
        failure = not_written(error, place.parent) or error
        if failure is not error:
            failure.__cause__ = error
    said = "" if failure is None else f"{type(failure).__name__}: {failure}"
    answers: list[Any] = exchange(group, f"{call}/{step}", [result, said], SECONDS_TO_WRITE, doing)
    if failure is not None:
        raise failure
    for worker, (_, what) in enumerate(answers):
        if what:
            raise CheckpointError(f"worker {worker} of {group.count} failed while {doing}: {what}")
    return [each for each, _ in answers]
