"""`load`: restores arrays that other programs wrote, in orbax's format and in safetensors.

All names, shapes and dtypes are compared first, by the metadata of the files alone. Then the arrays
are read one after the other, and the memory of an array is freed before the next is read. Of a
sharded array only the shards of this process's devices are read. So a host holds one shard at a
time, or one array that is not sharded.

With several workers each worker reads its own shards, and the whole of each array that is not
sharded. The workers first compare what they are about to load. After each array every worker tells
the others whether it could read the array, so that no worker waits for one that has failed.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, overload  # Any: the user's objects

import jax
import numpy as np

from graphdist.data.elements import at_the_users_line
from graphdist.errors import ArgumentTypeError
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint import SECONDS_TO_WRITE, done_by_all
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import Array, ForeignArray, ForeignArrays
from graphdist.runtime.processes.workers import exchange, worker_group
from graphdist.runtime.spans import Span, array_of_full, with_bounds
from graphdist.train.entries import (
    Entries,
    Objects,
    entries_of,
    outside_scopes,
    require_outside,
)
from graphdist.train.foreign_files import open_arrays
from graphdist.train.leaves import (
    ArrayEntry,
    CheckpointEntry,
    PutBack,
    Shards,
    StateEntry,
    ValueEntry,
    of_value,
)
from graphdist.train.matched_entries import (
    MatchStatus,
    SavedEntries,
    nothing,
    refuse_disagreements,
)
from graphdist.train.name_maps import (
    Form,
    NameMap,
    form_of,
    names_in,
    require_all_in,
    require_known,
    some_of,
    view_of,
)
from graphdist.train.user_paths import StrPath
from graphdist.train.writing import finish_writing

_log = logging.getLogger("graphdist")
_loads = itertools.count()
"""Counts the loads of this process; all workers load in the same order."""
_Pair: TypeAlias = tuple[CheckpointEntry, Form, ForeignArray]


def objects_of(given: Any) -> Objects:
    """Return a checkpoint as it is; return another pytree as objects, under the name "".

    Raises `ArgumentTypeError` for a leaf, which has no name.
    """
    if isinstance(given, Objects):
        return given
    if jax.tree_util.all_leaves([given]):
        raise ArgumentTypeError(
            f"the objects are one value of type {type(given).__name__}, which has no name",
            hint='give a dict: {"name": value}',
        )
    return Objects({"": given})


class LoadedStatus(MatchStatus["_Matches"]):
    """The result of `load`: what was loaded, and the names that only one side has.

    A `LoadedStatus` has the methods of `LoadStatus`. `tree` is the given tree with the new arrays.
    """

    _is_tree_read = True

    @property
    def tree(self) -> Any:
        """Return the objects that were given, where arrays and numbers are the loaded ones.

        Variables are assigned in their place. Arrays cannot be written to: take them from here.
        """
        self._is_tree_read = True
        return self.objects.objects.get("", self.objects)

    def entries(self) -> Entries:
        """Return the entries of the objects as they are now."""
        return entries_of(self.objects, of_value=of_value_or_shape)

    def load(self, names: NameMap, cast: bool) -> None:
        """Read the arrays and write them to the objects."""
        saved, entries = self.saved, self.entries()
        assert saved is not None
        require_known(names, [*entries.by_name, *entries.aliases])
        forms = saved.of_entries(entries)
        found = [(e, form) for e in entries.by_name.values() if (form := forms[e.name]) is not None]
        if not forms:
            raise CheckpointError(f"the objects to load from {saved.path} have no arrays")
        if not found:
            raise CheckpointError(
                f"{saved.path} has no array with the name of an object: it has "
                f"{some_of(saved.arrays)}; the objects are {some_of(forms)}",
                hint="give the names in the file: names={'name of the object': 'name there'}",
            )
        pairs = [(entry, form, view_of(form, saved.arrays)) for entry, form in found]
        _refuse_unlike(saved.path, pairs, cast)
        write_all(saved.path, pairs)
        entries.finish()
        self.note((entry for entry, _ in found), (n for _, form in found for n in names_in(form)))
        is_replaced = any(entry.holder is None for entry, _ in found)
        self._is_tree_read = not (is_replaced and "" in self.objects.objects)

    def __del__(self) -> None:
        super().__del__()
        if not self._is_tree_read:
            _log.warning(
                "the arrays that were loaded from %s are lost: they are in `.tree` of the result, "
                "which nobody has read",
                self._path,
            )


class _Matches(SavedEntries):
    """The arrays of files, by the names of objects."""

    def __init__(self, arrays: ForeignArrays, names: NameMap) -> None:
        self.arrays, self._map = arrays, names
        self.path, self.names = arrays.path, {*arrays}

    def saved_as(self, name: str) -> Form | None:
        """Return the form of an object's array in the files; None if the files have none.

        Raises `CheckpointError` for a name that the user gave and the files lack.
        """
        form = form_of(self._map, name)
        if form is None:
            return None
        is_given = form != name if callable(self._map) else name in (self._map or {})
        if not is_given:
            spellings = name, name.replace("/", ".")
            return next((each for each in spellings if each in self.arrays), None)
        is_there = any(each in self.arrays for each in names_in(form))
        if callable(self._map) and not is_there:
            return None
        require_all_in(form, name, self.arrays, self.path)
        return form


def of_value_or_shape(name: str, leaf: Any, put: PutBack) -> CheckpointEntry:
    """Return the entry of a value, or of a `jax.ShapeDtypeStruct`, which an array replaces.

    That array has the sharding of the shape. Without a sharding it is on the default device.
    """
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return of_value(name, leaf, put)
    sharding = leaf.sharding

    def read() -> Array:
        raise ArgumentTypeError(f"{name!r} is a shape, which has no value")

    def write(value: Any) -> None:
        is_given = isinstance(sharding, jax.sharding.Sharding)
        put(array_of_full(value, sharding) if is_given else jax.numpy.asarray(value))

    shards = None
    if isinstance(sharding, jax.sharding.Sharding) and not sharding.is_fully_replicated:
        shards = Shards(
            sharding.shard_shape(leaf.shape), lambda: iter([(with_bounds((), leaf.shape), read())])
        )
    return ArrayEntry(name, str(leaf.dtype), leaf.shape, read, write, shards=shards)


@overload
def load(path: StrPath) -> ForeignArrays: ...
@overload
def load(
    path: StrPath, objects: Any, names: NameMap = None, *, cast: bool = False
) -> LoadedStatus: ...
def load(
    path: StrPath, objects: Any = None, names: NameMap = None, *, cast: bool = False
) -> ForeignArrays | LoadedStatus:
    """Restore objects from arrays that another program wrote, in orbax's format or safetensors.

    `path` is a folder that orbax saved (a step of its `CheckpointManager`, too), a `.safetensors`
    file, or a folder of several such files with their index, as models of Hugging Face have; on a
    disk, or in a bucket: `gs://..`, `s3://..`. `objects` is a pytree or a `Checkpoint`. Variables
    are assigned. Arrays, numbers and `jax.ShapeDtypeStruct`s are replaced, in `Checkpoint` objects
    and in `.tree` of the result. Each worker reads only the shards of its devices, one array after
    the other.

    An object is loaded from the array of its name: `params/w`, or `params.w`. `names` is a dict, or
    a function of the object's name, that says where an object is loaded from: the name of an array,
    a list of names to stack along a new first dimension, `Transposed`, `Reshaped`, or None to leave
    the object alone. With `cast` floats are converted to the dtype of the object, and integers to
    other integers or to floats.

    Without `objects`, return the arrays by name. An array is read when it is indexed.

    Raises `UnreadableCheckpointError` for files that are damaged, missing, or of another kind;
    `CheckpointError` for shapes and dtypes that differ, for names that the files lack, and if no
    object is in the files; `ArgumentError` for a name that no object has; `MissingExtraError` for
    orbax's format without the extra `orbax`. All names, shapes and dtypes are compared before an
    object is loaded, so that only an error while arrays are read leaves some objects loaded.

    >>> import tempfile
    >>> import graphdist as gd
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> gd.train.export(path, {"dense": {"kernel": np.ones((2, 3))}})
    >>> w = gd.Variable(np.zeros((3, 2)))
    >>> status = load(path, {"w": w}, {"w": gd.train.Transposed("dense.kernel")}, cast=True)
    >>> status.assert_consumed().tree["w"].read_value().sum()
    Array(6., dtype=float32)
    >>> load(path)["dense.kernel"][:1]
    array([[1., 1., 1.]])
    """
    with at_the_users_line():
        require_outside("files are loaded")
        finish_writing()
        arrays = open_arrays(path)
        if objects is None:
            return arrays
        status = LoadedStatus(objects_of(objects), _Matches(arrays, names))
        outside_scopes(lambda: status.load(names, cast))
        return status


def _refuse_unlike(path: str, pairs: list[_Pair], cast: bool) -> None:
    """Raise `CheckpointError` for objects that differ from their arrays in shape or dtype."""
    found = [(pair, hint) for pair in pairs if (hint := _disagreement(pair, cast)) is not None]
    reasons = [
        f"{entry.name!r} is {entry}, the file's {quoted(form, most=200)} is {view}"
        for (entry, form, view), _ in found
    ]
    refuse_disagreements(path, reasons, found[0][1] if found else "")


def _disagreement(pair: _Pair, cast: bool) -> str | None:
    """Return what to do if an object cannot be loaded from its array; None if it can."""
    entry, _, view = pair
    if isinstance(entry, StateEntry):
        return "its position is restored from a checkpoint of graphdist"
    if entry.key_shape:
        return "load its integers, and make the key with jax.random.wrap_key_data"
    if tuple(entry.shape) != view.shape:
        if len(entry.shape) > 1 and tuple(entry.shape) == view.shape[::-1]:
            return "gd.train.Transposed(name) in names reverses the dimensions"
        return "give another array in names, or gd.train.Reshaped(name, shape)"
    if isinstance(entry, ValueEntry):
        kind = np.bool_ if type(entry.value) is bool else type(entry.value)
        is_number = isinstance(entry.value, int | float) and _can_become(view.dtype, np.dtype(kind))
        return None if is_number else "it takes a number of its type"
    wanted = jax.numpy.dtype(entry.dtype)
    is_float = _is(view.dtype, np.floating)
    if view.dtype == wanted or (entry.takes_any_float and is_float):
        return None
    if not _can_become(view.dtype, wanted):
        return "make the object with the dtype of the array"
    return None if cast or view.is_number else "load(.., cast=True) converts it"


def _is(dtype: Any, kind: Any) -> bool:
    return bool(jax.numpy.issubdtype(dtype, kind))


def _can_become(dtype: Any, wanted: Any) -> bool:
    """Return whether numbers can be converted without losing more than precision or range."""
    order = [np.bool_, np.integer, np.floating, np.complexfloating]
    kinds = [next(i for i, kind in enumerate(order) if _is(each, kind)) for each in (dtype, wanted)]
    is_bool = kinds[0] == 0 or kinds[1] == 0
    return kinds[0] == kinds[1] if is_bool else kinds[0] <= kinds[1]


def write_all(path: str, pairs: list[_Pair]) -> None:
    """Read the arrays one after the other, and write each to its object, on all workers alike."""
    group, call, doing = worker_group(), f"load/{next(_loads)}", f"{path} is loaded"
    described = [[entry.name, str(form), str(view)] for entry, form, view in pairs]
    mine = hashlib.sha256(repr(described).encode()).hexdigest()
    for worker, other in enumerate(exchange(group, call, mine, SECONDS_TO_WRITE, doing)):
        if other != mine:
            raise CheckpointError(
                f"worker {worker} loads other arrays from {path}, or to other objects",
                hint="all workers load the same files: use a folder that all of them see",
            )
    for number, (entry, _, view) in enumerate(pairs):
        write: list[Callable[[], None]] = []
        done_by_all(
            group,
            f"{call}/{number}",
            lambda: write.append(_reader(entry, view)),  # noqa: B023 - called at once
            doing,
        )
        write.pop()()


def _reader(entry: CheckpointEntry, view: ForeignArray) -> Callable[[], None]:
    """Read an array, and return the function that writes the array to its object.

    All workers call the returned function together. Shards are already written here, one after the
    other, because no other worker takes part in that.
    """
    if not isinstance(entry, ArrayEntry):
        value = type(entry.value)(view[()].item())  # type: ignore[union-attr]  # never a state
        return partial(entry.write, value)
    dtype = jax.numpy.dtype(entry.dtype)
    if entry.shards is not None:
        entry.write(ShardsOf(view, entry.span, dtype))  # type: ignore[arg-type]  # indexed alone
        return nothing
    return partial(entry.write, np.asarray(_converted(view[...], dtype), order="C"))


def _converted(values: Array, dtype: np.dtype[Any]) -> Array:
    """Return values in a dtype; raises `CheckpointError` for integers that it does not have."""
    if values.dtype == dtype:
        return values
    if _is(dtype, np.integer) and values.size:
        bounds: Any = jax.numpy.iinfo(dtype)  # type: ignore[no-untyped-call]  # JAX's
        for end in (int(values.min()), int(values.max())):
            if not bounds.min <= end <= bounds.max:
                raise CheckpointError(
                    f"an array has the number {end:,}, which {dtype.name} does not have",
                    hint="make the object with the dtype of the array",
                )
    return values.astype(dtype)


@dataclass
class ShardsOf:
    """An array of which an index reads a part; with `span`, that part of an array."""

    view: ForeignArray
    span: Span | None
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what can be indexed."""
        return self.view.shape if self.span is None else self.span.shape_in(self.view.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        part = list(with_bounds(index, self.shape))
        if self.span is not None:
            start, own = self.span.start, part[self.span.dimension]
            part[self.span.dimension] = slice(own.start + start, own.stop + start)
        return _converted(self.view.read(tuple(part)), self.dtype)
