"""`load`: restores arrays that other programs wrote, in orbax's format and in safetensors.

All names, shapes and dtypes are compared first, by the metadata of the files alone. Then the arrays
are read one after the other, and each is let go before the next. Of an array that is sharded each
device gets its shard, and nothing else is read. So a host holds one shard at a time, or one array
that is not sharded.

With several workers each reads its own shards, and all of what is mirrored. They first compare what
they are about to load, and after each array say whether they could read it, so that none waits for
one that has failed.
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
from graphdist.errors import ArgumentTypeError, ContextError, UnreadableCheckpointError
from graphdist.quoted import quoted
from graphdist.runtime.files.checkpoint import SECONDS_TO_WRITE
from graphdist.runtime.files.checkpoint_files import CheckpointError
from graphdist.runtime.files.foreign_arrays import Array, ForeignArray, ForeignArrays
from graphdist.runtime.processes.workers import exchange, worker_group
from graphdist.runtime.spans import Span, array_of_full, with_bounds
from graphdist.tracing.trace_in_progress import current_trace
from graphdist.train.entries import Entries, Objects, entries_of, outside_scopes
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
from graphdist.train.matched_entries import MatchStatus, refuse_disagreements
from graphdist.train.name_maps import (
    Form,
    NameMap,
    form_of,
    names_in,
    require_all_in,
    require_known,
    view_of,
)
from graphdist.train.user_paths import StrPath

_log = logging.getLogger("graphdist")
_loads = itertools.count()
"""Counts the loads of this process; all workers load in the same order."""
_Pair: TypeAlias = tuple[CheckpointEntry, Form, ForeignArray]


class Tree(Objects):
    """A pytree whose leaves have the names of their paths, without a name before them."""

    def __init__(self, tree: Any) -> None:
        """Take a pytree; raises `ArgumentTypeError` for a leaf, which has no name."""
        if jax.tree_util.all_leaves([tree]):
            raise ArgumentTypeError(
                f"the objects are one value of type {type(tree).__name__}, which has no name",
                hint='give a dict: {"name": value}',
            )
        self.objects = {"": tree}


def objects_of(given: Any) -> Objects:
    """Return a checkpoint as it is, and a pytree as objects."""
    return given if isinstance(given, Objects) else Tree(given)


class LoadedStatus(MatchStatus["_Matches"]):
    """The result of `load`: what was loaded, and the names that only one side has.

    It has the methods of `LoadStatus`. `tree` is the tree that was given, with the new arrays.
    """

    _is_tree_read = True

    @property
    def tree(self) -> Any:
        """Return the objects that were given, where arrays and numbers are the loaded ones.

        Variables are assigned in their place. Arrays cannot be written to: take them from here.
        """
        self._is_tree_read = True
        return self.objects.objects[""] if isinstance(self.objects, Tree) else self.objects

    def entries(self) -> Entries:
        """Return the entries of the objects as they are now."""
        return entries_of(self.objects, of_value=of_value_or_shape)

    def load(self, names: NameMap, cast: bool) -> None:
        """Read the arrays and write them to the objects."""
        saved, entries = self.saved, self.entries()
        assert saved is not None
        require_known(names, [*entries.by_name, *entries.aliases])
        forms = saved.names_of(entries)
        found = [(e, form) for e in entries.by_name.values() if (form := forms[e.name]) is not None]
        if not forms:
            raise CheckpointError(f"the objects to load from {saved.path} have no arrays")
        if not found:
            raise CheckpointError(
                f"{saved.path} has no array with the name of an object: it has "
                f"{_some(saved.arrays)}; the objects are {_some(forms)}",
                hint="give the names in the file: names={'name of the object': 'name there'}",
            )
        pairs = [(entry, form, view_of(form, saved.arrays)) for entry, form in found]
        _refuse_unlike(saved.path, pairs, cast)
        write_all(saved.path, pairs)
        entries.finish()
        self.note((entry for entry, _ in found), (n for _, form in found for n in names_in(form)))
        is_replaced = any(entry.holder is None for entry, _ in found)
        self._is_tree_read = not (is_replaced and isinstance(self.objects, Tree))

    def __del__(self) -> None:
        super().__del__()
        if not self._is_tree_read:
            _log.warning(
                "the arrays that were loaded from %s are lost: they are in `.tree` of the result, "
                "which nobody has read",
                self.saved and self.saved.path,
            )


@dataclass
class _Matches:
    """The arrays of files, by the names of objects."""

    arrays: ForeignArrays
    map: NameMap

    @property
    def path(self) -> str:
        """Return the user's name of the files."""
        return self.arrays.path

    @property
    def names(self) -> set[str]:
        """Return the names of all arrays."""
        return {*self.arrays}

    def names_of(self, entries: Entries) -> dict[str, Form | None]:
        """Return for each entry what it, or an alias of it, is in the files; None for nothing."""
        forms = {name: self._form(name) for name in entries.by_name}
        for alias, name in entries.aliases.items():
            forms[name] = forms[name] or self._form(alias)
        return forms

    def _form(self, name: str) -> Form | None:
        """Return the form of an object; None if the files have nothing of it.

        Raises `CheckpointError` for a name that the user gave and the files lack.
        """
        form = form_of(self.map, name)
        if form is None:
            return None
        is_given = form != name if callable(self.map) else name in (self.map or {})
        if not is_given:
            spellings = name, name.replace("/", ".")
            return next((each for each in spellings if each in self.arrays), None)
        is_there = any(each in self.arrays for each in names_in(form))
        if callable(self.map) and not is_there:
            return None
        require_all_in(form, name, self.arrays, self.path)
        return form


def of_value_or_shape(name: str, leaf: Any, put: PutBack) -> CheckpointEntry:
    """Return the entry of a value that is replaced; a shape is replaced by an array.

    The array has the sharding of the shape; without one it is on the default device.
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
            sharding.shard_shape(leaf.shape), lambda: iter([(_all(leaf.shape), read())])
        )
    return ArrayEntry(name, str(leaf.dtype), leaf.shape, read, write, shards=shards)


def _all(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in shape)


@overload
def load(path: StrPath) -> ForeignArrays: ...
@overload
def load(
    path: StrPath, objects: Any, names: NameMap = None, *, cast: bool = False
) -> LoadedStatus: ...
def load(
    path: StrPath, objects: Any = None, names: NameMap = None, *, cast: bool = False
) -> ForeignArrays | LoadedStatus:
    """Restore objects from arrays that another program wrote: orbax, or a file of safetensors.

    `path` is a folder that orbax saved (a step of its `CheckpointManager`, too), a `.safetensors`
    file, or a folder of several with their index, as models of Hugging Face have. `objects` is a
    pytree or a `Checkpoint`. Variables are assigned; arrays, numbers and `jax.ShapeDtypeStruct`s
    are replaced, in `Checkpoint` objects and in `.tree` of the result. Each worker and device reads
    its shards alone, one array after the other.

    An object is loaded from the array of its name: `params/w`, or `params.w`. `names` gives others,
    as a dict or a function from the object's name: a name, a list of names to stack along a new
    first dimension, `Transposed`, `Reshaped`, or None to leave an object alone. With `cast` floats
    are converted to the dtype of the object, and integers to other integers or to floats.

    Without `objects`, return the arrays by name: each is read when it is indexed.

    Raises `UnreadableCheckpointError` for files that are damaged, missing, or of another kind,
    `CheckpointError` for shapes and dtypes that differ, for names that the file lacks, and if no
    object is in the file; `ArgumentError` for a name that no object has; `MissingExtraError` for
    orbax's format without the extra `orbax`. Only an error while arrays are read leaves some
    objects loaded.

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
        if current_trace() is not None:
            raise ContextError(
                "files are loaded inside a function, which would do it when it is traced and "
                "never again",
                hint="call it outside, between two calls of the function",
            )
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
        f"{entry.name!r} is {entry}, the file's {_described(form)} is {view}"
        for (entry, form, view), _ in found
    ]
    refuse_disagreements(path, reasons, found[0][1] if found else "")


def _described(form: Form) -> str:
    return quoted(form, most=200)


def _disagreement(pair: _Pair, cast: bool) -> str | None:
    """Return what to do if an object cannot be loaded from its array; None if it can."""
    entry, _, view = pair
    if isinstance(entry, StateEntry):
        return "its position is restored from a checkpoint of graphdist"
    if isinstance(entry, ArrayEntry) and entry.key_shape:
        return "load its integers, and make the key with jax.random.wrap_key_data"
    shape = entry.shape if isinstance(entry, ArrayEntry) else ()
    if tuple(shape) != view.shape:
        if len(shape) > 1 and tuple(shape) == view.shape[::-1]:
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
    group, call = worker_group(), f"load/{next(_loads)}"
    described = [[entry.name, str(form), str(view)] for entry, form, view in pairs]
    mine = hashlib.sha256(repr(described).encode()).hexdigest()
    agree = partial(exchange, group, seconds=SECONDS_TO_WRITE, doing=f"{path} is loaded")
    for worker, other in enumerate(agree(name=call, value=mine)):
        if other != mine:
            raise CheckpointError(
                f"worker {worker} loads other arrays from {path}, or to other objects",
                hint="all workers load the same files: use a folder that all of them see",
            )
    for number, (entry, _, view) in enumerate(pairs):
        failure, write = None, _nothing
        try:
            write = _reader(entry, view)
        except CheckpointError as error:
            failure = error
        said = agree(name=f"{call}/{number}", value="" if failure is None else failure.what)
        if failure is not None:
            raise failure
        for worker, what in enumerate(said):
            if what:
                raise UnreadableCheckpointError(f"worker {worker}: {what}")
        write()


def _nothing() -> None:
    return None


def _reader(entry: CheckpointEntry, view: ForeignArray) -> Callable[[], None]:
    """Read what this worker needs; return a function that writes it, in which all take part.

    Shards are written here, one after the other: no other worker has a part in that.
    """
    if not isinstance(entry, ArrayEntry):
        value = type(entry.value)(view[()].item())  # type: ignore[union-attr]  # never a state
        return partial(entry.write, value)
    dtype = jax.numpy.dtype(entry.dtype)
    if entry.shards is not None:
        entry.write(ShardsOf(view, entry.span, dtype))  # type: ignore[arg-type]  # indexed alone
        return _nothing
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
    """An array that is read where it is indexed; with `span`, that part of it."""

    view: ForeignArray
    span: Span | None
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of what can be indexed."""
        return self.view.shape if self.span is None else self.span.shape_in(self.view.shape)

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        missing = len(self.shape) - len(index)
        part = list(with_bounds((*index, *[slice(None)] * missing), self.shape))
        if self.span is not None:
            start, own = self.span.start, part[self.span.dimension]
            part[self.span.dimension] = slice(own.start + start, own.stop + start)
        return _converted(self.view.read(tuple(part)), self.dtype)


def _some(names: Any) -> str:
    names = list(names)
    return ", ".join(quoted(name) for name in names[:4]) + (", .." if names[4:] else "")
